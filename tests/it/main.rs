//! The integration tests: one binary, one module per boundary or property.

mod end_to_end;
mod endings;
mod export;
mod sim;
mod truth;
mod wire;
