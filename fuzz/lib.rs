//! Code shared by the fuzz targets.

pub mod cut;
pub mod work;
