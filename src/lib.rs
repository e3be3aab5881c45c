//! Tokometer: a speedometer for LLM token streams.
//!
//! The modules in the order in which bytes and numbers pass them (`docs/ARCHITECTURE.md` is the map, and
//! `tests/it/architecture.rs` holds its import rules):

// Addresses, sockets and TLS: hands accepted connections to `relay`.
pub mod listen;

// Two byte streams, relayed unchanged; shows what passed to an observer, after it was forwarded.
pub mod relay;

// Limits on the memory and work that clients can cause, for all that reads foreign bytes.
pub mod budget;

// HTTP/1.1 message boundaries: byte slices in; heads, body slices and message ends out.
pub mod wire;

// Framing (SSE, JSON), the resumable JSON scanner, and the dialects: body slices in, events out.
pub mod decode;

// The arithmetic of one exchange: events and times in, a record out.
pub mod measure;

// One connection from its first byte to its last: joins wire, decode and measure, and contains their faults.
pub mod observe;

// Counts the text of answers that nobody counted: records in, the same records out, off the data path.
pub mod tokenizer;

// What is in flight, whether the engine still works, and what ended last.
pub mod live;

// Objectives, and the judgement of every exchange by them: records in, counts of good and bad out.
pub mod slo;

// Who used how many tokens, and what they cost: records in, sums by tenant, model and budget out.
pub mod ledger;

// Rules for Prometheus and its kin, made from the objectives and the metric table.
pub mod rules;

// Dashboards for Grafana, made from the same.
pub mod dashboards;

// The engine's own metrics, read every few seconds: pages in, the engine's state out.
pub mod scrape;

// The metric table and both exporters: records in, Prometheus pages and OTLP batches out.
pub mod export;

// The engine's own spans: an OTLP receiver, what joins them to records, and what forwards them.
pub mod queue;

// The side door: /metrics, health, drain, effective configuration.
pub mod admin;

// YAML, environment, flags, defaults: everything a person may set, checked.
pub mod config;

// A simulated inference server and a load generator, for `demo`, tests and benches.
pub mod sim;

// Reads recordings of real servers and runs them through observe and measure.
pub mod replay;

// A plain client of HTTP/1.1 for the commands below: bytes and their times.
pub mod client;

// Canary requests beside and through a relay: is it fast, exact, and the only way to the server?
pub mod verify;

// What passes at this moment, in a terminal: snapshots of `live` in, pictures out.
pub mod top;

// Puts the sidecar into the pods of Kubernetes manifests: text in, text out.
pub mod attach;

// The command line.
pub mod cli;

// Builds the pieces and joins them: the only place that sees them all.
pub mod app;
