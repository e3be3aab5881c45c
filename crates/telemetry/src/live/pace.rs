//! Current token rate of each stream, from its token counts at a few earlier snapshots.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use crate::live::table::Open;

/// Snapshots kept per stream.
const LOOKS: usize = 4;

/// Window of the rate.
const OVER: Duration = Duration::from_secs(3);

/// Minimum window. Tokens arrive in bursts, so a rate over less time is meaningless.
const LEAST: Duration = Duration::from_millis(400);

/// Connection number, and request number on that connection.
type Id = (u64, u64);

/// Time of a snapshot, and token count until then.
type Look = (Instant, u64);

/// Recent snapshots of each stream. Streams missing from the latest call of `look` are dropped.
#[derive(Debug, Default)]
pub(super) struct Pace(HashMap<Id, Looks>);

#[derive(Clone, Copy, Debug)]
struct Looks {
    /// Oldest first.
    all: [Look; LOOKS],
    len: usize,
}

impl Pace {
    /// Tokens per second of each stream, in the order of `open`.
    pub(super) fn look(&mut self, now: Instant, open: &[Open]) -> Vec<Option<f64>> {
        let mut before = std::mem::replace(&mut self.0, HashMap::with_capacity(open.len()));
        let mut look = |open: &Open| {
            let decoding = open.decoding?;
            let id = (open.connection, open.sequence);
            let seen = (now, open.tokens);
            let (rate, looks) = match before.remove(&id) {
                Some(mut looks) => {
                    let rate = looks.rate(seen);
                    looks.note(seen);
                    (rate, looks)
                }
                // The token count of the first event is unknown; usually one.
                None => (rate((now.checked_sub(decoding).unwrap_or(now), open.tokens.min(1)), seen), Looks::new(seen)),
            };
            self.0.insert(id, looks);
            rate
        };
        open.iter().map(&mut look).collect()
    }
}

impl Looks {
    fn new(look: Look) -> Looks {
        Looks { all: [look; LOOKS], len: 1 }
    }

    fn note(&mut self, look: Look) {
        // Snapshots in quick succession would evict the older ones that a rate needs.
        if self.len > 1 && look.0.saturating_duration_since(self.all[self.len - 2].0) < LEAST {
            self.all[self.len - 1] = look;
            return;
        }
        if self.len == LOOKS {
            self.all.rotate_left(1);
            self.len -= 1;
        }
        self.all[self.len] = look;
        self.len += 1;
    }

    /// Rate since the latest snapshot that is old enough, or else since the oldest.
    fn rate(&self, now: Look) -> Option<f64> {
        let known = &self.all[..self.len];
        let is_old = |look: &&Look| now.0.saturating_duration_since(look.0) >= OVER;
        rate(*known.iter().rev().find(is_old).or_else(|| known.first())?, now)
    }
}

/// Tokens per second between two snapshots; `None` when they are less than [`LEAST`] apart.
fn rate(before: Look, now: Look) -> Option<f64> {
    let span = now.0.saturating_duration_since(before.0);
    (span >= LEAST).then(|| now.1.saturating_sub(before.1) as f64 / span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(connection: u64, decoding: Option<f64>, tokens: u64) -> Open {
        Open {
            pair: 0,
            route: "chat",
            model: None,
            connection,
            sequence: 0,
            doing: "decode",
            age: Duration::from_secs(1),
            waited: None,
            first_token: None,
            decoding: decoding.map(Duration::from_secs_f64),
            tokens,
            max_tokens: None,
            request_bytes: 0,
        }
    }

    #[test]
    fn rate_covers_the_lifetime_at_first_then_the_last_seconds() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut at = |second: u64, tokens| {
            let open = stream(7, Some(10.0 + second as f64), tokens);
            pace.look(start + Duration::from_secs(second), &[open])[0]
        };
        assert_eq!(at(0, 101), Some(10.0));
        assert_eq!([at(1, 151), at(2, 201), at(3, 251)], [Some(50.0); 3]);
        // The stream stalls: the rate falls to zero within three seconds.
        assert_eq!([at(4, 251), at(5, 251), at(6, 251)].map(|rate| rate.unwrap().round()), [33.0, 17.0, 0.0]);
    }

    #[test]
    fn no_rate_before_or_just_after_the_first_token() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.look(now, &[stream(1, None, 0), stream(2, Some(0.1), 3)]), [None, None]);
    }

    #[test]
    fn snapshots_in_quick_succession_keep_the_rate_accurate() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut last = None;
        for step in 0..500_u32 {
            let seconds = f64::from(step) / 100.0;
            let open = stream(7, Some(1.0 + seconds), 1 + (20.0 * (1.0 + seconds)) as u64);
            last = pace.look(start + Duration::from_secs_f64(seconds), &[open])[0];
        }
        assert!((last.unwrap() - 20.0).abs() < 1.0, "{last:?}");
    }

    #[test]
    fn finished_stream_is_dropped() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.look(now, &[stream(1, Some(1.0), 10), stream(2, Some(1.0), 10)]);
        pace.look(now, &[stream(2, Some(1.0), 10)]);
        assert_eq!(pace.0.len(), 1);
    }
}
