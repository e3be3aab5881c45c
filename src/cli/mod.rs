//! The command line: parses arguments, checks them and calls `app`.
//!
//! Exit codes, a stable interface: 0 success, 1 failure, 2 wrong usage or configuration.

mod arguments;
mod attaching;
mod check;
mod dashboards;
mod draining;
mod programs;
mod top;
mod verify;

pub use arguments::{
    Cli, Command, ConfigArgs, DashboardsArgs, DemoArgs, DrainArgs, LoadArgs, PrintArgs, ReplayArgs, RulesArgs, RunArgs,
    SimArgs,
};
pub use attaching::InjectArgs;
pub use check::explain;
pub use programs::programs;
pub use top::TopArgs;
pub use verify::VerifyArgs;

use std::ffi::OsString;
use std::io;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::config;
use crate::config::Config;
use crate::config::Environment;
use crate::config::Flags;
use tokometer_operator::rules;

/// Exit code for a failure while running.
pub const FAILURE: u8 = 1;

/// Exit code for wrong usage or an invalid configuration.
pub const WRONG_USAGE: u8 = 2;

/// A checked configuration, and the inputs for reloading it.
#[derive(Clone, Debug)]
pub struct Start {
    /// The configuration, with its settings.
    pub config: Config,
    /// The flags, for [`config::reload`].
    pub flags: Flags,
    /// The environment, for [`config::reload`].
    pub environment: Environment,
}

/// Commands that are implemented outside this module. `None`: not part of this build.
#[derive(Clone, Copy, Debug, Default)]
pub struct Programs {
    /// `run`: runs until a signal ends it.
    pub run: Option<fn(Start) -> ExitCode>,
    /// `demo`.
    pub demo: Option<fn(&DemoArgs) -> ExitCode>,
    /// `sim`.
    pub sim: Option<fn(&SimArgs) -> ExitCode>,
    /// `load`.
    pub load: Option<fn(&LoadArgs) -> ExitCode>,
    /// `replay`.
    pub replay: Option<fn(&ReplayArgs) -> ExitCode>,
    /// `top`, with the variables that describe the terminal.
    pub top: Option<fn(&TopArgs, &Environment) -> ExitCode>,
    /// `verify`.
    pub verify: Option<fn(&VerifyArgs) -> ExitCode>,
    /// `metrics`: the text of `docs/METRICS.md`.
    pub metrics: Option<fn() -> String>,
}

/// Parses the command line and runs the command.
pub fn main(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    environment: Environment,
    programs: &Programs,
) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and version as errors that go to stdout. A closed pipe is ignored.
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Run(arguments) => {
            join("run", programs.run, |run| match loaded(Config::load_with_files, &arguments.config, &environment) {
                Ok((config, flags)) => refused(&check::unusable_tls(&config))
                    .unwrap_or_else(|| run(Start { config, flags, environment: environment.clone() })),
                Err(code) => code,
            })
        }
        Command::Check(arguments) => check(&arguments, &environment),
        Command::Config(arguments) => print_config(&arguments, &environment),
        Command::Metrics => join("metrics", programs.metrics, |metrics| print(&metrics())),
        Command::Rules(arguments) => print_rules(&arguments, &environment),
        Command::Dashboards(arguments) => match load(&arguments.config, &environment) {
            Ok((config, _)) => dashboards::run(&arguments, &config.settings.slo),
            Err(code) => code,
        },
        Command::Demo(arguments) => join("demo", programs.demo, |demo| demo(&arguments)),
        Command::Sim(arguments) => join("sim", programs.sim, |sim| sim(&arguments)),
        Command::Load(arguments) => join("load", programs.load, |load| load(&arguments)),
        Command::Replay(arguments) => join("replay", programs.replay, |replay| replay(&arguments)),
        Command::Top(arguments) => join("top", programs.top, |top| top(&arguments, &environment)),
        Command::Verify(arguments) => join("verify", programs.verify, |verify| verify(&arguments)),
        Command::Inject(arguments) => attaching::inject(&arguments),
        Command::Drain(arguments) => draining::drain(&arguments, &environment),
        Command::Version => print(concat!("tokometer ", env!("CARGO_PKG_VERSION"), "\n")),
    }
}

fn join<P>(name: &str, program: Option<P>, call: impl FnOnce(P) -> ExitCode) -> ExitCode {
    match program {
        Some(program) => call(program),
        None => {
            complain(&format!("`tokometer {name}` is not part of this build"));
            ExitCode::from(FAILURE)
        }
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
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("cannot write to stdout: {error}"));
            ExitCode::from(FAILURE)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn complain(message: &str) {
    // With stderr closed, the message cannot be reported.
    writeln!(io::stderr(), "{message}").ok();
}
