//! The data path: what goes in comes out, in order, with the same ending, whatever watches it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in what it calls as well")]

mod corpus;
mod peer;
mod rig;
mod watcher;

mod captures;
mod lifecycle;
mod limits;
mod sockets;
mod transparency;
mod truncation;
