//! The integration tests: one binary, one module per boundary or property.

mod config;
mod config_documents;
mod config_otel;
