//! `tokometer replay`: reads recordings and prints their request records.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::app;
use crate::cli::shared::{fail, finish};
use tokometer_observe::observer::Settings;

/// Arguments of `replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer replay recording.jsonl
  tokometer replay recordings/ --json | jq .output_tokens
  tokometer replay recording.jsonl --timeline")]
pub struct ReplayArgs {
    /// Recordings, or directories with recordings
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object per request and line; absent values are null
    #[arg(long)]
    pub json: bool,
    /// Print also when the tokens of each request arrived, reduced to at most 48 points
    #[arg(long)]
    pub timeline: bool,
}

/// Runs the command.
pub(super) fn replay(arguments: &ReplayArgs) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let show = app::Show { json: arguments.json, timeline: arguments.timeline };
    for path in &arguments.paths {
        match app::replay(path, show, &Settings::default(), &mut out) {
            Ok(()) => {}
            // A closed reader (`| head`) counts as success.
            Err(app::ReplayError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
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
