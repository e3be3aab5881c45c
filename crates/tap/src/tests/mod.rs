//! Tests of the whole tap: packets in, observer calls out.

mod connections;
mod evasion;
mod files;
mod floods;
mod headers;
mod in_progress;
mod log;
mod model;
mod network;
mod observers;
mod packets;
mod servers;
mod talk;
