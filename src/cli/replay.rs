//! `tokometer replay`: reads recordings and captures, and prints their request records.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::shared::{fail, finish, wrong_usage};
use crate::replay::{self, Show};
use tokometer_observe::observer::Settings;

/// Arguments of `replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer replay recording.jsonl
  tokometer replay recordings/ --json | jq .output_tokens
  tokometer replay recording.jsonl --timeline
  tokometer replay production.pcap --port 8000")]
pub struct ReplayArgs {
    /// Packet captures (pcap, pcapng), recordings, or directories with recordings
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,
    /// Server port in packet captures; can be repeated [default: all servers found in the capture]
    #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub ports: Vec<u16>,
    /// What is printed
    #[command(flatten)]
    pub show: Show,
}

/// Runs the command.
pub(super) fn run(arguments: &ReplayArgs) -> ExitCode {
    if let Some(missing) = arguments.paths.iter().find(|path| !path.exists()) {
        return wrong_usage(&format!("{}: no such file or directory", missing.display()));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    for path in &arguments.paths {
        match replay::print(path, &arguments.ports, arguments.show, &Settings::default(), &mut out) {
            Ok(()) => {}
            // A closed reader (`| head`) counts as success.
            Err(replay::Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return ExitCode::SUCCESS;
            }
            Err(error) => {
                out.flush().ok();
                return fail(&error);
            }
        }
    }
    finish(out.flush())
}
