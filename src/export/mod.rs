//! The metric table and both exporters: records in, Prometheus pages and OTLP batches out.

mod settings;

pub use settings::{Endpoint, Metrics, Protocol, Sampler, Semconv, Settings, Temporality, Traces};
