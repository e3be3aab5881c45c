//! The API dialects: the known places of response bodies, and the fields of gRPC messages.

pub(crate) mod grpc;
mod native;
mod openai;
mod place;
mod typed;

pub(crate) use place::Place;
pub use place::{EngineTiming, TokenParts};
