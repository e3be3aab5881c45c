//! The admin server, on its own runtime: /metrics, health, drain, effective configuration.
//!
//! It has its own thread, so that a busy data path cannot delay a probe, and a slow scrape cannot delay a token. Probes
//! are served regardless of other clients: an idle connection is closed when another one needs its slot, the other
//! pages have limits, and a client that does not read a response loses its connection. It accesses the rest of the
//! program only through [`Pages`]: a trait and some closures.

mod connection;
mod drain;
mod feed;
mod guard;
mod live;
mod pages;
mod response;
mod server;
mod slots;

pub use drain::{Control, Draining};
pub use feed::Snapshots;
pub use pages::{JsonPage, Metrics, Pages, TextPage};
pub use server::{Bound, Error, Server, Settings};
