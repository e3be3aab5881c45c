//! The cadence of a stream: the usual gap between its token-bearing events. A longer gap that the cadence does not
//! explain is a pause.
//!
//! An engine may send several tokens in one event (vLLM `--stream-interval`). At 50 tokens of 32 ms each, events arrive
//! every 1.6 s, which is no stall. See `docs/concepts/stalls.md` for the definitions.

use std::hint::black_box;
use std::time::Duration;

use crate::measure::request::times::nanos;

/// Number of latest gaps used to compute the usual gap.
const KEPT: usize = 8;

/// Minimum number of gaps for which the usual gap is computed.
const ENOUGH: usize = 3;

/// A gap is explained up to this multiple of the usual gap.
const FACTOR: u32 = 2;

/// Gaps up to this length are not compared with the usual gap, to save work. They always count as pauses, but are too
/// short to be stalls.
const SHORT: Duration = Duration::from_millis(100);

/// Events that arrive within this time were sent together, so the time between them is not a gap.
pub(super) const TOGETHER: Duration = Duration::from_millis(1);

/// While the cadence is unknown, gaps up to this length count as explained, because an event may have many tokens.
const UNKNOWN: Duration = Duration::from_secs(10);

/// Maximum gap explained by this usual gap.
pub fn explained(usual: Duration) -> Duration {
    usual.saturating_mul(FACTOR)
}

/// How long an open stream may be silent before the silence counts as a pause: `limit`, or the time explained by the
/// usual gap (10 s if unknown), whichever is longer.
pub fn patience(limit: Duration, usual: Option<Duration>) -> Duration {
    limit.max(usual.map_or(UNKNOWN, explained))
}

/// The latest gaps of one stream, across all its choices.
#[derive(Clone, Debug, Default)]
pub(super) struct Cadence {
    /// Microseconds.
    gaps: [u32; KEPT],
    /// Tokens in the event after each gap; 0 if unknown.
    tokens: [u16; KEPT],
    /// Index of the next gap.
    next: u8,
    len: u8,
    /// The usual gap was longer than [`SHORT`] when it was last reported.
    slow: bool,
}

impl Cadence {
    /// Adds a gap in nanoseconds, and the token count of the event after it if known. Calls `pause` for each pause
    /// found: this gap, or the first gaps, which are evaluated when there are enough.
    ///
    /// Returns the usual gap if watches need an update: when it becomes known, and while it or this gap is long.
    pub(super) fn add(&mut self, gap: u64, tokens: Option<u32>, pause: &mut impl FnMut(u64)) -> Option<Duration> {
        if gap < nanos(TOGETHER) {
            return None;
        }
        let place = usize::from(self.next);
        if let (Some(kept), Some(of)) = (self.gaps.get_mut(place), self.tokens.get_mut(place)) {
            *kept = u32::try_from(gap / 1000).unwrap_or(u32::MAX);
            *of = tokens.map_or(0, |tokens| u16::try_from(tokens).unwrap_or(u16::MAX));
        }
        self.next = (self.next + 1) % KEPT as u8;
        let before = usize::from(self.len);
        self.len = (self.len + 1).min(KEPT as u8);
        let known_now = before + 1 == ENOUGH;
        if known_now {
            (0..ENOUGH).filter(|place| !self.explains(*place)).for_each(|place| pause(self.gap(place)));
        } else if before >= ENOUGH && (gap <= nanos(SHORT) || !self.explains(place)) {
            pause(gap);
        }
        if !known_now && gap <= nanos(SHORT) && !self.slow {
            return None;
        }
        let usual = self.usual()?;
        self.slow = usual > SHORT;
        Some(usual)
    }

    /// Prefetches the memory that the next gap needs.
    pub(super) fn warm(&self) {
        black_box((self.gaps[0], self.next));
    }

    /// Ends the stream. If it had too few gaps for a cadence, evaluates them by token counts and calls `pause` with
    /// each unexplained gap. `one_each`: no event had more than one token.
    pub(super) fn end(&self, one_each: bool, pause: &mut impl FnMut(u64)) {
        if usize::from(self.len) < ENOUGH {
            let unexplained = |place: &usize| {
                let (gap, tokens) = (self.gap(*place), self.tokens.get(*place));
                gap <= nanos(SHORT) || gap > nanos(UNKNOWN) || one_each || tokens == Some(&1)
            };
            (0..usize::from(self.len)).filter(unexplained).for_each(|place| pause(self.gap(place)));
        }
    }

    /// The usual gap: the median of the latest gaps. `None` below [`ENOUGH`] gaps.
    pub(super) fn usual(&self) -> Option<Duration> {
        let all = (0..usize::from(self.len)).map(|place| self.gap(place));
        median(all, ENOUGH).map(Duration::from_nanos)
    }

    /// True if this gap is longer than [`SHORT`] and at most [`FACTOR`] times the median of the other gaps. Compares
    /// time per token if the usual event has several tokens. In a stream of single tokens, many tokens after a gap do
    /// not explain it: something held them back.
    fn explains(&self, place: usize) -> bool {
        let of = |place: usize| self.tokens.get(place).map_or(0, |tokens| u64::from(*tokens));
        let gap = self.gap(place);
        let others = (0..usize::from(self.len)).filter(|other| *other != place);
        let several = median(others.clone().map(of), 1).is_some_and(|usual| usual > 1);
        let usual = match of(place) {
            tokens if tokens > 0 && several => {
                median(others.map(|other| self.gap(other) / of(other).max(1)), 1).map(|each| each * tokens)
            }
            _ => median(others.map(|other| self.gap(other)), 1),
        };
        gap > nanos(SHORT) && usual.is_some_and(|usual| gap <= usual.saturating_mul(u64::from(FACTOR)))
    }

    /// A stored gap in nanoseconds.
    fn gap(&self, place: usize) -> u64 {
        self.gaps.get(place).map_or(0, |micros| u64::from(*micros) * 1000)
    }
}

/// The median (the upper one for an even count); `None` for fewer than `least` values.
fn median(values: impl Iterator<Item = u64>, least: usize) -> Option<u64> {
    let (mut sorted, mut len) = ([u64::MAX; KEPT], 0);
    for (place, value) in sorted.iter_mut().zip(values) {
        *place = value;
        len += 1;
    }
    sorted.sort_unstable();
    sorted.get(len / 2).filter(|_| len >= least).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pauses above 100 ms, given the gaps in milliseconds and the token count of the event after each.
    fn pauses(gaps: &[(u64, Option<u32>)], one_each: bool) -> Vec<u64> {
        let (mut cadence, mut found) = (Cadence::default(), Vec::new());
        let mut note = |gap: u64| found.extend(Some(gap / 1_000_000).filter(|gap| *gap > 100));
        for (gap, tokens) in gaps {
            cadence.add(gap * 1_000_000, *tokens, &mut note);
        }
        cadence.end(one_each, &mut note);
        found
    }

    const NONE: [u64; 0] = [];

    fn unknown(gaps: &[u64]) -> Vec<(u64, Option<u32>)> {
        gaps.iter().map(|gap| (*gap, None)).collect()
    }

    fn known(gaps: &[(u64, u32)]) -> Vec<(u64, Option<u32>)> {
        gaps.iter().map(|(gap, tokens)| (*gap, Some(*tokens))).collect()
    }

    #[test]
    fn steady_streams_have_no_pauses_at_any_cadence() {
        for gap in [20, 105, 1600, 5250, 12_000] {
            assert_eq!(pauses(&unknown(&[gap; 12]), false), NONE, "{gap}");
        }
        // Gaps measured with vLLM on a CPU: 50 tokens per event, fewer in the last event.
        assert_eq!(pauses(&unknown(&[1600, 2900, 2500, 1580]), false), NONE);
        assert_eq!(pauses(&known(&[(1600, 50), (2900, 50), (320, 10)]), false), NONE);
    }

    #[test]
    fn stop_is_a_pause_at_any_place_of_the_stream() {
        for (usual, stop) in [(30, 1500), (1600, 4600), (5250, 11_000)] {
            for place in 0..12 {
                let mut gaps = [usual; 12];
                gaps[place] = stop;
                assert_eq!(pauses(&unknown(&gaps), false), [stop], "at {place} of {usual}");
            }
        }
    }

    #[test]
    fn tokens_explain_a_gap_only_if_the_usual_event_has_several() {
        // The front end was frozen while the engine went on, or held back a tool call until it was complete.
        for place in 0..6 {
            let mut burst = [(30, 1); 6];
            burst[place] = (3000, 90);
            assert_eq!(pauses(&known(&burst), false), [3000], "at {place}");
            burst[place] = (3000, 1);
            assert_eq!(pauses(&known(&burst), false), [3000], "at {place}");
        }
        // Speculative decoding: events of 1 to 5 tokens, 40 ms each.
        let speculative = [(160, 4), (40, 1), (200, 5), (120, 3), (160, 4), (200, 5), (40, 1), (600, 15)];
        assert_eq!(pauses(&known(&speculative), false), NONE);
        let stopped = [(1600, 50), (1600, 50), (1600, 50), (1600, 10)];
        assert_eq!(pauses(&known(&stopped), false), [1600], "ten tokens need 320 ms");
    }

    #[test]
    fn few_gaps_are_evaluated_by_their_tokens() {
        assert_eq!(pauses(&unknown(&[1500]), true), [1500], "one token after it");
        assert_eq!(pauses(&unknown(&[1500, 300]), false), NONE, "perhaps many tokens after it");
        assert_eq!(pauses(&known(&[(1500, 1), (1500, 40)]), false), [1500]);
        assert_eq!(pauses(&unknown(&[11_000]), false), [11_000], "too long for any event");
    }

    #[test]
    fn change_of_speed_becomes_the_cadence() {
        let slower = [[30; 8], [1200; 8]].concat();
        assert_eq!(pauses(&unknown(&slower), false).len(), 4, "half of the gaps that are compared");
        assert_eq!(pauses(&unknown(&[[1200; 8], [30; 8]].concat()), false), NONE);
    }

    #[test]
    fn events_sent_together_are_not_a_cadence() {
        let mut burst = vec![1600];
        burst.extend([0; 49]);
        assert_eq!(pauses(&unknown(&burst.repeat(6)), false), NONE);
    }

    #[test]
    fn usual_gap_is_reported_when_known_and_while_it_is_long() {
        let mut cadence = Cadence::default();
        let mut add = |gap: u64| cadence.add(gap * 1_000_000, None, &mut |_| {}).map(|usual| usual.as_millis());
        assert_eq!([30, 30, 30, 30].map(&mut add), [None, None, Some(30), None]);
        assert_eq!([1600; 5].map(&mut add), [Some(30), Some(30), Some(30), Some(1600), Some(1600)]);
        assert_eq!([30; 6].map(&mut add), [Some(1600), Some(1600), Some(1600), Some(1600), Some(30), None]);
    }

    #[test]
    fn patience_of_an_open_stream_follows_its_cadence() {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(patience(second, Some(ms(30))), second);
        assert_eq!(patience(second, Some(ms(1600))), ms(3200));
        assert_eq!(patience(second, None), Duration::from_secs(10), "no cadence yet");
        assert_eq!(patience(Duration::from_secs(60), None), Duration::from_secs(60));
    }
}
