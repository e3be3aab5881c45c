//! `tokometer demo`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, value_parser};

use crate::app;
use crate::cli::shared::{finish, wrong_usage};
use crate::cli::top;
use crate::config::{self, Environment};
use tokometer_settings::duration;

/// Arguments of `demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer demo
  tokometer demo --for 10s --streams 32
  tokometer demo | tee demo.txt
  docker run --rm -it -p 9464:9464 IMAGE demo

Without a terminal, demo prints plain lines and exits after 20 s.")]
pub struct DemoArgs {
    /// Print a summary and exit after this time, such as 10s, 500ms or 2m
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::positive)]
    pub duration: Option<Duration>,
    /// Number of concurrent streams
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=10_000))]
    pub streams: u32,
    /// Address of the live page and /metrics; also TOKOMETER_DEMO_ADMIN [default: 127.0.0.1:9464, or a free port]
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
}

/// The variable with the admin address. Images set this variable: loopback is not reachable from outside a container.
const ADMIN: &str = "TOKOMETER_DEMO_ADMIN";

/// Runs the command.
pub(super) fn demo(arguments: &DemoArgs, environment: &Environment) -> ExitCode {
    let flag = arguments.admin.as_deref().map(|text| ("flag --admin".to_owned(), text));
    let variable = || environment.get(ADMIN).map(|text| (format!("environment variable {ADMIN}"), text));
    let admin =
        match flag.or_else(variable).map(|(origin, text)| config::admin_address(text).map_err(|why| (origin, why))) {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err((origin, why))) => return wrong_usage(&format!("{origin}: {why}")),
        };
    let settings = app::DemoSettings {
        duration: arguments.duration,
        streams: arguments.streams as usize,
        display: top::display(environment),
        admin,
    };
    match app::demo(&settings, &mut io::stdout()) {
        // A closed reader (`| head`) counts as success.
        Err(app::DemoError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) if error.is_config_error() => wrong_usage(&error),
        result => finish(result),
    }
}
