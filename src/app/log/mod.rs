//! Logs of the program itself, on stderr: text or JSON, levels by module, repeats limited.
//!
//! Lines go through a bounded queue ([`Lines`]), so that a blocked stderr cannot block a stream. Records of the `log`
//! crate (pingora) come in by a bridge. Never prompts or answers: nobody hands them here.

mod levels;
mod repeats;

pub use levels::Levels;

use std::fmt;
use std::io;
use std::io::IsTerminal;
use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::TryLockError;
use std::time::Duration;
use std::time::Instant;

use tracing::Event;
use tracing::Subscriber;
use tracing_log::NormalizeEvent;
use tracing_subscriber::Layer;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::FormatEvent;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;

use crate::app::lines::LAST_FLUSH;
use crate::app::lines::Lines;
use crate::app::lines::Open;
use crate::app::log::repeats::Repeats;

/// Lines that may wait for stderr. At 200 bytes each: less than a megabyte.
const QUEUE_LINES: usize = 4096;

/// What a person may set about logs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Which lines are logged.
    pub levels: Levels,
    /// One JSON object per line in place of text.
    pub json: bool,
    /// Most lines from one place in the code per 10 seconds; 0 for no limit.
    pub max_repeats: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { levels: Levels::default(), json: false, max_repeats: 20 }
    }
}

/// Why logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The writer could not be started.
    #[error("cannot start the log writer: {0}")]
    Start(#[from] io::Error),
    /// Something else in this process has set up logs before.
    #[error("logs are set up already: {0}")]
    Twice(String),
}

/// Keeps the logs going, and changes their levels. When it is dropped, what waits is written.
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
        // The subscriber, which stays, holds another end of the queue.
        self.lines.flush(LAST_FLUSH);
    }
}

impl Handle {
    /// Sets other levels, for a reload.
    pub fn set_levels(&self, levels: &Levels) {
        // Fails only when the subscriber is gone, and then there is nothing to set.
        drop(self.levels.reload(levels.targets()));
    }

    /// Waits until what waits now is written, at most this long.
    pub fn flush(&self, at_most: Duration) -> bool {
        self.lines.flush(at_most)
    }

    /// Lines that were dropped because stderr did not take them.
    pub fn dropped(&self) -> u64 {
        self.lines.dropped()
    }
}

/// Sends `tracing` and `log` records of the whole process to stderr.
///
/// # Errors
///
/// When logs are set up already, or no thread can be started.
pub fn install(settings: &Settings) -> Result<Handle, Error> {
    let ansi = !settings.json && io::stderr().is_terminal();
    let (subscriber, handle) = build(settings, ansi, Box::new(|| Ok(Box::new(io::stderr()))))?;
    tracing::subscriber::set_global_default(subscriber).map_err(|error| Error::Twice(error.to_string()))?;
    tracing_log::LogTracer::init().map_err(|error| Error::Twice(error.to_string()))?;
    Ok(handle)
}

/// The subscriber and its handle, writing to any sink.
///
/// # Errors
///
/// When the sink cannot be opened, or no thread can be started.
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

/// One line on its way to the queue; the formatter writes each event in one call.
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

/// Formats an event unless its place in the code has logged too much lately.
struct Limited<F> {
    inner: F,
    repeats: Arc<Mutex<Repeats>>,
    json: bool,
}

/// Tells of lines that were left out. Written and not logged, since this is told inside the logging of an event, or after the last one.
fn left_out_line(json: bool, place: &str, left_out: u64) -> String {
    let message = format!("{left_out} more lines from {place} were left out in the last 10 s");
    let mut time = String::new();
    // A string takes all of it.
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
        // Records of the `log` crate share one callsite per level; their own place is in the normalised metadata.
        let normalised = event.normalized_metadata();
        let metadata = normalised.as_ref().unwrap_or_else(|| event.metadata());
        let place = repeats::Place { target: metadata.target(), line: metadata.line(), level: *metadata.level() };
        let verdict = match self.repeats.try_lock() {
            Ok(mut repeats) => repeats.see(&place, Instant::now()),
            // A thread of a lower priority may hold it: this line is not counted, so that the data path does not wait.
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
