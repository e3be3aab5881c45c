//! OTLP traces: a bounded queue and a batcher.
//!
//! Similar to the SDK's batch span processor, but dropped spans are counted, and the shutdown has a time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::export::collect::telemetry::Telemetry;
use crate::export::otlp::delivery::Delivery;
use crate::export::otlp::{Closing, Command, bounded, delivery};
use crate::export::{Endpoint, Error, Traces};

/// Builds the spans of one request. Called on the exporter's thread, because this takes longer than all other recording
/// of a request.
pub(crate) type Layout = Box<dyn FnOnce() -> Vec<SpanData> + Send>;

/// State of the span queue, shared by senders and batcher.
struct Waiting {
    /// Number of spans in the queue, including those that are not built yet.
    spans: AtomicUsize,
    most: usize,
    batch: usize,
    /// Wakes the batcher only when a full batch is queued, not for each span.
    full: Notify,
    telemetry: Arc<Telemetry>,
}

/// The sender of the span queue. Never blocks.
#[derive(Clone)]
pub(crate) struct SpanQueue {
    sender: UnboundedSender<Layout>,
    waiting: Arc<Waiting>,
}

impl SpanQueue {
    /// Queues all `count` spans of one request, or none if they do not fit; returns whether they were queued.
    pub(crate) fn push(&self, count: usize, layout: impl FnOnce() -> Layout) -> bool {
        let waiting = &self.waiting;
        let spans = waiting.spans.fetch_add(count, Ordering::Relaxed) + count;
        let taken = spans <= waiting.most && self.sender.send(layout()).is_ok();
        if !taken {
            waiting.spans.fetch_sub(count, Ordering::Relaxed);
            waiting.telemetry.spans_dropped.fetch_add(count as u64, Ordering::Relaxed);
        }
        if spans >= waiting.batch {
            waiting.full.notify_one();
        }
        taken
    }
}

/// Exports the queued spans in batches.
pub(crate) struct Batcher {
    exporter: SpanExporter,
    delivery: Delivery,
    queue: UnboundedReceiver<Layout>,
    waiting: Arc<Waiting>,
    /// Spans left over from the last batch: the spans of a request are taken from the queue together, and may exceed
    /// the batch size.
    rest: Vec<SpanData>,
    delay: Duration,
    limit: Duration,
}

impl Batcher {
    pub(crate) fn new(
        settings: &Traces,
        endpoint: &Endpoint,
        resource: &Resource,
        telemetry: Arc<Telemetry>,
    ) -> Result<(Batcher, SpanQueue), Error> {
        let (mut exporter, delivery) = delivery::span_exporter(endpoint)?;
        exporter.set_resource(resource);
        let (sender, queue) = unbounded_channel();
        let most = settings.queue_size.max(1);
        let batch = settings.batch_size.clamp(1, most);
        let waiting = Arc::new(Waiting { spans: AtomicUsize::new(0), most, batch, full: Notify::new(), telemetry });
        let spans = SpanQueue { sender, waiting: Arc::clone(&waiting) };
        let (delay, limit) = (settings.schedule_delay, endpoint.timeout);
        Ok((Batcher { exporter, delivery, queue, waiting, rest: Vec::new(), delay, limit }, spans))
    }

    /// Sends a batch when one is full, after each delay, and on request, until it receives a command with `close`.
    pub(super) async fn run(mut self, mut commands: UnboundedReceiver<Command>, closing: Closing) {
        loop {
            let command = tokio::select! {
                () = tokio::time::sleep(self.delay) => None,
                () = self.waiting.full.notified() => None,
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

    /// Sends the spans that are in the queue at the start of the call. Under load, sending later spans too could keep
    /// the call from returning.
    async fn drain(&mut self, closing: &Closing) -> bool {
        let mut left = self.waiting.spans.load(Ordering::Relaxed);
        let mut good = true;
        while left > 0 {
            let mut batch = std::mem::take(&mut self.rest);
            while batch.len() < self.waiting.batch.min(left) {
                match self.queue.try_recv() {
                    Ok(layout) => {
                        batch.extend(layout());
                        // Yields this core to the data path's threads after each request, not only after a whole batch.
                        std::thread::yield_now();
                    }
                    Err(_) => break,
                }
            }
            if batch.is_empty() {
                break;
            }
            self.rest = batch.split_off(batch.len().min(self.waiting.batch));
            self.waiting.spans.fetch_sub(batch.len(), Ordering::Relaxed);
            left = left.saturating_sub(batch.len());
            good &= self.export(batch, closing).await;
        }
        good
    }

    async fn export(&self, batch: Vec<SpanData>, closing: &Closing) -> bool {
        let count = batch.len() as u64;
        let exported = bounded(self.exporter.export(batch), self.limit, closing).await;
        let taken = exported.is_ok();
        let (result, rejected) = self.delivery.outcome(exported);
        let sent = if taken { count.saturating_sub(rejected) } else { 0 };
        let telemetry = &self.waiting.telemetry;
        telemetry.spans_sent.fetch_add(sent, Ordering::Relaxed);
        telemetry.spans_dropped.fetch_add(count - sent, Ordering::Relaxed);
        let good = result.is_ok();
        telemetry.traces.done("traces", result);
        good
    }
}
