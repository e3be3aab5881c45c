//! OTLP: exports metrics and traces, on a separate thread and runtime.
//!
//! The data path never waits for this module. An unresponsive collector costs at most the memory of the span queue.

mod collector_client;
mod delivery;
mod endpoint;
mod metrics;
mod traces;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Poll;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::export::collect::telemetry::Telemetry;
use crate::export::series::snapshot::Family;
use crate::export::{Error, Settings};

pub use collector_client::CollectorClient;
pub use endpoint::usable_endpoint;
pub(crate) use traces::{Layout, SpanQueue};

use metrics::Pipeline;
use traces::Batcher;

/// Maximum duration of a shutdown, regardless of the requested time.
const LONGEST_SHUTDOWN: Duration = Duration::from_millis(1500);

/// Niceness of the thread (setpriority(2)). On a core shared with this thread, the data path gets up to nine tenths of
/// the CPU time and does not wait until a batch is encoded.
const NICENESS: i32 = 10;

/// Time between the end of the last export and the deadline of a shutdown, reserved for the reply.
const MARGIN: Duration = Duration::from_millis(100);

/// A command for the task of a signal (metrics or traces): export now, report the result to `reply`, and stop if
/// `close` is set.
#[derive(Debug)]
struct Command {
    reply: SyncSender<bool>,
    close: bool,
}

impl Command {
    /// Replies to the caller with the result; returns true when the task must stop now.
    fn done(self, good: bool) -> bool {
        // The caller may have stopped waiting.
        self.reply.try_send(good).ok();
        self.close
    }
}

/// The deadline of the shutdown; `None` until one is requested.
type Closing = watch::Receiver<Option<Instant>>;

/// Runs one export, limited by `limit` and by the deadline of a shutdown. A panic is an error of this export only: tonic
/// 0.14 panics if `grpc-status-details-bin` is not valid base64.
async fn bounded<E: std::fmt::Display>(
    export: impl Future<Output = Result<(), E>>,
    limit: Duration,
    closing: &Closing,
) -> Result<(), String> {
    let mut export = std::pin::pin!(export);
    let export = std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| export.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map_err(|error| error.to_string()),
            Err(_) => Poll::Ready(Err("the response is invalid".to_owned())),
        }
    });
    let mut closing = closing.clone();
    let expired = async {
        // If the sender has been dropped, no deadline can be set any more. The export is then interrupted at once.
        let deadline = closing.wait_for(Option::is_some).await.map_or(None, |deadline| *deadline);
        tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)).await;
    };
    tokio::select! {
        result = tokio::time::timeout(limit, export) => match result {
            Ok(result) => result,
            Err(_) => Err(format!("no response within {limit:?}")),
        },
        () = expired => Err("interrupted by the shutdown".to_owned()),
    }
}

/// The configured exporters, before their thread is started.
#[derive(Default)]
pub(crate) struct Setup {
    runtime: Option<Runtime>,
    metrics: Option<Pipeline>,
    traces: Option<Batcher>,
    pub(crate) spans: Option<SpanQueue>,
}

impl Setup {
    /// Builds the configured exporters. Without an endpoint, the result is empty.
    pub(crate) fn new(settings: &Settings, telemetry: &Arc<Telemetry>) -> Result<Setup, Error> {
        let (metrics, traces) = (&settings.metrics.endpoint, &settings.traces.endpoint);
        if metrics.is_none() && traces.is_none() {
            return Ok(Setup::default());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
        // gRPC channels are tied to the runtime in which they are created.
        let inside = runtime.enter();
        let attributes = settings.resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
        let resource = Resource::builder_empty().with_attributes(attributes).build();
        let build = || -> Result<_, Error> {
            let pipeline = |endpoint| Pipeline::new(settings, endpoint, Arc::clone(telemetry));
            let batcher = |endpoint| Batcher::new(&settings.traces, endpoint, &resource, Arc::clone(telemetry));
            Ok((metrics.as_ref().map(pipeline).transpose()?, traces.as_ref().map(batcher).transpose()?))
        };
        let built = build();
        drop(inside);
        match built {
            Ok((metrics, traces)) => {
                let (traces, spans) = traces.unzip();
                Ok(Setup { runtime: Some(runtime), metrics, traces, spans })
            }
            Err(error) => {
                // The caller may run on a runtime, where dropping another runtime panics.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Starts the thread. `families` returns all series.
    pub(crate) fn run(self, families: Box<dyn Fn() -> Vec<Family> + Send>) -> Result<Otlp, Error> {
        let (closing, deadline) = watch::channel(None);
        let mut commands = Vec::new();
        let mut inbox = || -> UnboundedReceiver<Command> {
            let (sender, receiver) = unbounded_channel();
            commands.push(sender);
            receiver
        };
        if let Some(runtime) = self.runtime {
            let mut tasks = JoinSet::new();
            if let Some(pipeline) = self.metrics {
                tasks.spawn_on(pipeline.run(families, inbox(), deadline.clone()), runtime.handle());
            }
            if let Some(batcher) = self.traces {
                tasks.spawn_on(batcher.run(inbox(), deadline), runtime.handle());
            }
            let work = move || {
                // Lowering the priority needs no privilege; if it fails anyway, telemetry still works.
                rustix::process::nice(NICENESS).ok();
                runtime.block_on(tasks.join_all());
                // A name lookup that hangs must not delay the exit of the process.
                runtime.shutdown_background();
            };
            std::thread::Builder::new().name("tokometer-otlp".to_owned()).spawn(work).map_err(Error::Runtime)?;
        }
        Ok(Otlp { commands, closing })
    }
}

/// The running OTLP exporters.
#[derive(Debug)]
pub(crate) struct Otlp {
    commands: Vec<UnboundedSender<Command>>,
    closing: watch::Sender<Option<Instant>>,
}

impl Otlp {
    /// Exports now; returns true when every signal was delivered within `limit`.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        self.command(limit, false)
    }

    /// Exports a last time and stops, within `limit` and at most 1.5 s; returns true when every signal was delivered.
    pub(crate) fn shutdown(&self, limit: Duration) -> bool {
        let limit = limit.min(LONGEST_SHUTDOWN);
        self.closing.send_replace(Some(Instant::now() + limit.saturating_sub(MARGIN)));
        self.command(limit, true)
    }

    fn command(&self, limit: Duration, close: bool) -> bool {
        let deadline = Instant::now() + limit;
        let send = |sender: &UnboundedSender<Command>| -> Option<Receiver<bool>> {
            let (reply, result) = sync_channel(1);
            sender.send(Command { reply, close }).is_ok().then_some(result)
        };
        // All commands are sent before the first reply is awaited, so that the tasks run concurrently.
        let results: Vec<Option<Receiver<bool>>> = self.commands.iter().map(send).collect();
        results.into_iter().fold(true, |all, result| {
            let left = deadline.saturating_duration_since(Instant::now());
            all & result.is_some_and(|result| result.recv_timeout(left).unwrap_or(false))
        })
    }
}
