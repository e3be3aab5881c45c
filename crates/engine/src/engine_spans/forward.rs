//! Forwards every message to the configured collector, unmodified and in order of arrival.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine_spans::message::Message;
use crate::engine_spans::stats::{Measurements, Unsent};

/// Pause before the first retry of a message; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The collector's reply to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The collector accepted the message, except for the rejected spans.
    Taken {
        /// Spans that the collector rejected.
        rejected: u64,
    },
    /// The collector may accept the message later (OTLP specification, "Failures" and "Throttling").
    Later {
        /// The retry delay, if the collector sent one.
        after: Option<Duration>,
        /// The reason.
        why: String,
    },
    /// The collector refuses the message permanently.
    Refused {
        /// The reason.
        why: String,
    },
}

/// The destination of forwarded messages.
#[async_trait]
pub trait Collector: Send + Sync + 'static {
    /// Sends an `ExportTraceServiceRequest` in protobuf with these headers, once.
    async fn export(&self, message: Bytes, headers: HeaderMap) -> Reply;
}

/// The deadline of the shutdown; `None` until a shutdown is requested.
pub(crate) type Stopping = watch::Receiver<Option<Instant>>;

/// Forwards messages until all senders are dropped, or until the shutdown deadline.
pub(crate) async fn run(
    collector: Arc<dyn Collector>,
    mut inbox: UnboundedReceiver<Message>,
    patience: Duration,
    measurements: Arc<Measurements>,
    mut stopping: Stopping,
) {
    while let Some(message) = inbox.recv().await {
        tokio::select! {
            biased;
            () = deliver(&*collector, patience, &measurements, &message) => {}
            () = over(&mut stopping) => {
                measurements.unsent(Unsent::Shutdown).add(message.spans);
                break;
            }
        }
    }
    inbox.close();
    while let Ok(message) = inbox.try_recv() {
        measurements.unsent(Unsent::Shutdown).add(message.spans);
    }
}

/// Completes when the shutdown deadline has passed.
async fn over(stopping: &mut Stopping) {
    let deadline = match stopping.wait_for(Option::is_some).await {
        Ok(deadline) => *deadline,
        Err(_) => None,
    };
    tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)).await;
}

/// Sends one message, with retries for at most `patience`.
async fn deliver(collector: &dyn Collector, patience: Duration, measurements: &Measurements, message: &Message) {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match collector.export(message.bytes.clone(), message.headers.clone()).await {
            Reply::Taken { rejected } => {
                let rejected = rejected.min(message.spans);
                measurements.forwarded.add(message.spans - rejected);
                return measurements.unsent(Unsent::Rejected).add(rejected);
            }
            Reply::Refused { why } => {
                tracing::warn!(why, spans = message.spans, "The collector refuses engine spans.");
                return measurements.unsent(Unsent::Refused).add(message.spans);
            }
            Reply::Later { after, why } => {
                let jitter = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                let next = after.unwrap_or(jitter).min(LONGEST_PAUSE);
                if begun.elapsed() + next > patience {
                    tracing::warn!(why, spans = message.spans, "Engine spans could not be forwarded.");
                    return measurements.unsent(Unsent::GivenUp).add(message.spans);
                }
                tracing::debug!(why, ?next, "Forwarding of engine spans will be retried.");
                tokio::time::sleep(next).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
