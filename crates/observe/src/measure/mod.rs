//! Calculations for one request: events and times in, a [`Record`] out.
//!
//! Reads no clock and depends on no exporter. Unknown values stay `None`.

mod asked;
mod blocked;
mod closing;
mod engine_span;
mod exchange;
mod gaps;
mod inbox;
mod models;
mod outcome;
mod phases;
mod record;
mod since;
mod sink;
mod stage;
mod targets;
#[cfg(test)]
mod tests;
mod thresholds;
mod timeline;
mod tokens;
mod uncounted;
mod waited;
mod watch;

pub use asked::{Asked, Profile};
pub use blocked::Blocked;
pub use closing::Closing;
pub use engine_span::EngineSpan;
pub use exchange::Exchange;
pub use inbox::Inbox;
pub use models::{LABEL_IDLE, Models};
pub use outcome::Ending;
pub use phases::{Interval, PhaseKind, Phases};
pub use record::{Count, CountSource, Outcome, QueueSource, QueueTime, Record, TraceParent};
pub use sink::{Detach, Gap, Labels, Live, Message, Phase, Sink, Unread};
pub use stage::Stage;
pub use targets::Targets;
pub use thresholds::Thresholds;
pub use timeline::{POINTS, Point, TimeLine};
pub use tokens::Habits;
pub use uncounted::{TextTokens, Uncounted, UncountedText};
pub use watch::{Opening, Requested, Watch, Watches};
