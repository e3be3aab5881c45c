//! The data path: what goes in comes out, in order, with the same ending, whatever watches it.

mod corpus;
mod peer;
mod rig;
mod watcher;

mod captures;
mod lifecycle;
mod sockets;
mod transparency;
