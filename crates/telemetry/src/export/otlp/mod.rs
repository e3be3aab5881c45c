//! OTLP: pushes what the OpenTelemetry SDK gathered, on a thread and runtime of its own.
//!
//! Nothing here is ever waited for by the data path, and a collector that takes nothing costs at most the span queue.

mod calls;
mod client;
mod delivery;
mod destination;
mod endpoint;
mod metrics;
mod passage;
mod sender;
mod tls;
mod traces;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::SyncSender;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use opentelemetry_sdk::Resource;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::Settings;
use crate::export::telemetry::Telemetry;

pub(crate) use metrics::Pipeline;
pub use passage::{Answer, Passage};
pub(crate) use traces::{Layout, SpanQueue};

/// A shutdown never takes longer than this, whatever is asked for.
const LONGEST_SHUTDOWN: Duration = Duration::from_millis(1500);

/// Niceness of the thread (setpriority(2)): where traffic and telemetry share a core, traffic gets nine tenths of it when
/// it needs them, and its threads do not wait for a batch to be encoded.
const NICENESS: i32 = 10;

/// What is kept for answering after the deadline of a shutdown.
const MARGIN: Duration = Duration::from_millis(100);

/// What a signal's task is asked to do.
enum Command {
    /// Export now what there is; tells whether that worked.
    Flush(SyncSender<bool>),
    /// The same, and end.
    Close(SyncSender<bool>),
}

impl Command {
    /// Tells whoever asked whether the export was good; true when the task has to end now.
    fn done(self, good: bool) -> bool {
        let (reply, ends) = match self {
            Command::Flush(reply) => (reply, false),
            Command::Close(reply) => (reply, true),
        };
        // Who asked may have stopped waiting.
        reply.try_send(good).ok();
        ends
    }
}

/// When everything has to end; `None` while nobody asked.
type Closing = watch::Receiver<Option<Instant>>;

/// Comes to an end when the deadline of a shutdown has passed.
async fn expired(mut closing: Closing) {
    let deadline = match closing.wait_for(Option::is_some).await {
        Ok(deadline) => *deadline,
        // The other end is gone: nobody will set a deadline any more.
        Err(_) => None,
    };
    tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)).await;
}

/// Runs one export: at most for `limit`, and not past the deadline of a shutdown.
async fn bounded<E: std::fmt::Display>(
    export: impl Future<Output = Result<(), E>>,
    limit: Duration,
    closing: &Closing,
) -> Result<(), String> {
    tokio::select! {
        result = tokio::time::timeout(limit, export) => match result {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {limit:?}")),
        },
        () = expired(closing.clone()) => Err("cut short by the shutdown".to_owned()),
    }
}

/// Whether an endpoint's URL, headers and TLS files can be used, without a connection.
///
/// # Errors
///
/// The first of them that cannot.
pub fn usable_endpoint(endpoint: &Endpoint) -> Result<(), Error> {
    endpoint::headers(endpoint)?;
    destination::Destination::new(endpoint, &[]).map(drop)
}

/// The exporters before their thread runs.
pub(crate) struct Setup {
    runtime: Option<Runtime>,
    metrics: Option<Pipeline>,
    traces: Option<traces::Batcher>,
    pub(crate) spans: Option<SpanQueue>,
}

impl Setup {
    /// Builds what the settings ask for; nothing at all without an endpoint.
    pub(crate) fn new(settings: &Settings, telemetry: &Arc<Telemetry>) -> Result<Setup, Error> {
        let (metrics, traces) = (&settings.metrics.endpoint, &settings.traces.endpoint);
        if metrics.is_none() && traces.is_none() {
            return Ok(Setup { runtime: None, metrics: None, traces: None, spans: None });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
        // gRPC channels are tied to the runtime in which they are made.
        let inside = runtime.enter();
        let resource = resource(settings);
        let metrics = metrics
            .as_ref()
            .map(|endpoint| Pipeline::new(settings, endpoint, resource.clone(), Arc::clone(telemetry)))
            .transpose();
        let traces = traces
            .as_ref()
            .map(|endpoint| traces::Batcher::new(&settings.traces, endpoint, &resource, Arc::clone(telemetry)))
            .transpose();
        drop(inside);
        match (metrics, traces) {
            (Ok(metrics), Ok(traces)) => {
                let (traces, spans) = traces.unzip();
                Ok(Setup { runtime: Some(runtime), metrics, traces, spans })
            }
            (Err(error), _) | (_, Err(error)) => {
                // Whoever called may run on a runtime, where dropping another one is a panic.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// The meter whose instruments are pushed; `None` without an endpoint for metrics.
    pub(crate) fn meter(&self) -> Option<Meter> {
        self.metrics.as_ref().map(Pipeline::meter)
    }

    /// Starts the thread. `refresh` is called before each collection.
    pub(crate) fn run(self, refresh: Box<dyn Fn() + Send>) -> Result<Otlp, Error> {
        let (closing, deadline) = watch::channel(None);
        let mut commands = Vec::new();
        let mut inbox = || -> UnboundedReceiver<Command> {
            let (sender, receiver) = unbounded_channel();
            commands.push(sender);
            receiver
        };
        if let Some(runtime) = self.runtime {
            let metrics = self.metrics.map(|pipeline| pipeline.run(refresh, inbox(), deadline.clone()));
            let traces = self.traces.map(|batcher| batcher.run(inbox(), deadline));
            let work = move || {
                // Lowering needs no right; should it be refused all the same, telemetry works as well.
                rustix::process::nice(NICENESS).ok();
                runtime.block_on(async {
                    let metrics = async {
                        if let Some(metrics) = metrics {
                            metrics.await;
                        }
                    };
                    let traces = async {
                        if let Some(traces) = traces {
                            traces.await;
                        }
                    };
                    tokio::join!(metrics, traces)
                });
                // A name look-up that hangs must not hold the process.
                runtime.shutdown_background();
            };
            std::thread::Builder::new().name("tokometer-otlp".to_owned()).spawn(work).map_err(Error::Runtime)?;
        }
        Ok(Otlp { commands, closing })
    }
}

/// The resource of both signals.
fn resource(settings: &Settings) -> Resource {
    let attributes = settings.resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    Resource::builder_empty().with_attributes(attributes).build()
}

/// The running OTLP exporters.
#[derive(Debug)]
pub(crate) struct Otlp {
    commands: Vec<UnboundedSender<Command>>,
    closing: watch::Sender<Option<Instant>>,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Command::Flush(_) => "Flush",
            Command::Close(_) => "Close",
        })
    }
}

impl Otlp {
    /// Exports now; true when every signal got through within `limit`.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        self.ask(limit, Command::Flush)
    }

    /// Exports a last time and ends, within `limit` and 1.5 s; true when every signal got through.
    pub(crate) fn shutdown(&self, limit: Duration) -> bool {
        let limit = limit.min(LONGEST_SHUTDOWN);
        self.closing.send_replace(Some(Instant::now() + limit.saturating_sub(MARGIN)));
        self.ask(limit, Command::Close)
    }

    fn ask(&self, limit: Duration, command: impl Fn(SyncSender<bool>) -> Command) -> bool {
        let deadline = std::time::Instant::now() + limit;
        let ask = |sender: &UnboundedSender<Command>| -> Option<Receiver<bool>> {
            let (reply, answer) = sync_channel(1);
            sender.send(command(reply)).is_ok().then_some(answer)
        };
        // All are asked before the first answer is awaited, so that they work side by side.
        let answers: Vec<Option<Receiver<bool>>> = self.commands.iter().map(ask).collect();
        answers.into_iter().fold(true, |all, answer| {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            all & answer.is_some_and(|answer| answer.recv_timeout(left).unwrap_or(false))
        })
    }
}
