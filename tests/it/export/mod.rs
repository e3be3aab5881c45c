//! Both exporters, from request records to the data received by a scraper or a collector.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod classes;
pub(crate) mod collector;
mod docs;
mod labels;
pub(crate) mod otlp;
mod prometheus;
pub(crate) mod records;
pub(crate) mod text;
mod tls;
mod tokens;
mod traces;
