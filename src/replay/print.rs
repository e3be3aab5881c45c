//! Prints the request records of recordings.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::app::{json_line, printable, time_line};
use crate::replay::print_capture::print_capture;
use crate::replay::{Error, Recording, is_capture, replay};
use tokometer_observe::measure::{Record, TimeLine};
use tokometer_observe::observer::Settings;

/// What is printed for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct Show {
    /// Print one JSON object per request, one per line; absent values are null
    #[arg(long)]
    pub json: bool,
    /// Also print the arrival times of each request's tokens, reduced to at most 48 points
    #[arg(long)]
    pub timeline: bool,
}

/// Replays a packet capture, or all recordings under `path`, and writes their requests to `out`, in the format given by
/// `show`. Of a capture, replays the connections to servers on `ports` (empty: all detected servers).
///
/// # Errors
/// If a file cannot be read. The other recordings, and the requests of a capture before a damaged part, are still
/// printed, and the first error is returned.
pub fn print(path: &Path, ports: &[u16], show: Show, settings: &Settings, out: &mut impl Write) -> Result<(), Error> {
    // Recorded probes are always shown, regardless of the setting.
    let settings = &Settings { probes: true, ..settings.clone() };
    if is_capture(path)? {
        return print_capture(path, ports, show, settings, out);
    }
    if !show.json {
        writeln!(out, "{:<48} {MEASURED} {:>10}", "recording", "queue ms")?;
    }
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
                writeln!(out, "{}", json_line(record, std::iter::once(from).chain(drawn)))?;
            } else {
                row(&recording, record, out)?;
                line.map_or(Ok(()), |line| points(line, record, out))?;
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The timeline as a JSON member; null if no token arrival was observed.
pub(super) fn drawn(line: Option<&TimeLine>, record: &Record) -> (&'static str, Value) {
    ("timeline", line.map_or(Value::Null, |line| time_line(line, record.times.requested)))
}

/// `DIRECTORY/NAME` of a file, without the path above the directory and without the extension.
pub(super) fn named(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    format!("{folder}/{name}")
}

fn row(recording: &Recording, record: &Record, out: &mut impl Write) -> io::Result<()> {
    let (name, queue) = (named(&recording.path), milliseconds(record.engine.queue.map(|queue| queue.value)));
    writeln!(out, "{:<48} {} {queue:>10}", printable(&name), measured(record))
}

/// The columns of both tables.
pub(super) const MEASURED: &str =
    "outcome                           tokens source                TTFT ms    last ms    tok/s";

/// The values in the columns of [`MEASURED`].
pub(super) fn measured(record: &Record) -> String {
    format!(
        "{:<32} {:>7} {:<18} {:>10} {:>10} {:>8}",
        record.outcome.as_str(),
        record.tokens.output.map_or("-".to_owned(), |count| count.tokens.to_string()),
        record.tokens.output.map_or("-", |count| count.source.as_str()),
        milliseconds(record.since_requested(record.times.first_token)),
        milliseconds(record.since_requested(record.times.last_token)),
        number(record.rate.exact, 1),
    )
}

pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

pub(super) fn milliseconds(time: Option<Duration>) -> String {
    number(time.map(|time| time.as_secs_f64() * 1e3), 2)
}

/// The timeline as text: one point per row, times from the last byte of the request.
pub(super) fn points(line: &TimeLine, record: &Record, out: &mut impl Write) -> io::Result<()> {
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
