//! Decodes request and response bodies into [`StreamEvent`]s: framing, a resumable JSON scanner, and the API dialects.
//!
//! No clock, no sockets, no exporters. Memory use is fixed, independent of the event size.

mod dialect;
pub mod engine;
mod event;
pub mod framing;
mod request;
mod response;
mod route;
pub mod scan;
#[cfg(test)]
mod tests;
mod text;

pub use dialect::{EngineTiming, TokenParts};
pub use engine::{Engine, EngineFacts, EngineHabits, HeadMarks};
pub use event::{Channels, Counter, FinishReason, Finishes, StreamEvent, Usage};
pub use framing::Framing;
pub use request::{Aborted, OutputLimit, RequestDecoder, RequestFacts};
pub use response::{ResponseDecoder, ResponseInfo};
pub use route::{Route, Work};
pub use text::{ResponseText, TextLimits, TextLost, TextMemory};

/// Compiles the example in the readme.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
