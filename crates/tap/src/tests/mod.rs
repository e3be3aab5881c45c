//! Tests of whole taps: packets in, calls of observers out.

mod connections;
mod files;
mod headers;
mod in_progress;
mod log;
mod model;
mod network;
mod observers;
mod packets;
mod servers;
mod talk;
