//! Both exporters, from records to what a scraper or a collector gets.

mod docs;
mod prometheus;
mod records;
mod text;
