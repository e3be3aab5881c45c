//! The integration tests: one binary, one module per boundary or property.

mod access_log;
mod accounting;
mod admin;
mod admin_hostile;
mod allocation;
mod chart;
mod coding;
mod config;
mod config_cli;
mod config_documents;
mod config_files;
mod config_otel;
mod dashboards;
mod decode;
mod demo;
mod descriptors;
mod dialects;
mod end_to_end;
mod endings;
mod excerpt;
mod export;
mod http2;
mod inject;
mod injected;
mod listener;
mod live;
mod live_page;
mod live_snapshot;
mod measure;
mod mistakes;
mod more_engines;
mod native;
mod observer_cost;
mod phases;
mod pod_end;
mod program;
mod queue;
mod reach;
mod recognition;
mod relay;
mod replay;
mod rules;
mod scrape;
mod sim;
mod slo;
#[cfg(feature = "tokenizer")]
mod tokenizer;
mod top;
mod truth;
mod untrusted;
mod verify;
mod websocket;
mod wire;

/// Timeout for any step on a busy machine. Only a failing test waits this long.
const WAIT: std::time::Duration = std::time::Duration::from_secs(120);
