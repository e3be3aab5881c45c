//! From request records to metrics and traces: the metric catalogue, the Prometheus and OTLP exporters, live state,
//! objectives, accounting, and the tokenizer that counts what no engine counted.

pub mod accounting;
pub mod backlog;
pub mod export;
pub mod live;
pub mod slo;
pub mod tokenizer;

mod batches;
