//! Connections by a script, and a sink that checks what it is told of them.

pub(crate) mod log;
pub(crate) mod script;
