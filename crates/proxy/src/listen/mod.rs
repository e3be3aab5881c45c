//! Addresses, sockets and TLS: hands accepted connections to `relay`.
//!
//! Sockets are opened and files are read before anything runs (`bind`, `serve`), so that their errors are reported at
//! startup. pingora accepts; the socket then leaves pingora and belongs to the relay.
//!
//! Of pingora-core 0.9.1, only the accept loop is used. What prevents the rest:
//!
//! - Its listeners retry a used address for 30 s and then panic, do not report the port chosen for port 0, and remove any
//!   file at the path of a Unix socket, also the socket of a running process. It accepts open sockets instead
//!   (`ListenFds`), which also allows one socket per thread and an orderly close.
//! - Its TLS acceptor panics when a file is unreadable. After a handshake, it gives the socket only by number, while
//!   resets, truncation and the original destination need the socket. Its feature `rustls` also adds dependencies
//!   (x509-parser, ouroboros) to the build.
//! - Its connectors resolve a host name once, and keep a pool that a relay of one connection to one has no use for.

mod bind;
mod descriptor;
mod error;
mod frontend;
mod gate;
mod probe;
mod rotation;
mod service;
mod settings;
mod tls;
mod upstream;

pub use bind::{Bound, bind, reserve, without_address};
pub use error::Error;
pub use gate::Gate;
pub use probe::{Interception, Reached, intercepts, reach};
pub use service::{Worker, gated, serve};
pub use settings::{Address, ClientTls, Listener, ServerTls};
pub use tls::usable_tls;

pub use tls::Protocol;
pub use upstream::Upstream;
