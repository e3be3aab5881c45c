//! OTLP traces: a bounded queue and a batcher.
//!
//! Like the SDK's batch span processor, but it counts dropped spans, and its shutdown has a time limit.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::mpsc::unbounded_channel;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::Traces;
use crate::export::collect::telemetry::Telemetry;
use crate::export::otlp::Closing;
use crate::export::otlp::Command;
use crate::export::otlp::bounded;
use crate::export::otlp::delivery::Delivery;
use crate::export::otlp::delivery::Outcome;
use crate::export::otlp::endpoint;

/// Builds the spans of one request. Called on the exporter's thread, because building them costs more than all other
/// recording of a request.
pub(crate) type Layout = Box<dyn FnOnce() -> Vec<SpanData> + Send>;

/// The queue of spans waiting for export. Never blocks.
#[derive(Clone)]
pub(crate) struct SpanQueue {
    sender: UnboundedSender<Layout>,
    /// Waiting spans, including those that are not built yet.
    waiting: Arc<AtomicUsize>,
    most: usize,
    /// Wakes the batcher when a batch is full rather than for each span.
    full: Arc<Notify>,
    batch: usize,
    telemetry: Arc<Telemetry>,
}

impl std::fmt::Debug for SpanQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpanQueue").field("waiting", &self.waiting).field("most", &self.most).finish_non_exhaustive()
    }
}

impl SpanQueue {
    /// Queues all `count` spans of one request, or none if they do not fit; returns whether they were queued.
    pub(crate) fn push(&self, count: usize, layout: impl FnOnce() -> Layout) -> bool {
        let waiting = self.waiting.fetch_add(count, Ordering::Relaxed) + count;
        let taken = waiting <= self.most && self.sender.send(layout()).is_ok();
        if !taken {
            self.waiting.fetch_sub(count, Ordering::Relaxed);
            self.telemetry.spans_dropped.fetch_add(count as u64, Ordering::Relaxed);
        }
        if waiting >= self.batch {
            self.full.notify_one();
        }
        taken
    }
}

/// Exports the queued spans in batches.
pub(crate) struct Batcher {
    exporter: SpanExporter,
    delivery: Delivery,
    queue: UnboundedReceiver<Layout>,
    waiting: Arc<AtomicUsize>,
    /// Spans of a request that did not fit completely into the last batch.
    rest: Vec<SpanData>,
    full: Arc<Notify>,
    batch: usize,
    delay: Duration,
    limit: Duration,
    telemetry: Arc<Telemetry>,
}

impl Batcher {
    pub(crate) fn new(
        settings: &Traces,
        endpoint: &Endpoint,
        resource: &Resource,
        telemetry: Arc<Telemetry>,
    ) -> Result<(Batcher, SpanQueue), Error> {
        let delivery = Delivery::new(endpoint);
        let mut exporter = endpoint::span_exporter(endpoint, &delivery)?;
        exporter.set_resource(resource);
        let (sender, queue) = unbounded_channel();
        let (full, waiting) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let most = settings.queue_size.max(1);
        let batch = settings.batch_size.clamp(1, most);
        let spans = SpanQueue {
            sender,
            waiting: Arc::clone(&waiting),
            most,
            full: Arc::clone(&full),
            batch,
            telemetry: Arc::clone(&telemetry),
        };
        let (delay, limit) = (settings.schedule_delay, endpoint.timeout);
        Ok((
            Batcher { exporter, delivery, queue, waiting, rest: Vec::new(), full, batch, delay, limit, telemetry },
            spans,
        ))
    }

    /// Sends a batch when one is full, after each delay, and on request, until it receives `Close`.
    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<Command>, closing: Closing) {
        loop {
            let command = tokio::select! {
                () = tokio::time::sleep(self.delay) => None,
                () = self.full.notified() => None,
                command = commands.recv() => match command {
                    Some(command) => Some(command),
                    None => return,
                },
            };
            let good = self.drain(&closing).await;
            if command.is_some_and(|command| command.done(good)) {
                return;
            }
        }
    }

    /// Sends the spans queued now, but not those queued meanwhile: under load that would never end.
    async fn drain(&mut self, closing: &Closing) -> bool {
        let mut left = self.waiting.load(Ordering::Relaxed);
        let mut good = true;
        while left > 0 {
            let mut batch = std::mem::take(&mut self.rest);
            while batch.len() < self.batch.min(left) {
                match self.queue.try_recv() {
                    Ok(layout) => {
                        batch.extend(layout());
                        // Lets a stream that waits for this core run after each request rather than after hundreds.
                        std::thread::yield_now();
                    }
                    Err(_) => break,
                }
            }
            if batch.is_empty() {
                break;
            }
            self.rest = batch.split_off(batch.len().min(self.batch));
            self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
            left = left.saturating_sub(batch.len());
            good &= self.export(batch, closing).await;
        }
        good
    }

    async fn export(&self, batch: Vec<SpanData>, closing: &Closing) -> bool {
        let count = batch.len() as u64;
        let stated = bounded(self.exporter.export(batch), self.limit, closing).await;
        let taken = stated.is_ok();
        let Outcome { result, rejected } = self.delivery.outcome(stated);
        let sent = if taken { count.saturating_sub(rejected) } else { 0 };
        self.telemetry.spans_sent.fetch_add(sent, Ordering::Relaxed);
        self.telemetry.spans_dropped.fetch_add(count - sent, Ordering::Relaxed);
        let good = result.is_ok();
        self.telemetry.traces.done("traces", result);
        good
    }
}
