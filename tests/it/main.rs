//! The integration tests: one binary, one module per boundary or property.

mod admin;
mod config;
mod config_cli;
mod config_documents;
mod config_otel;
