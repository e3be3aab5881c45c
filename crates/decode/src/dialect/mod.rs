//! The API dialects: the tree of known places, and the interpretation of the values found there.

mod anthropic_messages;
mod capture;
mod cohere_chat;
mod draft;
mod grpc;
mod grpc_request;
mod input_only;
mod keeping;
mod kind;
mod llama_cpp;
mod marks;
mod native;
mod nvext;
mod ollama;
mod openai;
mod openai_chat;
mod openai_completions;
mod openai_responses;
mod place;
mod reading;
mod sglang;
mod tgi;
mod transcription;
mod triton;
mod usage;
mod vllm_generate;

pub(crate) use capture::Capture;
pub(crate) use draft::Facts;
pub(crate) use grpc::GrpcAnswer;
pub(crate) use grpc_request::{Asks, asks};
pub(crate) use keeping::Keeping;
pub(crate) use place::Place;
pub(crate) use reading::Reading;
pub(crate) use usage::skip_counts;
