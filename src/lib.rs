//! Tokometer: a speedometer for LLM token streams.
//!
//! The modules in the order in which bytes and numbers pass them (`docs/ARCHITECTURE.md` is the map, and
//! `tests/it/architecture.rs` holds its import rules):

// Addresses, sockets and TLS: hands accepted connections to `relay`.
pub mod listen;

// Two byte streams, relayed unchanged; shows what passed to an observer, after it was forwarded.
pub mod relay;

// HTTP/1.1 message boundaries: byte slices in; heads, body slices and message ends out.
pub mod wire;

// Framing (SSE, JSON), the resumable JSON scanner, and the dialects: body slices in, events out.
pub mod decode;

// The arithmetic of one exchange: events and times in, a record out.
pub mod measure;

// One connection from its first byte to its last: joins wire, decode and measure, and contains their faults.
pub mod observe;

// The metric table and both exporters: records in, Prometheus pages and OTLP batches out.
pub mod export;

// The side door: /metrics, health, drain, effective configuration.
pub mod admin;

// YAML, environment, flags, defaults: everything a person may set, checked.
pub mod config;

// A simulated inference server and a load generator, for `demo`, tests and benches.
pub mod sim;

// Reads recordings of real servers and runs them through observe and measure.
pub mod replay;

// The command line.
pub mod cli;

// Builds the pieces and joins them: the only place that sees them all.
pub mod app;
