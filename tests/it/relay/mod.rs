//! The data path forwards bytes unmodified, in order and with the same ending, whatever its observers do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in helper functions")]

pub(crate) mod corpus;
pub(crate) mod peer;
pub(crate) mod rig;
mod watcher;

pub(crate) mod captures;
mod late;
mod lifecycle;
mod limits;
pub(crate) mod sockets;
mod transparency;
mod truncation;
mod unreached;
