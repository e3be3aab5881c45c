//! The side door on its own runtime: /metrics, health, drain, effective configuration.
//!
//! One thread of its own, so that a busy data path cannot delay a probe and a slow scrape cannot delay a token. Probes are answered
//! whatever other clients do: a connection without a complete request is closed when another one needs its place, the other pages have
//! limits of their own, and a client that does not take a response loses its connection. It knows
//! the rest of the program only through [`Pages`]: a trait and some closures.

pub mod duration;

mod client;
mod connection;
mod content;
mod drain;
mod guard;
mod live;
mod paced;
mod pages;
mod places;
mod server;
mod settings;

pub use client::{DrainError, Drained, drain};
pub use live::Snapshots;
pub use pages::{Control, Draining, Metrics, Pages, Rendered, Told};
pub use server::{Error, Server};
pub use settings::Settings;
