//! Rewrite mode: an HTTP proxy based on pingora-proxy, for the few features that have to change traffic. Its observers
//! get the same input as the relay's.
//!
//! The relay handles TLS, the connection limit and the connections to the server; pingora gets streams that are already
//! open.

mod body;
mod client;
mod deferred;
mod events;
mod framing;
mod include_usage;
mod members;
mod message;
mod proxy;
mod request;
mod settings;
mod strip_usage;
mod trace;
mod upstream;

pub use settings::Settings;
