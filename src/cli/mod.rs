//! The command line: parses arguments, checks them and calls `app`.
//!
//! Exit codes, a stable interface: 0 success, 1 failure, 2 wrong usage or configuration.

mod arguments;
mod check;
mod dashboards;
mod demo;
mod drain;
mod inject;
mod replay;
mod simulator;
mod top;
mod verify;

pub use arguments::{Cli, Command};
pub use check::explain;

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::app;
use crate::cli::arguments::{ConfigArgs, PrintArgs, RulesArgs};
use crate::config;
use crate::config::{Config, Environment, Flags};
use crate::logging;
use tokometer_operator::rules;

/// Exit code for a failure while running.
pub const FAILURE: u8 = 1;

/// Exit code for wrong usage or an invalid configuration.
pub const WRONG_USAGE: u8 = 2;

/// Parses the command line and runs the command.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>, environment: &Environment) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and version as errors that go to stdout. A closed pipe is ignored.
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Run(arguments) => run(&arguments.config, environment),
        Command::Check(arguments) => check(&arguments, environment),
        Command::Config(arguments) => print_config(&arguments, environment),
        Command::Metrics => print(include_str!("../../docs/METRICS.md")),
        Command::Rules(arguments) => print_rules(&arguments, environment),
        Command::Dashboards(arguments) => match load(&arguments.config, environment) {
            Ok((config, _)) => dashboards::run(&arguments, &config.settings.slo),
            Err(code) => code,
        },
        Command::Demo(arguments) => demo::demo(&arguments, environment),
        Command::Sim(arguments) => simulator::simulate(&arguments),
        Command::Load(arguments) => simulator::load(&arguments),
        Command::Replay(arguments) => replay::replay(&arguments),
        Command::Top(arguments) => top::top(&arguments, environment),
        Command::Verify(arguments) => verify::verify(&arguments),
        Command::Inject(arguments) => inject::inject(&arguments),
        Command::Drain(arguments) => drain::drain(&arguments, environment),
    }
}

fn run(arguments: &ConfigArgs, environment: &Environment) -> ExitCode {
    let (config, flags) = match loaded(Config::load_with_files, arguments, environment) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    if let Some(code) = refused(&check::unusable_tls(&config)) {
        return code;
    }
    let logs = match logging::install(&config.settings.log) {
        Ok(logs) => logs,
        Err(error) => return fail(&error),
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let result = app::run(config, &flags, environment, &logs);
    drop(logs);
    match result {
        Err(error) if error.is_of_configuration() => wrong_usage(&error),
        result => finish(result),
    }
}

fn load(arguments: &ConfigArgs, environment: &Environment) -> Result<(Config, Flags), ExitCode> {
    loaded(Config::load, arguments, environment)
}

/// Loads the configuration with this function, and prints its problems.
fn loaded(
    load: fn(&Flags, &Environment) -> Result<Config, config::Error>,
    arguments: &ConfigArgs,
    environment: &Environment,
) -> Result<(Config, Flags), ExitCode> {
    let flags = arguments.flags();
    match load(&flags, environment) {
        Ok(config) => Ok((config, flags)),
        Err(error) => {
            complain(&error.to_string());
            complain("`tokometer check` explains a configuration, `tokometer config --print-default` shows every key.");
            Err(ExitCode::from(WRONG_USAGE))
        }
    }
}

fn check(arguments: &ConfigArgs, environment: &Environment) -> ExitCode {
    let (config, _) = match loaded(Config::load_with_files, arguments, environment) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    refused(&check::unusable_files(&config)).unwrap_or_else(|| print(&explain(&config)))
}

/// Prints the reasons why a configuration is rejected; `None` if there are none.
fn refused(reasons: &[String]) -> Option<ExitCode> {
    reasons.iter().for_each(|reason| complain(reason));
    (!reasons.is_empty()).then(|| ExitCode::from(WRONG_USAGE))
}

fn print_config(arguments: &PrintArgs, environment: &Environment) -> ExitCode {
    if arguments.print_default {
        return print(&config::default_yaml());
    }
    if arguments.schema {
        return print(&format!("{:#}\n", config::schema()));
    }
    match load(&arguments.config, environment) {
        Ok((config, _)) => print(&config.effective_yaml()),
        Err(code) => code,
    }
}

fn print_rules(arguments: &RulesArgs, environment: &Environment) -> ExitCode {
    let (format, scale) = (arguments.format, arguments.time_scale);
    if scale > 1 && !format.has_windows() {
        let name = format.as_str();
        complain(&format!(
            "--time-scale: tools that read {name} define their own windows; use --format prometheus, or remove --time-scale"
        ));
        return ExitCode::from(WRONG_USAGE);
    }
    match load(&arguments.config, environment) {
        Ok((config, _)) => print(&rules::rules_at(&config.settings.slo, format, scale)),
        Err(code) => code,
    }
}

/// Writes to stdout. A closed reader (`| head`) counts as success.
fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(&format!("cannot write to stdout: {error}")),
        _ => ExitCode::SUCCESS,
    }
}

fn complain(message: &str) {
    // With stderr closed, the message cannot be reported.
    writeln!(io::stderr(), "{message}").ok();
}

fn fail(error: &dyn Display) -> ExitCode {
    complain(&format!("tokometer: {error}"));
    ExitCode::from(FAILURE)
}

fn wrong_usage(error: &dyn Display) -> ExitCode {
    complain(&format!("tokometer: {error}"));
    ExitCode::from(WRONG_USAGE)
}

fn finish<E: Display>(result: Result<(), E>) -> ExitCode {
    result.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
}
