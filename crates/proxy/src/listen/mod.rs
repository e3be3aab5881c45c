//! Addresses, sockets and TLS: hands accepted connections to `relay`.
//!
//! Sockets are opened and files are read before serving starts (`bind`, `serve`), so their errors are reported at
//! startup. The socket of each connection that pingora accepts is taken out of pingora and handed to the relay.
//!
//! Only the accept loop of pingora-core 0.9.1 is used. Its other parts are not suitable:
//!
//! - The listeners retry an address in use for 30 s and then panic, do not report the port chosen for port 0, and
//!   remove any file at the path of a Unix socket, even the socket of a running process. Instead, pingora is given open
//!   sockets (`ListenFds`), which also allows one socket per thread and an orderly close.
//! - The TLS acceptor panics when a file is unreadable. After a handshake it returns only the socket's number, but
//!   resets, truncation and the original destination need the socket. The feature `rustls` would also add dependencies
//!   (x509-parser, ouroboros) to the build.
//! - The connectors resolve a host name only once, and keep a connection pool that a one-to-one relay does not need.

mod bind;
mod descriptor;
mod error;
mod frontend;
mod gate;
mod handler;
mod probe;
mod service;
mod settings;
mod tls;
mod upstream;

pub use bind::{Bound, bind, reserve, without_address};
pub use error::Error;
pub use gate::Gate;
pub use handler::{Client, Handler, Handlers, Route, Server};
pub use probe::{DirectClients, Interception, Probe, Reached, intercepts};
pub use service::{Worker, gated, serve};
pub use settings::{Address, ClientTls, Listener, ServerTls};
pub use tls::{unverified_tls, usable_tls};

pub use tls::Protocol;
pub use upstream::Upstream;
