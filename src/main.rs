//! The `tokometer` command.

use std::process::ExitCode;

use tokometer::cli;
use tokometer::cli::Programs;
use tokometer::config::Environment;

fn main() -> ExitCode {
    let programs = Programs::default();
    cli::main(std::env::args_os(), Environment::from_process(), &programs)
}
