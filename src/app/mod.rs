//! Wires the modules together: the only module that depends on all others.

pub mod access_log;

mod backlog;
mod controlled;
mod demo;
mod descriptors;
mod engines;
mod figures;
mod going_on;
mod instrument;
mod intercepting;
mod judging;
mod live_page;
mod path;
mod replay;
mod run;
mod serve;
mod stats;
mod tee;

pub use demo::{Error as DemoError, Settings as DemoSettings, run as demo};
pub use engines::Error as EnginesError;
pub use figures::markdown as figures_markdown;
pub use instrument::{Error as StartError, Instrument};
pub use path::{DataPath, Error as PathError, Handles};
pub use replay::{ReplayError, Show, print as replay};
pub use run::{Error as RunError, run};
pub use serve::{Serving, serve};
pub use tee::Tee;
