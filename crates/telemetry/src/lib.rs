//! Turns request records into metrics and traces: the metric catalogue, the Prometheus and OTLP exporters, live state,
//! objectives and accounting. An optional tokenizer counts the tokens of responses that have no engine count.

pub mod accounting;
pub mod backlog;
pub mod export;
pub mod fields;
pub mod live;
pub mod slo;
pub mod tokenizer;

mod batches;
