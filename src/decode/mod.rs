//! Body bytes in, [`StreamEvent`]s out: framing, a resumable JSON scanner, and one file per API dialect.
//!
//! No clock, no sockets, no exporters; fixed memory whatever the size of an event.

mod event;
mod route;

pub use event::{Channels, EngineFacts, EngineTiming, FinishReason, Finishes, StreamEvent, Usage};
pub use route::Route;
