//! The data path: relays two byte streams unmodified.
//!
//! Bytes are read into a per-thread scratch buffer, timestamped, written to the other side, and only then passed to the
//! connection's `Observer`. No code here handles HTTP (except the response in `refuse`), JSON or exporters. An observer
//! cannot change or end a stream.

mod admission;
mod drain;
mod forward;
mod joined;
mod lag;
mod refuse;
mod reset;
mod rewrites;
mod settings;
mod slots;
mod stats;
mod stream;
mod tcp_info;
mod unreached;

pub use admission::{DESCRIPTORS_PER_CONNECTION, Relay};
pub use drain::{Drain, Hold, Phase};
pub use lag::Delays;
pub use rewrites::{Outcome, Rewrite, Rewrites};
pub use settings::{Settings, Unreachable};
pub use stats::{Evicted, Full, Stats};
pub use stream::{Endpoint, Stream};
pub use unreached::Unreached;

pub(crate) use admission::{Guard, OpenRequest, OpenRequests};
pub(crate) use drain::Listening;
pub(crate) use lag::{lateness, watch as watch_lag};
pub(crate) use refuse::error_body;
