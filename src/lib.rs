//! Tokometer: a transparent reverse proxy (sidecar) that measures LLM token streams.
//!
//! This crate contains the commands, the configuration and the admin server, and connects the crates under `crates/`
//! (`docs/concepts/architecture.md`).

// The admin port: /metrics, health, drain, effective configuration.
pub mod admin;

// Connects all parts.
pub mod app;

// The command line.
pub mod cli;

// An HTTP/1.1 client for the commands, which records response bytes and their arrival times.
pub mod client;

// Settings from YAML, environment and flags, validated.
pub mod config;

// Logs of tokometer itself, and the queue that keeps a blocked output from delaying a stream.
pub mod logging;

// Runs recordings of real servers and packet captures through the observer, and prints their requests.
pub mod replay;

// The terminal display of requests in flight.
pub mod top;

// Canary requests, sent directly and through the proxy.
pub mod verify;
