//! Shared parts of the commands: argument parsers, output, and exit codes.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::app::printable;

/// Exit code for a failure while running.
pub(super) const FAILURE: u8 = 1;

/// Exit code for wrong usage or an invalid configuration.
pub(super) const WRONG_USAGE: u8 = 2;

/// Parses the name of one of these values. The help lists the names.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    values: impl IntoIterator<Item = (&'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let values: Vec<(&str, T)> = values.into_iter().collect();
    PossibleValuesParser::new(values.iter().map(|(name, _)| *name)).try_map(move |text| {
        let found = values.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or("not one of the possible values")
    })
}

/// Writes to stdout. A closed reader (`| head`) counts as success.
pub(super) fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&format!("cannot write to stdout: {error}")),
        _ => ExitCode::SUCCESS,
    }
}

/// Writes a message to stderr. If stderr is closed, the message is lost. Control characters, for example of a file
/// name, are escaped.
pub(super) fn complain(message: &str) {
    let lines: Vec<String> = message.split('\n').map(printable).collect();
    writeln!(io::stderr(), "{}", lines.join("\n")).ok();
}

/// Reports a failure.
pub(super) fn fail(error: &dyn Display) -> ExitCode {
    complain(&format!("tokometer: {error}"));
    ExitCode::from(FAILURE)
}

/// Reports wrong usage.
pub(super) fn wrong_usage(error: &dyn Display) -> ExitCode {
    complain(&format!("tokometer: {error}"));
    ExitCode::from(WRONG_USAGE)
}

/// Reports the error of a command, if it failed.
pub(super) fn finish<E: Display>(result: Result<(), E>) -> ExitCode {
    result.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
}
