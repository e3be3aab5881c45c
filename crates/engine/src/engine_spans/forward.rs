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
use crate::engine_spans::stats::Measurements;
use crate::engine_spans::stats::Unsent;

/// Pause before the first retry of a message; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The collector's reply to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It accepted the message, except for the rejected spans.
    Taken {
        /// Spans that it rejected.
        rejected: u64,
    },
    /// It may accept the message later (OTLP specification, "Failures" and "Throttling").
    Later {
        /// The retry delay, if the collector sent one.
        after: Option<Duration>,
        /// The reason.
        why: String,
    },
    /// It refuses the message permanently.
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

/// The deadline of the shutdown; `None` until one is requested.
pub(crate) type Closing = watch::Receiver<Option<Instant>>;

/// Forwards until there are no more messages, or until the deadline.
pub(crate) async fn run(
    collector: Arc<dyn Collector>,
    mut inbox: UnboundedReceiver<Message>,
    patience: Duration,
    measurements: Arc<Measurements>,
    mut closing: Closing,
) {
    while let Some(message) = inbox.recv().await {
        let forwarder = Forwarder { collector: &*collector, patience, measurements: &measurements };
        tokio::select! {
            biased;
            () = forwarder.deliver(&message) => {}
            () = over(&mut closing) => {
                measurements.unsend(Unsent::Shutdown, message.spans);
                break;
            }
        }
    }
    inbox.close();
    while let Ok(message) = inbox.try_recv() {
        measurements.unsend(Unsent::Shutdown, message.spans);
    }
}

/// Completes when the deadline has passed.
async fn over(closing: &mut Closing) {
    let deadline = match closing.wait_for(Option::is_some).await {
        Ok(deadline) => *deadline,
        Err(_) => None,
    };
    tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)).await;
}

struct Forwarder<'a> {
    collector: &'a dyn Collector,
    patience: Duration,
    measurements: &'a Measurements,
}

impl Forwarder<'_> {
    async fn deliver(&self, message: &Message) {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.collector.export(message.bytes.clone(), message.headers.clone()).await {
                Reply::Taken { rejected } => {
                    let rejected = rejected.min(message.spans);
                    self.measurements.forward(message.spans - rejected);
                    self.measurements.unsend(Unsent::Rejected, rejected);
                    return;
                }
                Reply::Refused { why } => {
                    tracing::warn!(why, spans = message.spans, "The collector refuses engine spans.");
                    return self.measurements.unsend(Unsent::Refused, message.spans);
                }
                Reply::Later { after, why } => {
                    let jitter = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                    let next = after.unwrap_or(jitter).min(LONGEST_PAUSE);
                    if begun.elapsed() + next > self.patience {
                        tracing::warn!(why, spans = message.spans, "Engine spans could not be forwarded.");
                        return self.measurements.unsend(Unsent::GivenUp, message.spans);
                    }
                    tracing::debug!(why, ?next, "Forwarding of engine spans will be retried.");
                    tokio::time::sleep(next).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}
