//! The inference server's own telemetry: its metrics page, scraped, and its spans, received over OTLP.

pub mod engine_spans;
pub mod scrape;
