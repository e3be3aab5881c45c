//! The access log: one line per request, text or JSON, with the values of its record. Records contain no prompts or
//! responses.

mod line;

pub use crate::logging::AccessLogSettings as Settings;
pub(crate) use line::rfc3339;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::logging::lines::{Lines, Open};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};
use tokometer_observe::measure::{Record, Sink};

/// The access log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the access log {path}: {source}; check `access_log.path` and its permissions")]
pub struct Error {
    path: String,
    source: io::Error,
}

/// The access log. Writing never blocks: if the queue is full, lines are dropped and counted.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: Lines,
    json: bool,
    /// Number of lost lines already reported in the program's log.
    reported: Arc<AtomicU64>,
}

impl AccessLog {
    /// Opens the file, or stdout.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened for appending.
    pub fn open(settings: &Settings) -> Result<AccessLog, Error> {
        let path = settings.path.clone();
        let shown = path.as_ref().map_or_else(|| "stdout".to_owned(), |path| path.display().to_string());
        let open: Open = Box::new(move || match &path {
            Some(path) => Ok(Box::new(std::fs::OpenOptions::new().create(true).append(true).open(path)?)),
            None => Ok(Box::new(io::stdout())),
        });
        let lines =
            Lines::start("access-log", settings.queue_lines, open).map_err(|source| Error { path: shown, source })?;
        Ok(AccessLog { lines, json: settings.json, reported: Arc::default() })
    }

    /// Writes the record of a request that has just ended; `now` and `wall` are the current time of both clocks.
    fn write(&self, record: &Record, now: Instant, wall: SystemTime) {
        let started = wall.checked_sub(now.saturating_duration_since(record.started)).unwrap_or(wall);
        self.lines.add(line::format(record, started, self.json).into_bytes());
        let (dropped, failed) = (self.dropped(), self.failed());
        if self.reported.swap(dropped + failed, Ordering::Relaxed) < dropped + failed {
            tracing::warn!(
                dropped,
                failed,
                "The access log is losing lines: `dropped` because its queue was full, `failed` because of write errors. Check the disk of `access_log.path`."
            );
        }
    }

    /// Reopens the file after a rotation. False if the queue is full: call again.
    pub fn reopen(&self) -> bool {
        self.lines.reopen()
    }

    /// Waits until the queued lines are written, but at most this long; false on timeout.
    pub fn flush(&self, at_most: Duration) -> bool {
        self.lines.flush(at_most)
    }

    /// Lines dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.lines.dropped()
    }

    /// Lines lost to write errors (such as a full disk).
    pub fn failed(&self) -> u64 {
        self.lines.failed()
    }
}

impl Sink for AccessLog {
    fn record(&self, record: &Arc<Record>) {
        self.write(record, Instant::now(), SystemTime::now());
    }
}

impl Collect for AccessLog {
    fn collect(&self, points: &mut Points<'_>) {
        for (why, lines) in [("queue_full", self.dropped()), ("write_failed", self.failed())] {
            points.put(Id::AccessLogDropped, &[(Key::Reason, why.into())], lines);
        }
    }
}

#[cfg(test)]
mod tests;
