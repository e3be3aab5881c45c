//! `tokometer replay`: recordings in, records out.

use std::io::{self, Write};
use std::path::Path;

use crate::observe::Settings;
use crate::replay::Error;
use crate::replay::Line;
use crate::replay::Recording;
use crate::replay::replay;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] Error),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Replays every recording that `path` names and writes its exchanges to `out`: one JSON object per exchange and line,
/// or a table for people.
///
/// # Errors
/// When a recording cannot be read: the others are written all the same, and the first error is returned.
pub fn print(path: &Path, json: bool, settings: &Settings, out: &mut impl Write) -> Result<(), ReplayError> {
    if !json {
        writeln!(
            out,
            "{:<48} {:<32} {:>7} {:<18} {:>10} {:>10} {:>8} {:>10}",
            "recording", "outcome", "tokens", "source", "TTFT ms", "last ms", "tok/s", "queue ms"
        )?;
    }
    // Whoever recorded a probe wants to see it.
    let settings = &Settings { probes: true, ..settings.clone() };
    let mut failed = None;
    for path in Recording::find(path)? {
        let recording = match Recording::read(&path) {
            Ok(recording) => recording,
            Err(error) => {
                writeln!(io::stderr(), "left out: {error}")?;
                failed = failed.or(Some(error));
                continue;
            }
        };
        let replayed = replay(&recording, settings);
        for why in &replayed.detached {
            writeln!(io::stderr(), "{}: the observer detached: {}", path.display(), why.as_str())?;
        }
        for record in &replayed.records {
            let line = Line::from(record);
            if json {
                serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
                writeln!(out)?;
            } else {
                row(&recording, &line, out)?;
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

fn row(recording: &Recording, line: &Line, out: &mut impl Write) -> io::Result<()> {
    let name = recording.path.file_stem().unwrap_or_default().to_string_lossy();
    let folder = recording.path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let number = |value: Option<f64>, digits| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    writeln!(
        out,
        "{:<48} {:<32} {:>7} {:<18} {:>10} {:>10} {:>8} {:>10}",
        format!("{folder}/{name}"),
        line.outcome,
        line.output_tokens.map_or("-".to_owned(), |n| n.to_string()),
        line.output_tokens_source.unwrap_or("-"),
        number(line.time_to_first_token_ms, 2),
        number(line.last_token_ms, 2),
        number(line.decode_tokens_per_second, 1),
        number(line.queue_time_ms, 2),
    )
}
