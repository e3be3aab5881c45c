//! `tokometer replay`: reads recordings and captures, and prints their request records.

mod capture;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::app::fields::{Member, members, object, printable};
use crate::app::pages::requests::time_line;
use crate::replay::{CaptureError, Error, Recording, replay};
use tokometer_observe::measure::{Record, TimeLine};
use tokometer_observe::observer::Settings;

pub use capture::print_capture;

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A recording cannot be read.
    #[error(transparent)]
    Recording(#[from] Error),
    /// A capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// What is printed for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Show {
    /// One line per request, with a JSON object, instead of a table.
    pub json: bool,
    /// Also print the arrival times of the request's tokens.
    pub timeline: bool,
}

/// Replays all recordings under `path` and writes their requests to `out`, in the format given by `show`.
///
/// # Errors
/// If a recording cannot be read. The other recordings are still printed, and the first error is returned.
pub fn print(path: &Path, show: Show, settings: &Settings, out: &mut impl Write) -> Result<(), ReplayError> {
    if !show.json {
        writeln!(
            out,
            "{:<48} {:<32} {:>7} {:<18} {:>10} {:>10} {:>8} {:>10}",
            "recording", "outcome", "tokens", "source", "TTFT ms", "last ms", "tok/s", "queue ms"
        )?;
    }
    // Recorded probes are always shown, regardless of the setting.
    let settings = &Settings { probes: true, ..settings.clone() };
    let mut failed = None;
    let found = Recording::find(path)?;
    let is_single = found.len() == 1;
    for path in found {
        let recording = match Recording::read(&path) {
            Ok(recording) => recording,
            Err(error) => {
                // The error of a single recording is returned, so it is not printed here.
                if !is_single {
                    writeln!(io::stderr(), "skipped: {}", printable(&error.to_string()))?;
                }
                failed = failed.or(Some(error));
                continue;
            }
        };
        let replayed = replay(&recording, settings);
        for why in &replayed.detached {
            let path = printable(&path.display().to_string());
            writeln!(io::stderr(), "{path}: the observer detached: {}", why.as_str())?;
        }
        for record in &replayed.records {
            let line = replayed.line(record).filter(|_| show.timeline);
            if show.json {
                let drawn = show.timeline.then(|| drawn(line, record));
                let from = ("recording", Value::from(named(&recording.path)));
                writeln!(out, "{}", object(members(record).into_iter().chain([from]).chain(drawn)))?;
            } else {
                row(&recording, record, out)?;
                line.map_or(Ok(()), |line| points(line, record, out))?;
            }
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The timeline as a JSON member; null if no token arrival was observed.
fn drawn(line: Option<&TimeLine>, record: &Record) -> Member {
    ("timeline", line.map_or(Value::Null, |line| time_line(line, record.requested)))
}

/// `DIRECTORY/NAME` of a file, without the path above the directory and without the extension.
fn named(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    format!("{folder}/{name}")
}

fn row(recording: &Recording, record: &Record, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<48} {:<32} {:>7} {:<18} {:>10} {:>10} {:>8} {:>10}",
        printable(&named(&recording.path)),
        record.outcome.as_str(),
        record.output_tokens.map_or("-".to_owned(), |count| count.tokens.to_string()),
        record.output_tokens.map_or("-", |count| count.source.as_str()),
        milliseconds(record.since_requested(record.first_token)),
        milliseconds(record.since_requested(record.last_token)),
        number(record.decode_rate, 1),
        milliseconds(record.queue.map(|queue| queue.value)),
    )
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn milliseconds(time: Option<Duration>) -> String {
    number(time.map(|time| time.as_secs_f64() * 1e3), 2)
}

/// The timeline as text: one point per row, times from the last byte of the request.
fn points(line: &TimeLine, record: &Record, out: &mut impl Write) -> io::Result<()> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    writeln!(
        out,
        "    {:>10} {:>8} {:>14}   events per row: {}",
        "at ms",
        "tokens",
        "longest gap ms",
        line.events_per_point()
    )?;
    for point in line.points() {
        let at = record.since_requested(Some(point.at)).unwrap_or(point.at);
        writeln!(out, "    {:>10.2} {:>8} {:>14.2}", ms(at), point.tokens, ms(point.longest_gap))?;
    }
    Ok(())
}
