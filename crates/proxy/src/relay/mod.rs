//! The data path: two byte streams, relayed unchanged.
//!
//! Bytes are read into a per-thread scratch buffer, timed, written to the other side, and only then shown to the
//! connection's `Observer`. Nothing here knows HTTP, JSON or exporters (but for the one answer in `refuse`), and nothing
//! an observer does can change or end a stream.

mod drain;
mod entrance;
mod guard;
mod joined;
mod lag;
mod lane;
mod refuse;
mod reset;
mod scratch;
mod settings;
mod stats;
mod stream;

pub use drain::{Drain, Phase};
pub use entrance::{Accepted, DESCRIPTORS_PER_CONNECTION, Relay};
pub use joined::Joined;
pub use lag::LagClock;
pub use settings::{Settings, Unreachable};
pub use stats::{Full, Stats};
pub use stream::{Endpoint, Socket, Stream};

pub(crate) use drain::Listening;
