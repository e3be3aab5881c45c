//! OTLP traces: a bounded queue and a batcher.
//!
//! Like the SDK's batch span processor, but it counts what it drops, and its shutdown has a limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::channel;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::Traces;
use crate::export::otlp::Closing;
use crate::export::otlp::Command;
use crate::export::otlp::bounded;
use crate::export::otlp::endpoint;
use crate::export::telemetry::Telemetry;

/// Where spans wait. Never blocks.
#[derive(Clone, Debug)]
pub(crate) struct SpanQueue {
    sender: Sender<SpanData>,
    /// Wakes the batcher when a batch is full, and not for each span.
    full: Arc<Notify>,
    batch: usize,
    telemetry: Arc<Telemetry>,
}

impl SpanQueue {
    /// Takes all `count` spans of one exchange, or none when there is no room for them; then they are not even made.
    pub(crate) fn push(&self, count: usize, spans: impl FnOnce() -> Vec<SpanData>) {
        match self.sender.try_reserve_many(count) {
            Ok(permits) => permits.zip(spans()).for_each(|(permit, span)| permit.send(span)),
            Err(_) => {
                self.telemetry.spans_dropped.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
        if self.sender.max_capacity() - self.sender.capacity() >= self.batch {
            self.full.notify_one();
        }
    }
}

/// Sends what is in the queue.
pub(crate) struct Batcher {
    exporter: SpanExporter,
    queue: Receiver<SpanData>,
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
        let mut exporter = endpoint::span_exporter(endpoint)?;
        exporter.set_resource(resource);
        let (sender, queue) = channel(settings.queue_size.max(1));
        let full = Arc::new(Notify::new());
        let batch = settings.batch_size.clamp(1, settings.queue_size.max(1));
        let spans = SpanQueue { sender, full: Arc::clone(&full), batch, telemetry: Arc::clone(&telemetry) };
        let delay = settings.schedule_delay;
        Ok((Batcher { exporter, queue, full, batch, delay, limit: endpoint.timeout, telemetry }, spans))
    }

    /// Sends a batch when one is full, after each delay, and when asked, until it is told to close.
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

    /// Sends what is in the queue now, and not what comes meanwhile: under load that would never end.
    async fn drain(&mut self, closing: &Closing) -> bool {
        let mut left = self.queue.len();
        let mut good = true;
        while left > 0 {
            let mut batch = Vec::with_capacity(left.min(self.batch));
            while batch.len() < self.batch.min(left) {
                match self.queue.try_recv() {
                    Ok(span) => batch.push(span),
                    Err(_) => break,
                }
            }
            if batch.is_empty() {
                break;
            }
            left -= batch.len();
            good &= self.export(batch, closing).await;
        }
        good
    }

    async fn export(&self, batch: Vec<SpanData>, closing: &Closing) -> bool {
        let count = batch.len() as u64;
        let result = bounded(self.exporter.export(batch), self.limit, closing).await;
        let good = result.is_ok();
        let counter = if good { &self.telemetry.spans_sent } else { &self.telemetry.spans_dropped };
        counter.fetch_add(count, Ordering::Relaxed);
        self.telemetry.traces.done("traces", result);
        good
    }
}
