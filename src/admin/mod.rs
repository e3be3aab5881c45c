//! The side door on its own runtime: /metrics, health, drain, effective configuration.

mod settings;

pub use settings::Settings;
