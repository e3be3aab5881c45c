//! The integration tests: one binary, one module per boundary or property.

mod endings;
mod export;
mod sim;
mod truth;
mod wire;
