//! The integration tests: one binary, one module per boundary or property.

mod admin;
mod allocation;
mod architecture;
mod config;
mod config_documents;
mod config_otel;
mod decode;
mod end_to_end;
mod endings;
mod export;
mod sim;
mod truth;
mod wire;
