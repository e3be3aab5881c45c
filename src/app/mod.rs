//! Wires the modules together: the only module that depends on all others.

pub mod access_log;

mod data_path;
mod demo;
mod fields;
mod instrument;
mod monitors;
mod pages;
mod probe_file;
mod recording;
mod replay;
mod run;
mod tee;

pub use data_path::{DataPath, Error as PathError, Handles, Serving, serve};
pub use demo::{Error as DemoError, Settings as DemoSettings, run as demo};
pub use fields::meanings as field_meanings;
pub(crate) use fields::printable;
pub use instrument::{Error as StartError, Instrument};
pub use monitors::Error as EnginesError;
pub use replay::{ReplayError, Show, print as replay, print_capture as replay_capture};
pub use run::{Error as RunError, run, run_with_top};
pub use tee::Tee;
