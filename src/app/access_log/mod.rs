//! One line per exchange, text or JSON, with the record's figures. Never prompts or answers: a record holds none.

mod line;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use crate::app::lines::Lines;
use crate::app::lines::Open;
use tokometer_observe::measure::Record;

/// What a person may set about the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// File to append to; `None` for stdout.
    pub path: Option<PathBuf>,
    /// One JSON object per line in place of text.
    pub json: bool,
    /// Most lines that wait for the writer.
    pub queue_lines: usize,
}

/// The access log could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the access log {path}: {source}; check `access_log.path` and its permissions")]
pub struct Error {
    path: String,
    source: io::Error,
}

/// The access log. Writing never waits: with the queue full, lines are dropped and counted.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: Lines,
    json: bool,
    /// Lost lines that were told of.
    told: Arc<AtomicU64>,
}

impl AccessLog {
    /// Opens the file, or stdout.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened for appending.
    pub fn open(settings: &Settings) -> Result<AccessLog, Error> {
        let path = settings.path.clone();
        let shown = path.as_ref().map_or_else(|| "stdout".to_owned(), |path| path.display().to_string());
        let open: Open = Box::new(move || match &path {
            Some(path) => Ok(Box::new(std::fs::OpenOptions::new().create(true).append(true).open(path)?)),
            None => Ok(Box::new(io::stdout())),
        });
        let lines =
            Lines::start("access-log", settings.queue_lines, open).map_err(|source| Error { path: shown, source })?;
        Ok(AccessLog { lines, json: settings.json, told: Arc::default() })
    }

    /// Writes one exchange that has just ended.
    pub fn write(&self, record: &Record) {
        self.write_at(record, Instant::now(), SystemTime::now());
    }

    /// The same, with the present moment on both clocks.
    fn write_at(&self, record: &Record, now: Instant, wall: SystemTime) {
        let started = wall.checked_sub(now.saturating_duration_since(record.started)).unwrap_or(wall);
        self.lines.add(line::format(record, started, self.json).into_bytes());
        let (dropped, failed) = (self.dropped(), self.failed());
        if self.told.swap(dropped + failed, Ordering::Relaxed) < dropped + failed {
            tracing::warn!(
                dropped,
                failed,
                "The access log loses lines: `dropped` of them found its queue full, `failed` could not be written. Look at the disk of `access_log.path`."
            );
        }
    }

    /// Opens the file anew, after a rotation. False when the queue is full: ask again.
    pub fn reopen(&self) -> bool {
        self.lines.reopen()
    }

    /// Waits until what waits now is written, at most this long.
    pub fn flush(&self, at_most: Duration) -> bool {
        self.lines.flush(at_most)
    }

    /// Lines that were dropped because the writer could not follow.
    pub fn dropped(&self) -> u64 {
        self.lines.dropped()
    }

    /// Lines that the file did not take (a full disk).
    pub fn failed(&self) -> u64 {
        self.lines.failed()
    }
}

#[cfg(test)]
mod tests;
