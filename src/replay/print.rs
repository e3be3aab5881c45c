//! Prints the request records of recordings and of packet captures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::Value;

use crate::app::access_log::rfc3339;
use crate::app::{json_line, printable, time_line};
use crate::replay::{Captured, Error, Recording, is_capture, replay};
use tokometer_observe::measure::{Record, TimeLine};
use tokometer_observe::observer::Settings;
use tokometer_tap::Evidence;

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
fn drawn(line: Option<&TimeLine>, record: &Record) -> (&'static str, Value) {
    ("timeline", line.map_or(Value::Null, |line| time_line(line, record.times.requested)))
}

/// `DIRECTORY/NAME` of a file, without the path above the directory and without the extension.
fn named(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    format!("{folder}/{name}")
}

fn row(recording: &Recording, record: &Record, out: &mut impl Write) -> io::Result<()> {
    let (name, queue) = (named(&recording.path), milliseconds(record.engine.queue.map(|queue| queue.value)));
    writeln!(out, "{:<48} {} {queue:>10}", printable(&name), measured(record))
}

/// The columns of both tables.
const MEASURED: &str = "outcome                           tokens source                TTFT ms    last ms    tok/s";

/// The values in the columns of [`MEASURED`].
fn measured(record: &Record) -> String {
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

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn milliseconds(time: Option<Duration>) -> String {
    number(time.map(in_milliseconds), 2)
}

fn in_milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The timeline as text: one point per row, times from the last byte of the request.
fn points(line: &TimeLine, record: &Record, out: &mut impl Write) -> io::Result<()> {
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
        writeln!(
            out,
            "    {:>10.2} {:>8} {:>14.2}",
            in_milliseconds(at),
            point.tokens,
            in_milliseconds(point.longest_gap)
        )?;
    }
    Ok(())
}

/// Writes the requests of a capture to `out`. A summary of the capture precedes the table; with JSON it goes to stderr.
///
/// # Errors
/// If the capture cannot be read. Requests before a damaged part are still printed.
fn print_capture(
    path: &Path,
    ports: &[u16],
    show: Show,
    settings: &Settings,
    out: &mut impl Write,
) -> Result<(), Error> {
    let captured = Captured::read(path, ports, settings, show.timeline)?;
    if show.json {
        write!(io::stderr(), "{}", summary(path, &captured))?;
        captured.replayed.records.iter().try_for_each(|record| line(path, &captured, record, show, out))?;
    } else {
        write!(out, "{}", summary(path, &captured))?;
        table(&captured, out)?;
    }
    match captured.broken {
        Some(error) => Err(Error::Capture(path.to_owned(), error)),
        None => Ok(()),
    }
}

/// Summarizes what was captured, and what could not be read.
fn summary(path: &Path, captured: &Captured) -> String {
    let Captured { stats, truncated, set_back, span, replayed, .. } = captured;
    let path = printable(&path.display().to_string());
    let mut text = String::new();
    let mut add = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").unwrap_or_default();
    let servers = captured.servers.iter().map(|(server, evidence)| {
        let shown_by = match evidence {
            Evidence::Http => "HTTP",
            Evidence::Tls => "TLS",
            Evidence::Handshake => "accepts connections",
        };
        format!("{server} ({shown_by})")
    });
    let servers: Vec<String> = servers.collect();
    if !servers.is_empty() {
        add(format_args!("{path}: servers found: {}", servers.join(", ")));
    }
    add(format_args!(
        "{path}: {} packets in {:.3} s from {}; {} connections ({} in progress when captured first, {} with TLS), {} \
         requests, {} gaps, {truncated} truncated packets",
        stats.packets.get(),
        (span.1 - span.0).as_secs_f64(),
        rfc3339(SystemTime::UNIX_EPOCH + span.0),
        stats.opened.get() + stats.attached.get(),
        stats.attached.get(),
        stats.tls.get(),
        replayed.records.len(),
        stats.gaps.get(),
    ));
    if *truncated > 0 {
        add(format_args!(
            "warning: {truncated} packets have only their first bytes (snapshot length), and their connections \
             are unobserved until the next request: capture with `tcpdump -s 0`"
        ));
    }
    if *set_back > 0 {
        add(format_args!(
            "warning: the clock was set back {set_back} times: requests in progress at that time have \
             `capture_loss`, and the time of day of later requests is not exact"
        ));
    }
    if stats.tls.get() > 0 {
        add(format_args!(
            "warning: {} connections use TLS and cannot be read; run tokometer as a proxy that terminates TLS, or capture \
             behind the program that terminates TLS",
            stats.tls.get()
        ));
    }
    for (count, what) in [
        (stats.malformed.get(), "packets with invalid or incomplete headers"),
        (stats.fragments.get(), "IP fragments, which are not reassembled"),
        (stats.shed.get(), "packets of connections above the maximum of open connections"),
        (
            stats.unobserved_bytes.get(),
            "bytes outside of observed requests: before the first request that begins in the \
                                        capture, or after a gap",
        ),
    ] {
        if count > 0 {
            add(format_args!("warning: {count} {what}"));
        }
    }
    let mut detached = BTreeMap::new();
    replayed.detached.iter().for_each(|why| *detached.entry(why.as_str()).or_insert(0_u64) += 1);
    for (why, count) in detached {
        add(format_args!("warning: {count} connections are not observed to their end: {why}"));
    }
    text
}

/// Writes a request as a line of JSON.
fn line(path: &Path, captured: &Captured, record: &Record, show: Show, out: &mut impl Write) -> io::Result<()> {
    let time = ("time", Value::from(rfc3339(SystemTime::UNIX_EPOCH + captured.time(record.started))));
    let ends = captured.ends.get(&record.connection);
    let client = ("client", ends.map_or(Value::Null, |ends| ends.client.to_string().into()));
    let server = ("server", ends.map_or(Value::Null, |ends| Value::from(&*ends.server)));
    let from = [("recording", named(path).into()), time, client, server];
    let drawn = show.timeline.then(|| drawn(captured.replayed.line(record), record));
    writeln!(out, "{}", json_line(record, from.into_iter().chain(drawn)))
}

fn table(captured: &Captured, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:>10} {:<30} {MEASURED} {:>9} {:>7} {:>9} {:>8}",
        "at s", "client", "RTT ms", "resent", "window ms", "network"
    )?;
    for record in &captured.replayed.records {
        let client = captured.ends.get(&record.connection).map_or("-".to_owned(), |ends| ends.client.to_string());
        let network = &record.network;
        let share = record.network_share_of_first_token().map(|share| share * 100.0);
        writeln!(
            out,
            "{:>10.3} {client:<30} {} {:>9} {:>7} {:>9} {:>8}",
            (captured.time(record.started) - captured.span.0).as_secs_f64(),
            measured(record),
            number(network.rtt.map(in_milliseconds), 3),
            network.retransmits.map_or("-".to_owned(), |segments| segments.to_string()),
            number(network.zero_window.map(in_milliseconds), 1),
            share.map_or("-".to_owned(), |share| format!("{share:.1} %")),
        )?;
        captured.replayed.line(record).map_or(Ok(()), |line| points(line, record, out))?;
    }
    Ok(())
}
