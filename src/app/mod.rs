//! Builds the pieces and joins them: the only place that sees them all.

mod serve;

pub use serve::{Serving, serve};
