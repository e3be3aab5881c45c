//! Builds the pieces and joins them: the only place that sees them all.

pub mod access_log;
pub mod lines;
pub mod log;

mod demo;
mod path;
mod replay;
mod serve;
mod tee;

pub use path::{DataPath, Error as PathError, Handles};
pub use replay::{ReplayError, print as replay};
pub use serve::{Serving, serve};
pub use tee::{Tee, Unmoved};
