//! What the fuzz targets share.

pub mod cut;
pub mod engine_spans;
pub mod scrape;
pub mod work;
