//! Queue times from the engine's own spans: an OTLP receiver, a joiner, and a forwarder.
//!
//! The engine's `--otlp-traces-endpoint` points to this receiver. Each export request gets a response, is forwarded
//! unmodified to the configured collector, and is parsed for request spans, which are joined to the requests that the
//! relay observed. None of this runs on the data path's threads: they hand over records through a bounded queue.

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

/// Parses an `ExportTraceServiceRequest` like the receiver: the number of its spans and how many of them describe a
/// request; `None` when the message is invalid.
pub fn read(message: &[u8]) -> Option<(u64, u64)> {
    let mut requests = 0;
    let is_request = |meaning| matches!(meaning, Meaning::Request(_));
    let spans = spans::read(message, |span| requests += u64::from(is_request(engine::meaning(&span))));
    spans.ok().map(|spans| (spans, requests))
}
