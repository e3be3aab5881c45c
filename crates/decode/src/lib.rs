//! Decodes request and response bodies into [`StreamEvent`]s: framing, a resumable JSON scanner, and one file per API
//! dialect.
//!
//! No clock, no sockets, no exporters. Memory use is fixed, independent of the event size.

mod dialect;
mod done;
mod enums;
mod event;
mod framing;
mod prediction;
mod request;
mod response;
mod route;
mod scan;
#[cfg(test)]
mod tests;
mod text;

pub use event::{Channels, Counter, EngineFacts, EngineTiming, FinishReason, Finishes, StreamEvent, Usage};
pub use framing::Framing;
pub use request::{RequestDecoder, RequestFacts};
pub use response::{Each, ResponseDecoder, Said};
pub use route::{Route, Work};
pub use text::{AnswerText, TextLimits, TextLost, TextMemory};
