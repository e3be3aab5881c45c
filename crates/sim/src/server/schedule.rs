//! Due times of the events of a stream.

use std::time::Duration;

use crate::server::settings::Pace;

/// Due times of one stream, relative to its scheduling. They do not drift: each is calculated from the start, not from
/// the previous one.
#[derive(Debug)]
pub(crate) struct Schedule {
    pace: Pace,
    first: f64,
    chance: fastrand::Rng,
}

impl Schedule {
    pub(crate) fn new(pace: Pace, mut chance: fastrand::Rng) -> Schedule {
        let late = 1.0 + pace.jitter.clamp(0.0, 1.0) * chance.f64();
        Schedule { pace, first: pace.time_to_first_token.as_secs_f64() * late, chance }
    }

    /// Number of tokens in the next event, after `sent` tokens and with `left` remaining.
    pub(crate) fn tokens(&self, sent: u64, left: u64) -> u64 {
        if sent == 0 { left.min(1) } else { left.min(u64::from(self.pace.tokens_per_chunk.max(1))) }
    }

    /// Due time of the event whose last token is number `token` (the first is 1).
    pub(crate) fn due(&mut self, token: u64) -> Duration {
        let gap = if self.pace.tokens_per_second > 0.0 { 1.0 / self.pace.tokens_per_second } else { 0.0 };
        let late = if token > 1 { gap * self.pace.jitter.clamp(0.0, 1.0) * self.chance.f64() } else { 0.0 };
        Duration::try_from_secs_f64(self.first + token.saturating_sub(1) as f64 * gap + late).unwrap_or(Duration::MAX)
    }

    /// Whether events follow each other without a pause.
    pub(crate) fn unpaced(&self) -> bool {
        self.pace.tokens_per_second <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(pace: Pace) -> Schedule {
        Schedule::new(pace, fastrand::Rng::with_seed(7))
    }

    #[test]
    fn tokens_without_jitter_follow_the_configured_pace() {
        let mut schedule = schedule(Pace { jitter: 0.0, ..Pace::default() });
        assert_eq!(schedule.due(1), Duration::from_millis(200));
        assert_eq!(schedule.due(2), Duration::from_millis(220));
        assert_eq!(schedule.due(501), Duration::from_millis(10_200));
    }

    #[test]
    fn jitter_only_delays_and_never_drifts() {
        let mut schedule = schedule(Pace { jitter: 0.5, ..Pace::default() });
        let first = schedule.due(1);
        assert!((Duration::from_millis(200)..=Duration::from_millis(300)).contains(&first));
        let mut spread = false;
        for token in 2..2000 {
            let plain = first + Duration::from_millis(20) * (token as u32 - 1);
            let late = schedule.due(token).saturating_sub(plain);
            assert!(late <= Duration::from_micros(10_001), "{late:?}");
            spread |= late > Duration::from_millis(9);
        }
        assert!(spread);
    }

    #[test]
    fn first_event_holds_one_token_others_the_configured_number() {
        let schedule = schedule(Pace { tokens_per_chunk: 5, ..Pace::default() });
        assert_eq!(schedule.tokens(0, 12), 1);
        assert_eq!(schedule.tokens(1, 11), 5);
        assert_eq!(schedule.tokens(11, 1), 1);
    }
}
