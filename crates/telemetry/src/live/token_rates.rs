//! Current token rate of each stream, from the stream's token counts in the last snapshots.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::live::Open;

/// Snapshots kept per stream.
const SAMPLES: usize = 4;

/// Window over which the rate is computed.
const WINDOW: Duration = Duration::from_secs(3);

/// Minimum window. Tokens arrive in bursts, so a rate over less time is meaningless.
const MIN_WINDOW: Duration = Duration::from_millis(400);

/// Connection number, and request number on that connection.
type Id = (u64, u64);

/// Time of a snapshot, and the token count at that time.
type Sample = (Instant, u64);

/// Recent token counts of each stream. Streams that are missing from a call of `update` are dropped.
#[derive(Debug, Default)]
pub(super) struct TokenRates(HashMap<Id, Samples>);

#[derive(Clone, Copy, Debug)]
struct Samples {
    /// Oldest first.
    all: [Sample; SAMPLES],
    len: usize,
}

impl TokenRates {
    /// Tokens per second of each stream, in the order of `open`.
    pub(super) fn update(&mut self, now: Instant, open: &[Open]) -> Vec<Option<f64>> {
        let mut before = std::mem::replace(&mut self.0, HashMap::with_capacity(open.len()));
        let mut rate_of = |open: &Open| {
            let decoding = open.decoding?;
            let id = (open.connection, open.sequence);
            let seen = (now, open.tokens);
            let (rate, samples) = match before.remove(&id) {
                Some(mut samples) => {
                    let rate = samples.rate(seen);
                    samples.add(seen);
                    (rate, samples)
                }
                // The token count of the first event is unknown: assume one. The rate covers the later tokens and the
                // time since the first event.
                None => {
                    (rate((now.checked_sub(decoding).unwrap_or(now), open.tokens.min(1)), seen), Samples::new(seen))
                }
            };
            self.0.insert(id, samples);
            rate
        };
        open.iter().map(&mut rate_of).collect()
    }
}

impl Samples {
    fn new(sample: Sample) -> Samples {
        Samples { all: [sample; SAMPLES], len: 1 }
    }

    fn add(&mut self, sample: Sample) {
        // If snapshots are frequent, replace the latest sample, so that the older samples, which the rate needs, are
        // not evicted.
        if self.len > 1 && sample.0.saturating_duration_since(self.all[self.len - 2].0) < MIN_WINDOW {
            self.all[self.len - 1] = sample;
            return;
        }
        if self.len == SAMPLES {
            self.all.rotate_left(1);
            self.len -= 1;
        }
        self.all[self.len] = sample;
        self.len += 1;
    }

    /// Rate since the latest snapshot that is at least [`WINDOW`] old, otherwise since the oldest snapshot.
    fn rate(&self, now: Sample) -> Option<f64> {
        let known = &self.all[..self.len];
        let is_old = |sample: &&Sample| now.0.saturating_duration_since(sample.0) >= WINDOW;
        rate(*known.iter().rev().find(is_old).or_else(|| known.first())?, now)
    }
}

/// Tokens per second between two snapshots; `None` when they are less than [`MIN_WINDOW`] apart.
fn rate(before: Sample, now: Sample) -> Option<f64> {
    let span = now.0.saturating_duration_since(before.0);
    (span >= MIN_WINDOW).then(|| now.1.saturating_sub(before.1) as f64 / span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Doing;
    use tokometer_decode::Route;
    use tokometer_observe::measure::Phase;

    fn stream(connection: u64, decoding: Option<f64>, tokens: u64) -> Open {
        Open {
            listener: 0,
            route: Route::Chat,
            model: None,
            connection,
            sequence: 0,
            doing: Doing::Decode,
            phase: Phase::Streaming,
            age: Duration::from_secs(1),
            waited: None,
            first_token: None,
            decoding: decoding.map(Duration::from_secs_f64),
            usual_gap: None,
            tokens,
            max_tokens: None,
            allowed_tokens: 0,
            request_bytes: 0,
            without_token: None,
            progressed: None,
            targets: None,
        }
    }

    #[test]
    fn rate_covers_the_lifetime_at_first_then_the_last_seconds() {
        let (mut rates, start) = (TokenRates::default(), Instant::now());
        let mut at = |second: u64, tokens| {
            let open = stream(7, Some(10.0 + second as f64), tokens);
            rates.update(start + Duration::from_secs(second), &[open])[0]
        };
        assert_eq!(at(0, 101), Some(10.0));
        assert_eq!([at(1, 151), at(2, 201), at(3, 251)], [Some(50.0); 3]);
        // The stream stalls: the rate falls to zero within three seconds.
        assert_eq!([at(4, 251), at(5, 251), at(6, 251)].map(|rate| rate.unwrap().round()), [33.0, 17.0, 0.0]);
    }

    #[test]
    fn no_rate_before_or_just_after_the_first_token() {
        let (mut rates, now) = (TokenRates::default(), Instant::now());
        assert_eq!(rates.update(now, &[stream(1, None, 0), stream(2, Some(0.1), 3)]), [None, None]);
    }

    #[test]
    fn snapshots_in_quick_succession_keep_the_rate_accurate() {
        let (mut rates, start) = (TokenRates::default(), Instant::now());
        let mut last = None;
        for step in 0..500_u32 {
            let seconds = f64::from(step) / 100.0;
            let open = stream(7, Some(1.0 + seconds), 1 + (20.0 * (1.0 + seconds)) as u64);
            last = rates.update(start + Duration::from_secs_f64(seconds), &[open])[0];
        }
        assert!((last.unwrap() - 20.0).abs() < 1.0, "{last:?}");
    }

    #[test]
    fn finished_stream_is_dropped() {
        let (mut rates, now) = (TokenRates::default(), Instant::now());
        rates.update(now, &[stream(1, Some(1.0), 10), stream(2, Some(1.0), 10)]);
        rates.update(now, &[stream(2, Some(1.0), 10)]);
        assert_eq!(rates.0.len(), 1);
    }
}
