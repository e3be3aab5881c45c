//! The arithmetic of one exchange: events and times in, a [`Record`] out.
//!
//! Reads no clock and names no exporter. What is unknown stays `None`.

mod exchange;
mod gaps;
mod outcome;
mod record;
mod since;
mod sink;
#[cfg(test)]
mod tests;
mod tokens;

pub use exchange::{Asked, Closing, Exchange, Profile, Thresholds};
pub use outcome::Ending;
pub use record::{Count, CountSource, Outcome, QueueSource, QueueTime, Record, TraceParent};
pub use sink::{Detach, Gap, Labels, Live, Message, Phase, Sink, Unread};
pub use tokens::Habits;
