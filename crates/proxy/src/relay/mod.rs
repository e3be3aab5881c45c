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
mod settings;
mod slots;
mod stats;
mod stream;

pub use admission::{DESCRIPTORS_PER_CONNECTION, Guard, OpenRequest, OpenRequests, Relay};
pub use drain::{Drain, Hold, Phase};
pub use lag::{Delays, lateness};
pub use refuse::error_body;
pub use settings::{Settings, Unreachable};
pub use stats::rewrites::{Outcome, Rewrite, Rewrites};
pub use stats::unreached::Unreached;
pub use stats::{Evicted, Full, Stats};
pub use stream::{Endpoint, Stream};

pub(crate) use drain::Listening;
pub(crate) use lag::watch as watch_lag;
