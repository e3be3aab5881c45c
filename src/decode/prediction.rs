//! Skips what was read before: consecutive events of a stream are the same bytes but for one string.

use super::dialect::Place;
use super::dialect::Reading;
use super::scan::Pause;
use super::scan::Scanner;

/// The event before, without its first measured string.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prediction {}

impl Prediction {
    /// Scans the first line of an event's data.
    pub(super) fn scan_line(&mut self, line: &[u8], scanner: &mut Scanner<Place>, reading: &mut Reading) {
        scanner.feed(line, Pause::Never, reading);
    }
}
