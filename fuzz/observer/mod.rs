//! Scripted connections, and a sink that checks its calls.

pub mod log;
pub mod script;
