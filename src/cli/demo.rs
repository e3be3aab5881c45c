//! `tokometer demo`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};

use crate::app;
use crate::cli::shared::{finish, positive_duration};
use crate::cli::top;
use crate::config::Environment;

/// Arguments of `demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer demo
  tokometer demo --for 10s --streams 32
  tokometer demo | tee demo.txt

Without a terminal it prints plain lines and exits after 20 s.")]
pub struct DemoArgs {
    /// Exit after this time with a summary, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    pub duration: Option<Duration>,
    /// Number of concurrent streams
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=10_000))]
    pub streams: u32,
}

/// Runs the command.
pub(super) fn demo(arguments: &DemoArgs, environment: &Environment) -> ExitCode {
    let settings = app::DemoSettings {
        duration: arguments.duration,
        streams: arguments.streams as usize,
        display: top::display(environment),
        ..app::DemoSettings::default()
    };
    match app::demo(&settings, &mut io::stdout()) {
        // A closed reader (`| head`) counts as success.
        Err(app::DemoError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        result => finish(result),
    }
}
