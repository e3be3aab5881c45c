//! Addresses, sockets and TLS: hands accepted connections to `relay`.
//!
//! Sockets are opened and files are read before anything runs (`bind`, `serve`), so that their errors are reported at
//! startup. pingora accepts; the socket then leaves pingora and belongs to the relay.

mod bind;
mod descriptor;
mod error;
mod frontend;
mod interception;
mod service;
mod settings;
mod tls;
mod upstream;

pub use bind::{Bound, bind};
pub use error::Error;
pub use interception::{Interception, intercepts};
pub use service::{Worker, serve};
pub use settings::{Address, ClientTls, Listener, ServerTls};
pub use tls::usable_tls;

pub use tls::Protocol;
pub use upstream::Upstream;
