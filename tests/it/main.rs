//! The integration tests: one binary, one module per boundary or property.

mod admin;
mod allocation;
mod architecture;
mod coding;
mod config;
mod config_cli;
mod config_documents;
mod config_otel;
mod decode;
mod demo;
mod dialects;
mod end_to_end;
mod endings;
mod export;
mod http2;
mod measure;
mod more_engines;
mod native;
mod observer_cost;
mod recognition;
mod relay;
mod replay;
mod sim;
mod truth;
mod websocket;
mod wire;
