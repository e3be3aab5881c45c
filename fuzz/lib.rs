//! Code shared by the fuzz targets.

pub mod cut;
pub mod observer;
pub mod scanner;
pub mod work;
