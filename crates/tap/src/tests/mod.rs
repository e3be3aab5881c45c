//! Tests of the whole tap: packets in, observer calls out.

mod connections;
mod evasion;
mod files;
mod headers;
mod in_progress;
pub(crate) mod log;
mod model;
mod network;
mod observers;
pub(crate) mod packets;
pub(crate) mod talk;
