//! The admin server, on its own runtime: /metrics, health, drain, effective configuration.
//!
//! The server runs on its own thread: a busy data path cannot delay a probe, and a slow scrape cannot delay a token.
//! Clients cannot block probes: the oldest idle connection is closed when a new one needs a slot, costly pages have a
//! limit on concurrent responses, and clients that do not read their response are disconnected. The server accesses the
//! rest of the program only through [`Pages`]: a trait and some closures.

mod connection;
mod drain;
mod feed;
mod guard;
mod live;
mod local;
mod pages;
mod response;
mod server;
mod slots;

pub use drain::{Control, Draining};
pub use feed::Snapshots;
pub use local::connect as connect_locally;
pub use pages::{JsonPage, Metrics, Pages, TextPage};
pub use server::{Bound, Error, Server, Settings};
