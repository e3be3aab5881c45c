//! The arithmetic of one exchange: events and times in, a [`Record`] out.
//!
//! Reads no clock and names no exporter. What is unknown stays `None`.

mod record;
mod sink;

pub use record::{Count, CountSource, Outcome, QueueSource, QueueTime, Record, TraceParent};
pub use sink::{Detach, Gap, Labels, Live, Phase, Sink};
