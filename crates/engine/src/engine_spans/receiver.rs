//! The span receiver and its thread: listens, joins, forwards.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{channel, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokometer_observe::measure::Sink;

use crate::engine_spans::forward::{Collector, Stopping};
use crate::engine_spans::intake::Intake;
use crate::engine_spans::interpret::Interpreter;
use crate::engine_spans::joiner::Joiner;
use crate::engine_spans::stage::{Joining, SpanJoin};
use crate::engine_spans::stats::Measurements;
use crate::engine_spans::{Settings, forward};

/// Niceness of the thread (setpriority(2)), so that streams on the same core take precedence.
const NICENESS: i32 = 10;

/// Pause after a failed accept (no file descriptors left), because an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Memory limit for messages being read, as a multiple of the maximum message size. Both the compressed and the
/// decompressed form of a message count.
const BEING_READ: usize = 4;

/// Maximum size of request headers in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Maximum concurrent calls per HTTP/2 connection; an exporter uses one.
const CALLS: u32 = 16;
/// HTTP/2 flow-control window in bytes: data accepted before it is read.
const WINDOW: u32 = 256 * 1024;
/// A connection without requests for this long is closed to free its slot; clients open a new connection.
const IDLE: Duration = Duration::from_secs(60);

/// Reasons why the receiver cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Listening on an address failed.
    #[error(
        "the receiver of engine spans cannot listen on {address}: {source}; set `engine_spans.listen` (or --otlp-receiver) to free addresses of this machine, such as 127.0.0.1:0 for any port"
    )]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No thread or runtime could be started.
    #[error("the receiver of engine spans cannot start: {0}")]
    Start(#[source] io::Error),
}

/// A running receiver of engine spans. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Receiver {
    addresses: Vec<SocketAddr>,
    stage: Arc<SpanJoin>,
    measurements: Arc<Measurements>,
    stop: watch::Sender<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts the listeners and a separate thread. Completed records are passed to `next`, and messages to `collector`.
    ///
    /// # Errors
    ///
    /// When an address is unavailable, or no thread can be started.
    pub fn start(
        settings: &Settings,
        next: Arc<dyn Sink>,
        collector: Option<Arc<dyn Collector>>,
    ) -> Result<Receiver, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Start)?;
        let listeners = {
            let _inside = runtime.enter();
            settings.listen.iter().map(|address| listen(*address)).collect::<Result<Vec<_>, _>>()?
        };
        let addresses =
            listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>().map_err(Error::Start)?;
        let reading = settings.max_message_bytes.saturating_mul(BEING_READ);
        let measurements = Arc::new(Measurements::new(reading, settings.max_waiting_bytes));
        let (ended, ended_inbox) = channel(settings.max_held.max(1));
        let stage = SpanJoin::new(Arc::clone(&next), ended, Arc::clone(&measurements));
        let (join, messages) = unbounded_channel();
        let (stop, stopped) = watch::channel(None);
        let (forward, inbox) = unbounded_channel();
        let (forward, forwarding) = match collector {
            Some(collector) => {
                let counts = Arc::clone(&measurements);
                (Some(forward), Some(forward::run(collector, inbox, settings.forward_for, counts, stopped.clone())))
            }
            None => (None, None),
        };
        let joining = Joining {
            joiner: Joiner::new(settings.wait, settings.max_held, Arc::clone(&measurements)),
            interpreter: Interpreter::new(settings.max_held.saturating_mul(4)),
            next,
            ended: ended_inbox,
            messages,
        };
        let intake =
            Arc::new(Intake { settings: settings.clone(), measurements: Arc::clone(&measurements), join, forward });
        let work = move || {
            // Lowering the priority needs no privilege; if it is refused, spans are still received.
            rustix::process::nice(NICENESS).ok();
            runtime.block_on(async {
                let forwarding = forwarding.map(tokio::spawn);
                let joining = tokio::spawn(joining.run(stopped.clone()));
                accept(listeners, intake, stopped).await;
                joining.await.ok();
                if let Some(forwarding) = forwarding {
                    forwarding.await.ok();
                }
            });
            runtime.shutdown_background();
        };
        let thread =
            std::thread::Builder::new().name("tokometer-spans".to_owned()).spawn(work).map_err(Error::Start)?;
        Ok(Receiver { addresses, stage: Arc::new(stage), measurements, stop, thread: Some(thread) })
    }

    /// The listen addresses, with the actual ports where 0 was requested.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sink for the data path's records. It passes them to `next`, after their span arrived or the wait ended.
    pub fn stage(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.stage) as Arc<dyn Sink>
    }

    /// Statistics of spans so far.
    pub fn measurements(&self) -> Arc<Measurements> {
        Arc::clone(&self.measurements)
    }

    /// Stops receiving, passes on all waiting records, forwards the remaining messages within `limit`, and waits for
    /// the thread.
    pub fn stop(mut self, limit: Duration) {
        self.stop.send_replace(Some(Instant::now() + limit));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("The engine span receiver's thread panicked.");
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let bind = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    bind().map_err(|source| Error::Bind { address, source })
}

/// Accepts connections on all listeners until the receiver stops.
async fn accept(listeners: Vec<TcpListener>, intake: Arc<Intake>, stopped: Stopping) {
    let room = Arc::new(Semaphore::new(intake.settings.max_connections));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept_on(listener, Arc::clone(&intake), Arc::clone(&room), stopped.clone()));
    }
    drop(intake);
    while accepting.join_next().await.is_some() {}
}

async fn accept_on(listener: TcpListener, intake: Arc<Intake>, room: Arc<Semaphore>, mut stopped: Stopping) {
    // Connections are aborted when this set is dropped.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => match Arc::clone(&room).try_acquire_owned() {
                Ok(permit) => {
                    let served = serve(stream, Arc::clone(&intake), stopped.clone());
                    connections.spawn(async move {
                        served.await;
                        drop(permit);
                    });
                }
                // No response is sent, because the protocol is not known yet.
                Err(_) => intake.measurements.refused_connections.add(1),
            },
            Err(error) => {
                tracing::warn!(%error, "The engine span receiver cannot accept a connection.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves requests over HTTP/1.1 or HTTP/2 until the client disconnects, is silent for too long, or the receiver stops.
async fn serve(stream: TcpStream, intake: Arc<Intake>, mut stopped: Stopping) {
    stream.set_nodelay(true).ok();
    let timeout = intake.settings.read_timeout;
    // A client that sends requests but does not read would otherwise occupy its slot forever.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(timeout)).ok();
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    let service = service_fn(move |request: Request<Incoming>| {
        let intake = Arc::clone(&intake);
        counted.fetch_add(1, Relaxed);
        async move { Ok::<_, Infallible>(intake.handle(request).await) }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(timeout).max_buf_size(HEAD_BYTES);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(timeout)
        .keep_alive_timeout(timeout);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped_or_idle(&mut stopped, &requests, timeout) => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(timeout, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "A connection to the engine span receiver ended early.");
    }
}

/// Returns when the receiver stops, when no request arrives within `first_request`, or when [`IDLE`] passes without a
/// further request.
async fn stopped_or_idle(stopped: &mut Stopping, requests: &AtomicU64, first_request: Duration) {
    let (mut seen, mut limit) = (0, first_request);
    while tokio::time::timeout(limit, stopped.changed()).await.is_err() {
        let requests = requests.load(Relaxed);
        if requests == seen {
            return;
        }
        (seen, limit) = (requests, IDLE);
    }
}
