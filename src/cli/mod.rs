//! The command line: parses arguments, checks them and calls `app`.
//!
//! Exit codes, a stable interface: 0 success, 1 failure, 2 wrong usage or configuration.

mod arguments;
mod check;
mod dashboards;
mod demo;
mod hooks;
mod inject;
mod replay;
mod shared;
mod simulator;
mod top;
mod verify;

pub use arguments::{Cli, Command};
pub use check::explain;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli::arguments::{PrintArgs, RulesArgs};
use crate::cli::shared::{WRONG_USAGE, complain, fail, finish, print, wrong_usage};
use crate::config::{self, Config, Environment, Flags};
use crate::top::Display;
use crate::{app, logging};
use tokometer_operator::rules;

/// Parses the command line and runs the command.
pub fn main(arguments: impl IntoIterator<Item = impl Into<OsString>>, environment: &Environment) -> ExitCode {
    let cli = match Cli::parse_words(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and version as errors that go to stdout. A closed pipe is ignored.
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Run(flags) => run(&flags, environment, false, None),
        Command::Tap(arguments) => {
            let display = arguments.display(environment);
            run(&arguments.flags(display), environment, true, display)
        }
        Command::Check(arguments) => match &arguments.pod {
            Some(file) => inject::check(file),
            None => check(&arguments.config, environment),
        },
        Command::Config(arguments) => print_config(&arguments, environment),
        Command::Metrics => print(include_str!("../../docs/reference/metrics.md")),
        Command::Rules(arguments) => print_rules(&arguments, environment),
        Command::Dashboards(arguments) => {
            with_config(&arguments.config, environment, |config| dashboards::run(&arguments, &config.settings.slo))
        }
        Command::Demo(arguments) => demo::demo(&arguments, environment),
        Command::Sim(arguments) => simulator::simulate(&arguments),
        Command::Load(arguments) => simulator::load(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Top(settings) => top::top(settings, environment),
        Command::Verify(settings) => verify::verify(&settings),
        Command::Inject(arguments) => inject::inject(&arguments),
        Command::Drain(arguments) => hooks::drain(&arguments, environment),
        Command::Probe(check) => hooks::probe(&check),
    }
}

/// Runs `run`, or `tap` with an optional display.
fn run(flags: &Flags, environment: &Environment, is_tap: bool, display: Option<Display>) -> ExitCode {
    let config = match loaded(Config::load_with_files, flags, environment) {
        Ok(config) => config,
        Err(code) => return code,
    };
    match (is_tap, &config.settings.tap) {
        (false, Some(_)) => {
            return wrong_usage(&"tap.ports is set, which is for `tokometer tap`; unset it, or run `tokometer tap`");
        }
        (true, None) => return wrong_usage(&"no port; add --port 8000, with the port of the server"),
        _ => {}
    }
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
    let result = app::run(config, flags, environment, &logs, display);
    drop(logs);
    match result {
        Err(error) if error.is_config_error() => wrong_usage(&error),
        result => finish(result),
    }
}

/// Runs a command that needs the configuration.
fn with_config(flags: &Flags, environment: &Environment, run: impl FnOnce(&Config) -> ExitCode) -> ExitCode {
    loaded(Config::load, flags, environment).map_or_else(|code| code, |config| run(&config))
}

/// Loads the configuration with this function, and prints its problems.
fn loaded(
    load: fn(&Flags, &Environment) -> Result<Config, config::Error>,
    flags: &Flags,
    environment: &Environment,
) -> Result<Config, ExitCode> {
    load(flags, environment).map_err(|error| {
        complain(&error.to_string());
        complain("`tokometer check` explains a configuration, `tokometer config --print-default` shows every key.");
        ExitCode::from(WRONG_USAGE)
    })
}

fn check(flags: &Flags, environment: &Environment) -> ExitCode {
    match loaded(Config::load_with_files, flags, environment) {
        Ok(config) => refused(&check::unusable_files(&config)).unwrap_or_else(|| print(&explain(&config))),
        Err(code) => code,
    }
}

/// Prints the reasons for rejecting a configuration; `None` if there are none.
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
    with_config(&arguments.config, environment, |config| print(&config.effective_yaml()))
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
    with_config(&arguments.config, environment, |config| print(&rules::rules_at(&config.settings.slo, format, scale)))
}
