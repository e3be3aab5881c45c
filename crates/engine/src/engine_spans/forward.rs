//! Every message goes on to the configured collector, unchanged and in the order in which they came.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine_spans::message::Message;
use crate::engine_spans::stats::Figures;
use crate::engine_spans::stats::Unsent;

/// The first pause before a message is tried again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a collector said to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It took it, but for so many spans.
    Taken {
        /// Spans that it rejected.
        rejected: u64,
    },
    /// It may take it later; after this time, if it said so.
    Later(Option<Duration>, String),
    /// It will never take it.
    Refused(String),
}

/// Where messages go on to.
#[async_trait]
pub trait Collector: Send + Sync + 'static {
    /// Sends an `ExportTraceServiceRequest` in protobuf with these headers, once.
    async fn export(&self, message: Bytes, headers: HeaderMap) -> Reply;
}

/// When everything has to end; `None` while nobody asked.
pub(crate) type Closing = watch::Receiver<Option<Instant>>;

/// Forwards until there are no more messages, or the time for the last ones is over.
pub(crate) async fn run(
    collector: Arc<dyn Collector>,
    mut inbox: UnboundedReceiver<Message>,
    patience: Duration,
    figures: Arc<Figures>,
    mut closing: Closing,
) {
    while let Some(message) = inbox.recv().await {
        let forwarder = Forwarder { collector: &*collector, patience, figures: &figures };
        tokio::select! {
            biased;
            () = forwarder.deliver(&message) => {}
            () = over(&mut closing) => {
                figures.unsend(Unsent::Shutdown, message.spans);
                break;
            }
        }
    }
    inbox.close();
    while let Ok(message) = inbox.try_recv() {
        figures.unsend(Unsent::Shutdown, message.spans);
    }
}

/// Comes to an end when the time for the last messages is over.
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
    figures: &'a Figures,
}

impl Forwarder<'_> {
    async fn deliver(&self, message: &Message) {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.collector.export(message.bytes.clone(), message.headers.clone()).await {
                Reply::Taken { rejected } => {
                    let rejected = rejected.min(message.spans);
                    self.figures.forward(message.spans - rejected);
                    self.figures.unsend(Unsent::Rejected, rejected);
                    return;
                }
                Reply::Refused(why) => {
                    tracing::warn!(why, spans = message.spans, "The collector does not take spans of the engine.");
                    return self.figures.unsend(Unsent::Refused, message.spans);
                }
                Reply::Later(after, why) => {
                    let jitter = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                    let next = after.unwrap_or(jitter).min(LONGEST_PAUSE);
                    if begun.elapsed() + next > self.patience {
                        tracing::warn!(why, spans = message.spans, "Spans of the engine could not be forwarded.");
                        return self.figures.unsend(Unsent::GivenUp, message.spans);
                    }
                    tracing::debug!(why, ?next, "Spans of the engine will be forwarded later.");
                    tokio::time::sleep(next).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}
