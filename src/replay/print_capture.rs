//! Prints the requests of a capture file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::app::access_log::rfc3339;
use crate::app::{json_line, printable};
use crate::replay::print::{MEASURED, Show, drawn, measured, named, number, points};
use crate::replay::{Captured, Error};
use tokometer_observe::measure::Record;
use tokometer_observe::observer::Settings;
use tokometer_tap::Evidence;

/// Writes the requests of a capture to `out`. A summary of the capture precedes the table; with JSON it goes to stderr.
///
/// # Errors
/// If the capture cannot be read. Requests before a damaged part are still printed.
pub(super) fn print_capture(
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

fn in_milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
