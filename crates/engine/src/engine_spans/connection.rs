//! One connection to the span receiver: OTLP over gRPC or HTTP, detected by its first bytes.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::engine_spans::intake::Intake;

/// Maximum size of request headers in bytes.
const HEAD_BYTES: usize = 16 * 1024;
/// Maximum concurrent calls per HTTP/2 connection; an exporter uses one.
const CALLS: u32 = 16;
/// HTTP/2 flow-control window in bytes: data accepted before it is read.
const WINDOW: u32 = 256 * 1024;
/// An HTTP/2 connection without requests for this long is closed to free its place; clients open another one.
const IDLE: Duration = Duration::from_secs(60);
/// Interval between two checks while the first bytes are not conclusive.
const LOOK: Duration = Duration::from_millis(10);

/// Serves requests until the client disconnects, is silent for too long, or the receiver stops.
pub(crate) async fn serve(stream: TcpStream, intake: Arc<Intake>, mut stopped: watch::Receiver<bool>) {
    stream.set_nodelay(true).ok();
    let timeout = intake.settings.read_timeout;
    // A client that sends requests but does not read would otherwise hold its place forever.
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(timeout)).ok();
    let Ok(Some(is_http2)) = tokio::time::timeout(timeout, speaks_http2(&stream)).await else { return };
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    let service = service_fn(move |request: Request<Incoming>| {
        let intake = Arc::clone(&intake);
        counted.fetch_add(1, Relaxed);
        async move { Ok::<_, Infallible>(intake.answer(request).await) }
    });
    let io = TokioIo::new(stream);
    let ended = if is_http2 {
        let mut connection = pin!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(CALLS)
                .initial_connection_window_size(WINDOW)
                .initial_stream_window_size(WINDOW)
                .max_header_list_size(HEAD_BYTES as u32)
                .keep_alive_interval(timeout)
                .keep_alive_timeout(timeout)
                .serve_connection(io, service)
        );
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped_or_idle(&mut stopped, &requests) => {
                connection.as_mut().graceful_shutdown();
                tokio::time::timeout(timeout, connection).await.unwrap_or(Ok(()))
            }
        }
    } else {
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(timeout)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(io, service)
        );
        tokio::select! {
            ended = connection.as_mut() => ended,
            _ = stopped.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "A connection to the engine span receiver ended early.");
    }
}

async fn stopped_or_idle(stopped: &mut watch::Receiver<bool>, requests: &AtomicU64) {
    let mut seen = requests.load(Relaxed);
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            () = tokio::time::sleep(IDLE) => match requests.load(Relaxed) {
                same if same == seen => return,
                more => seen = more,
            },
        }
    }
}

/// True when the first bytes are those of the HTTP/2 preface (RFC 9113 section 3.4), of which three differ from every
/// HTTP/1 method; `None` when the client has disconnected.
async fn speaks_http2(stream: &TcpStream) -> Option<bool> {
    let mut first = [0; 3];
    loop {
        match stream.peek(&mut first).await.ok()? {
            0 => return None,
            n if first.get(..n) != b"PRI".get(..n) => return Some(false),
            3 => return Some(true),
            // Peeked bytes stay readable, so waiting for readability would return at once.
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}
