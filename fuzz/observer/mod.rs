//! Scripted connections, and a sink that checks its calls.

pub(crate) mod log;
pub(crate) mod script;
