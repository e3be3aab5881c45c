//! Tokometer's own logs, on stderr: text or JSON, levels by module, limited repeats.
//!
//! Lines go through a bounded queue ([`Lines`]), so that a blocked stderr cannot block a stream. Records of the `log`
//! crate (pingora) arrive through a bridge. Prompts and responses are never passed to the log.

pub mod lines;

mod levels;
mod repeats;

pub use levels::Levels;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_log::{AsLog, NormalizeEvent};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

use crate::logging::lines::{LAST_FLUSH, Lines, Open};
use crate::logging::repeats::Repeats;

/// Maximum number of lines waiting for stderr. At 200 bytes each: less than a megabyte.
const QUEUE_LINES: usize = 4096;

/// User settings of tokometer's own log.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Levels of logged lines.
    pub levels: Levels,
    /// One JSON object per line instead of text.
    pub json: bool,
    /// Maximum lines per 10 seconds from one place in the code.
    pub max_repeats: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { levels: Levels::default(), json: false, max_repeats: 20 }
    }
}

/// User settings of the access log, which `app` writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// File to append to; `None` for stdout.
    pub path: Option<PathBuf>,
    /// One JSON object per line instead of text.
    pub json: bool,
    /// Maximum number of lines waiting to be written.
    pub queue_lines: usize,
}

impl AccessLogSettings {
    /// Default of `queue_lines`. Lines above this number are dropped and counted; a slow disk never delays a stream.
    pub const QUEUE_LINES: usize = 4096;
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The writer could not be started.
    #[error("cannot start the log writer: {0}")]
    Start(#[from] io::Error),
    /// Logs are already set up in this process.
    #[error("logs are already set up: {0}")]
    Twice(String),
}

/// Keeps the log running, and changes its levels. Dropping it writes the waiting lines.
#[derive(Debug)]
pub struct Handle {
    levels: reload::Handle<Targets, Registry>,
    lines: Lines,
    repeats: Arc<Mutex<Repeats>>,
    json: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        for (place, left_out) in self.repeats.lock().unwrap_or_else(PoisonError::into_inner).rest() {
            self.lines.add(left_out_line(self.json, &place, left_out).into_bytes());
        }
        // Dropping `lines` would not flush: the subscriber outlives this handle and holds another clone of the queue.
        self.lines.flush(LAST_FLUSH);
    }
}

impl Handle {
    /// Changes the levels, for a reload.
    pub fn set_levels(&self, levels: &Levels) {
        // Fails only if the subscriber is gone; then there is nothing to set.
        drop(self.levels.reload(levels.targets()));
        limit_log();
    }

    /// Waits until the waiting lines are written, but at most this long.
    pub fn flush(&self, at_most: Duration) -> bool {
        self.lines.flush(at_most)
    }

    /// Lines dropped because stderr was blocked.
    pub fn dropped(&self) -> u64 {
        self.lines.dropped()
    }
}

/// Sends `tracing` and `log` records of the whole process to stderr.
///
/// # Errors
///
/// If logs are already set up, or no thread can be started.
pub fn install(settings: &Settings) -> Result<Handle, Error> {
    let ansi = !settings.json && io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (subscriber, handle) = build(settings, ansi, Box::new(|| Ok(Box::new(io::stderr()))))?;
    tracing::subscriber::set_global_default(subscriber).map_err(|error| Error::Twice(error.to_string()))?;
    tracing_log::LogTracer::init().map_err(|error| Error::Twice(error.to_string()))?;
    limit_log();
    Ok(handle)
}

/// Makes the macros of the `log` crate skip disabled records before they evaluate their arguments: pingora has about
/// ten such records per event of a stream, and some copy the event.
fn limit_log() {
    tracing_log::log::set_max_level(LevelFilter::current().as_log());
}

/// The subscriber and its handle, writing to any sink.
///
/// # Errors
///
/// If the sink cannot be opened, or no thread can be started.
pub fn build(
    settings: &Settings,
    ansi: bool,
    open: Open,
) -> Result<(impl Subscriber + Send + Sync + use<>, Handle), Error> {
    let lines = Lines::start("log", QUEUE_LINES, open)?;
    let (filter, levels) = reload::Layer::new(settings.levels.targets());
    let sink = lines.clone();
    let make_writer = move || Line(sink.clone());
    let shared = Arc::new(Mutex::new(Repeats::new(settings.max_repeats)));
    let repeats = Arc::clone(&shared);
    let json = settings.json;
    let layer = tracing_subscriber::fmt::layer().with_writer(make_writer).with_ansi(ansi);
    let layer = if json {
        layer.json().flatten_event(true).map_event_format(|inner| Limited { inner, repeats, json }).boxed()
    } else {
        layer.map_event_format(|inner| Limited { inner, repeats, json }).boxed()
    };
    let subscriber = Registry::default().with(filter).with(layer);
    Ok((subscriber, Handle { levels, lines, repeats: shared, json }))
}

/// One formatted line; the formatter writes each event in one call.
struct Line(Lines);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !bytes.is_empty() {
            self.0.add(bytes.to_vec());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats an event unless its place in the code has logged too often.
struct Limited<F> {
    inner: F,
    repeats: Arc<Mutex<Repeats>>,
    json: bool,
}

/// The line that reports dropped repeats. Not logged as an event, because it is written while another event is logged,
/// or after the last event.
fn left_out_line(json: bool, place: &str, left_out: u64) -> String {
    let message = format!("{left_out} more lines from {place} were dropped in the last 10 s");
    let mut time = String::new();
    // Writing to a string cannot fail.
    SystemTime.format_time(&mut Writer::new(&mut time)).ok();
    if json {
        let line = serde_json::json!({
            "timestamp": time, "level": "WARN", "message": message, "target": module_path!(), "left_out": left_out,
        });
        format!("{line}\n")
    } else {
        format!("{time}  WARN {}: {message}\n", module_path!())
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        // Records of the `log` crate share one callsite per level; their real place is in the normalized metadata.
        let normalised = event.normalized_metadata();
        let metadata = normalised.as_ref().unwrap_or_else(|| event.metadata());
        let place = repeats::Place { target: metadata.target(), line: metadata.line(), level: *metadata.level() };
        let verdict = match self.repeats.try_lock() {
            Ok(mut repeats) => repeats.see(&place, Instant::now()),
            // A thread of lower priority may hold the lock: this line is not counted, so that the data path does not
            // wait.
            Err(TryLockError::WouldBlock) => repeats::Verdict { pass: true, left_out: Vec::new() },
            Err(TryLockError::Poisoned(repeats)) => repeats.into_inner().see(&place, Instant::now()),
        };
        for (place, left_out) in &verdict.left_out {
            writer.write_str(&left_out_line(self.json, place, *left_out))?;
        }
        if verdict.pass { self.inner.format_event(context, writer, event) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
