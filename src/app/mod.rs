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
mod run;
mod tee;

pub use data_path::{DataPath, Error as PathError, Handles, Serving, serve};
pub use demo::{Error as DemoError, Settings as DemoSettings, run as demo};
pub(crate) use fields::printable;
pub use instrument::{Error as StartError, Instrument};
pub use monitors::Error as MonitorsError;
pub(crate) use pages::requests::time_line;
pub use recording::Error as RecordingError;
pub use run::{Error as RunError, run};
pub use tee::Tee;

use serde_json::Value;
use tokometer_observe::measure::Record;

/// A request record as one line of JSON, with `more` members at its end.
pub(crate) fn json_line(record: &Record, more: impl IntoIterator<Item = (&'static str, Value)>) -> String {
    fields::object(fields::members(record).chain(more))
}
