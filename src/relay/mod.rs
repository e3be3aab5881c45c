//! The data path: two byte streams, relayed unchanged.
//!
//! Bytes are read into a per-thread scratch buffer, timed, written to the other side, and only then shown to the
//! connection's [`Observer`]. Nothing here knows HTTP, JSON or exporters, and nothing an observer does can change,
//! delay or end a stream.

mod observer;
mod settings;

pub use observer::{Close, Connection, Direction, Observe, Observer, Side};
pub use settings::{Settings, Unreachable};
