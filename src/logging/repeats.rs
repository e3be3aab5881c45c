//! Limits how often one place in the code may log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::Level;

/// Window in which the lines of one place are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// Minimum time between sweeps over all places.
const SWEEP: Duration = Duration::from_secs(1);

/// A place in the code.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub(super) target: &'a str,
    pub(super) line: Option<u32>,
    pub(super) level: Level,
}

/// Whether to log a line, and the number of lines dropped in windows that have ended since the last sweep.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) pass: bool,
    /// `target:line`, and the number of its dropped lines.
    pub(super) left_out: Vec<(String, u64)>,
}

/// Counts lines per place. Needs no cap: there are only as many places as log statements in the code.
#[derive(Debug)]
pub(super) struct Repeats {
    most: u64,
    places: HashMap<(String, Option<u32>, Level), Window>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    seen: u64,
}

impl Repeats {
    /// Allows at most `most` lines per place and window.
    pub(super) fn new(most: u64) -> Repeats {
        Repeats { most, places: HashMap::new(), swept: None }
    }

    pub(super) fn see(&mut self, place: &Place<'_>, now: Instant) -> Verdict {
        let left_out = self.sweep(now);
        let key = (place.target.to_owned(), place.line, place.level);
        let window = self.places.entry(key).or_insert(Window { began: now, seen: 0 });
        window.seen += 1;
        Verdict { pass: window.seen <= self.most, left_out }
    }

    /// Closes expired windows and returns their dropped lines.
    fn sweep(&mut self, now: Instant) -> Vec<(String, u64)> {
        if self.swept.is_some_and(|last| now.saturating_duration_since(last) < SWEEP) {
            return Vec::new();
        }
        self.swept = Some(now);
        self.end(|window| now.saturating_duration_since(window.began) < WINDOW)
    }

    /// Called after the last log line: closes all windows and returns their dropped lines.
    pub(super) fn rest(&mut self) -> Vec<(String, u64)> {
        self.end(|_| false)
    }

    /// Closes windows that are not open, and returns their dropped lines.
    fn end(&mut self, is_open: impl Fn(&Window) -> bool) -> Vec<(String, u64)> {
        let most = self.most;
        let mut left_out = Vec::new();
        self.places.retain(|(target, line, _), window| {
            let open = is_open(window);
            if !open && window.seen > most {
                let line = line.map(|line| format!(":{line}")).unwrap_or_default();
                left_out.push((format!("{target}{line}"), window.seen - most));
            }
            open
        });
        left_out.sort();
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_above_the_limit_are_summarized_by_the_next_line() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let storm = Place { target: "a", line: Some(7), level: Level::WARN };
        let other = Place { target: "b", line: None, level: Level::WARN };
        let mut repeats = Repeats::new(2);
        let passed = (0..100).filter(|ms| repeats.see(&storm, at(*ms)).pass).count();
        assert_eq!(passed, 2);
        assert!(repeats.see(&other, at(200)).pass, "another place is not limited");
        assert_eq!(repeats.see(&other, at(9_900)).left_out, []);
        assert_eq!(repeats.see(&other, at(11_000)).left_out, [("a:7".to_owned(), 98)]);
        let verdict = repeats.see(&storm, at(12_100));
        assert_eq!(verdict, Verdict { pass: true, left_out: Vec::new() }, "a new window, reported only once");
    }

    #[test]
    fn levels_and_lines_are_counted_separately() {
        let now = Instant::now();
        let mut repeats = Repeats::new(1);
        for level in [Level::WARN, Level::INFO] {
            for line in [Some(1), Some(2), None] {
                assert!(repeats.see(&Place { target: "a", line, level }, now).pass);
            }
        }
        assert!(!repeats.see(&Place { target: "a", line: None, level: Level::INFO }, now).pass);
    }
}
