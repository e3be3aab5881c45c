//! Both exporters, from records to what a scraper or a collector gets.

#![allow(clippy::unwrap_used, reason = "in a test's own functions too, a panic is the right answer")]

mod classes;
mod collector;
mod docs;
mod otlp;
mod prometheus;
mod records;
mod text;
mod tls;
mod tokens;
mod traces;
