//! The integration tests: one binary, one module per boundary or property.

mod endings;
mod truth;
mod wire;
