//! Requests that a server did not receive while it was unreachable or wedged, estimated from the request rate before.
//!
//! The listener of an unreachable server is closed, so its clients are refused without a trace. The estimate assumes
//! that they would have sent requests at the same rate as before.

use std::time::{Duration, Instant};

/// Time constant of the request rate: older requests count less.
const MEMORY: Duration = Duration::from_secs(30 * 60);

/// Minimum time that the rate is computed over, so that a burst before an outage does not become its rate.
const MIN_TIME: Duration = Duration::from_secs(60);

/// Minimum number of remembered requests for a rate.
const MIN_REQUESTS: f64 = 5.0;

/// A server that has received no request for longer than this before an outage was idle: nothing is lost.
const RECENT: Duration = Duration::from_secs(10 * 60);

/// An outage of one listener's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Down {
    /// Time since the outage began.
    pub lasts: Duration,
    /// Requests in flight that began during the outage. They are evaluated when they end.
    pub waiting: u64,
}

/// Time of one listener's server without its outages: the rate before an outage must not decay during the outage.
#[derive(Debug, Default)]
pub(super) struct Uptime {
    /// Sum of the earlier outages.
    down: Duration,
    /// Start of the current outage.
    pub(super) since: Option<Instant>,
}

impl Uptime {
    /// Updates the state of the server.
    pub(super) fn set(&mut self, down: Option<&Down>, now: Instant) {
        match (down, self.since) {
            (Some(down), None) => self.since = now.checked_sub(down.lasts),
            (None, Some(since)) => {
                self.down += now.saturating_duration_since(since);
                self.since = None;
            }
            _ => {}
        }
    }

    fn at(&self, epoch: Instant, moment: Instant) -> Duration {
        let moment = self.since.map_or(moment, |since| since.min(moment));
        moment.saturating_duration_since(epoch).saturating_sub(self.down)
    }
}

/// The requests for one objective, model and listener.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// Number of requests, where older ones count less.
    weight: f64,
    /// Uptime at the first and the last request.
    times: Option<(Duration, Duration)>,
    /// The current outage.
    outage: Option<Outage>,
}

#[derive(Clone, Debug)]
struct Outage {
    since: Instant,
    /// Requests per second before the outage.
    rate: f64,
    /// Requests that began during the outage and were evaluated.
    measured: u64,
    /// Lost requests that were reported.
    lost: u64,
}

impl Demand {
    /// Notes an evaluated request that began at `started` and ended at `ended`.
    pub(super) fn note(&mut self, uptime: &Uptime, epoch: Instant, started: Instant, ended: Instant) {
        if uptime.since.is_some_and(|since| started >= since) {
            if let Some(outage) = &mut self.outage {
                outage.measured += 1;
            }
            return;
        }
        let at = uptime.at(epoch, ended);
        let (first, last) = self.times.unwrap_or((at, at));
        self.weight = self.weight * decay(at.saturating_sub(last)) + 1.0;
        self.times = Some((first, last.max(at)));
    }

    /// Requests per second, as of the outage that begins at this uptime.
    fn rate(&self, at: Duration) -> Option<f64> {
        let (first, last) = self.times?;
        let idle = at.saturating_sub(last);
        let weight = self.weight * decay(idle);
        let span = MEMORY.as_secs_f64() * (1.0 - decay(at.saturating_sub(first)));
        (idle <= RECENT && weight >= MIN_REQUESTS).then(|| weight / span.max(MIN_TIME.as_secs_f64()))
    }

    /// Requests per second before the current outage; 0 without an outage or a known rate.
    pub(super) fn rate_before(&mut self, uptime: &Uptime, epoch: Instant) -> f64 {
        let Some(since) = uptime.since else {
            self.outage = None;
            return 0.0;
        };
        let rate = self.rate(uptime.at(epoch, since));
        let begin = || Outage { since, rate: rate.unwrap_or(0.0), measured: 0, lost: 0 };
        self.outage.get_or_insert_with(begin).rate
    }

    /// Lost requests that were not reported yet. `waiting`: the share of this demand in [`Down::waiting`].
    pub(super) fn lose(&mut self, waiting: f64, now: Instant) -> u64 {
        let Some(outage) = &mut self.outage else { return 0 };
        let expected = outage.rate * now.saturating_duration_since(outage.since).as_secs_f64();
        // A negative number becomes 0.
        let lost = (expected - outage.measured as f64 - waiting) as u64;
        let new = lost.saturating_sub(outage.lost);
        outage.lost += new;
        new
    }
}

/// The remaining weight of a request after this time.
fn decay(age: Duration) -> f64 {
    (-age.as_secs_f64() / MEMORY.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// One server, in steps of one second.
    struct Server {
        epoch: Instant,
        now: Instant,
        uptime: Uptime,
        demand: Demand,
        lost: u64,
    }

    impl Server {
        fn new() -> Server {
            let now = Instant::now() + Duration::from_secs(1000);
            Server { epoch: now, now, uptime: Uptime::default(), demand: Demand::default(), lost: 0 }
        }

        /// `per_minute` requests for this time, while the server is up, or down since `down` seconds before the first
        /// step.
        fn run(&mut self, seconds: u64, per_minute: u64, down: Option<u64>, waiting: u64) {
            for second in 0..seconds {
                self.now += SECOND;
                if (second * per_minute) % 60 < per_minute {
                    self.demand.note(&self.uptime, self.epoch, self.now, self.now);
                }
                let outage = down.map(|before| Down { lasts: Duration::from_secs(second + before), waiting });
                self.uptime.set(outage.as_ref(), self.now);
                self.demand.rate_before(&self.uptime, self.epoch);
                self.lost += self.demand.lose(waiting as f64, self.now);
            }
        }
    }

    #[test]
    fn lost_requests_are_within_two_percent_of_the_constant_load() {
        for healthy in [90, 600, 7200] {
            let mut server = Server::new();
            server.run(healthy, 30, None, 0);
            server.run(7200, 0, Some(1), 0);
            assert!(server.lost.abs_diff(3600) < 72, "{healthy} s: {}", server.lost);
        }
    }

    #[test]
    fn measured_and_waiting_requests_are_not_lost() {
        let mut server = Server::new();
        server.run(3600, 30, None, 0);
        server.run(600, 30, Some(1), 0);
        assert!(server.lost < 3, "{}", server.lost);
        server.run(600, 0, Some(601), 100);
        assert!(server.lost.abs_diff(200) < 8, "{}", server.lost);
    }

    #[test]
    fn idle_or_rarely_used_server_loses_nothing() {
        let mut idle = Server::new();
        idle.run(3600, 30, None, 0);
        idle.run(RECENT.as_secs() + 10, 0, None, 0);
        idle.run(7200, 0, Some(1), 0);
        let mut rare = Server::new();
        rare.run(240, 1, None, 0);
        rare.run(7200, 0, Some(1), 0);
        let mut unused = Server::new();
        unused.run(7200, 0, Some(1), 0);
        assert_eq!([idle.lost, rare.lost, unused.lost], [0; 3]);
    }

    #[test]
    fn repeated_outages_keep_the_rate_from_before_the_first() {
        let mut server = Server::new();
        server.run(3600, 30, None, 0);
        for _ in 0..20 {
            server.run(300, 0, Some(1), 0);
            server.run(5, 30, None, 0);
        }
        assert!(server.lost.abs_diff(20 * 150) < 150, "{}", server.lost);
    }
}
