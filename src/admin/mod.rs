//! The side door on its own runtime: /metrics, health, drain, effective configuration.
//!
//! One thread of its own, so that a busy data path cannot delay a probe and a slow scrape cannot delay a token. It knows
//! the rest of the program only through [`Pages`]: a trait and some closures.

pub mod duration;

mod client;
mod connection;
mod drain;
mod live;
mod pages;
mod server;
mod settings;

pub use client::{DrainError, Drained, drain};
pub use live::Snapshots;
pub use pages::{Control, Metrics, Pages, Told};
pub use server::{Error, Server};
pub use settings::Settings;
