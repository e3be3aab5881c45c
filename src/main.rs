//! The `tokometer` command.

use std::process::ExitCode;

use tokometer::cli;
use tokometer::config::Environment;

fn main() -> ExitCode {
    cli::main(std::env::args_os(), &Environment::from_process())
}
