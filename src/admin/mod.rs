//! The side door on its own runtime: /metrics, health, drain, effective configuration.
//!
//! One thread of its own, so that a busy data path cannot delay a probe and a slow scrape cannot delay a token. It knows
//! the rest of the program only through [`Pages`]: a trait and two closures.

pub mod duration;

mod connection;
mod drain;
mod pages;
mod server;
mod settings;

pub use pages::{Control, Metrics, Pages};
pub use server::{Error, Server};
pub use settings::Settings;
