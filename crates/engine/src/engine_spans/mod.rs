//! Queue times from the engine's own spans: an OTLP receiver, a joiner, and a forwarder.
//!
//! The engine's `--otlp-traces-endpoint` points here. Each export request is answered, goes on to the configured collector
//! as it came, and is read on the side for the spans of requests; these are joined to the exchanges that the relay saw. None
//! of this runs on the data path's threads: what they hand over goes to a bounded queue.

mod answer;
mod budget;
mod connection;
mod engine;
mod forward;
mod intake;
mod joiner;
mod message;
mod protobuf;
mod receiver;
mod settings;
mod spans;
mod stage;
mod stages;
mod stats;
#[cfg(test)]
mod tests;

use crate::engine_spans::engine::Meaning;

pub use forward::{Collector, Reply};
pub use receiver::{Error, Receiver};
pub use settings::Settings;
pub use stage::SpanJoin;
pub use stats::{Figures, Join, Lost, Refusal, Unsent};

/// Reads an `ExportTraceServiceRequest` as the receiver does: the number of its spans, and how many of them tell of a
/// request; `None` when it is no such message.
pub fn read(message: &[u8]) -> Option<(u64, u64)> {
    let mut requests = 0;
    let is_request = |meaning| matches!(meaning, Meaning::Request(_));
    let spans = spans::read(message, |span| requests += u64::from(is_request(engine::meaning(&span))));
    spans.ok().map(|spans| (spans, requests))
}
