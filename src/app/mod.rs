//! Builds the pieces and joins them: the only place that sees them all.

pub mod access_log;
pub mod lines;
pub mod log;
