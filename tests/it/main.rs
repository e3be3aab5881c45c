//! The integration tests: one binary, one module per boundary or property.

mod relay;
