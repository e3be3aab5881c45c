//! Addresses, sockets and TLS: hands accepted connections to `relay`.

mod settings;

pub use settings::{Address, ClientTls, Pair, ServerTls};
