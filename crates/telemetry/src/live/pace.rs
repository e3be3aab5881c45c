//! How fast each stream is at this moment: its tokens now, and those of a few looks before.

use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use crate::live::table::Open;

/// Looks that are kept of a stream.
const LOOKS: usize = 4;

/// Over how long a rate is told.
const OVER: Duration = Duration::from_secs(3);

/// Over a shorter time a rate says nothing: tokens come in bursts.
const LEAST: Duration = Duration::from_millis(400);

/// The number of the connection, and that of the exchange on it.
type Id = (u64, u64);

/// When a stream was looked at, and its tokens until then.
type Look = (Instant, u64);

/// What was seen of each stream lately. Nothing is kept of those that are not looked at any more.
#[derive(Debug, Default)]
pub(super) struct Pace(HashMap<Id, Looks>);

#[derive(Clone, Copy, Debug)]
struct Looks {
    /// The oldest first.
    all: [Look; LOOKS],
    len: usize,
}

impl Pace {
    /// Tokens per second of each of these, in their order.
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
                // How many tokens its first event had is not known: mostly one.
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
        // Looks that follow at once on each other would push out those from which a rate can be told.
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

    /// From the latest look that is old enough, or from the oldest.
    fn rate(&self, now: Look) -> Option<f64> {
        let known = &self.all[..self.len];
        let is_old = |look: &&Look| now.0.saturating_duration_since(look.0) >= OVER;
        rate(*known.iter().rev().find(is_old).or_else(|| known.first())?, now)
    }
}

/// Tokens per second between two looks; `None` where they are too near to each other.
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
    fn one_that_is_new_has_the_rate_of_its_life_and_later_that_of_the_last_seconds() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut at = |second: u64, tokens| {
            let open = stream(7, Some(10.0 + second as f64), tokens);
            pace.look(start + Duration::from_secs(second), &[open])[0]
        };
        assert_eq!(at(0, 101), Some(10.0));
        assert_eq!([at(1, 151), at(2, 201), at(3, 251)], [Some(50.0); 3]);
        // It stands still: three seconds later nothing is left of its rate.
        assert_eq!([at(4, 251), at(5, 251), at(6, 251)].map(|rate| rate.unwrap().round()), [33.0, 17.0, 0.0]);
    }

    #[test]
    fn without_a_token_or_just_after_the_first_there_is_no_rate() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.look(now, &[stream(1, None, 0), stream(2, Some(0.1), 3)]), [None, None]);
    }

    #[test]
    fn looks_that_follow_at_once_do_not_spoil_the_rate() {
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
    fn one_that_has_left_is_forgotten() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.look(now, &[stream(1, Some(1.0), 10), stream(2, Some(1.0), 10)]);
        pace.look(now, &[stream(2, Some(1.0), 10)]);
        assert_eq!(pace.0.len(), 1);
    }
}
