//! Code shared by the fuzz targets.

pub mod cut;
pub mod engine_spans;
pub mod scrape;
pub mod work;
