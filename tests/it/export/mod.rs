//! Both exporters, from records to what a scraper or a collector gets.

#![allow(clippy::unwrap_used, reason = "in a test's own functions too, a panic is the right answer")]

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
