//! Calculations for one request: converts its events and times to a [`Record`].
//!
//! Times are passed in, and no exporter is used here. Unknown values stay `None`.

mod completion;
mod inbox;
mod models;
mod phases;
mod record;
mod request;
mod sink;
mod slots;
mod timeline;
mod tokens;
mod watch;

pub use completion::{EngineSpan, TextTokens, Uncounted, UncountedText};
pub use inbox::Inbox;
pub use models::Models;
pub use phases::{Interval, PhaseKind, Phases};
pub use record::{
    Count, CountSource, DecodeRate, EngineValues, Outcome, QueueSource, QueueTime, Record, RequestTimes, RequestValues,
    ResponseValues, TokenCounts, TokenGaps, TraceParent,
};
pub use request::cadence;
pub use request::{Blocked, Closing, Ending, Parameters, Request, Server, Thresholds};
pub use sink::{Detach, Gap, Labels, Live, Message, Phase, Sink, Stage, Unread};
pub use slots::{Candidates, LABEL_IDLE, Placed, Slots, Usage};
pub use timeline::{POINTS, Point, TimeLine};
pub(crate) use watch::number_text;
pub use watch::{Opening, Requested, Targets, Watch, Watches};
