//! Both exporters, from records to what a scraper or a collector gets.

mod collector;
mod docs;
mod otlp;
mod prometheus;
mod records;
mod text;
mod tls;
mod traces;
