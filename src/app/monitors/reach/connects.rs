//! The last connects to a server, and what follows from them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_proxy::listen::Reached;
use tokometer_proxy::relay::Unreached;

/// Consecutive failed connects after which a server counts as unreachable, and consecutive refused connects after which
/// its listener closes. One refused connect suffices if a client's connect was refused too: while the listener is open,
/// tokometer accepts clients that the server would refuse.
const FAILURES: u32 = 3;

/// Interval between checks of an idle server that accepts connections. If the server stops, the next client is refused,
/// which triggers a check.
const IDLE: Duration = Duration::from_secs(15);

/// Added to the interval between checks with each failed connect: short failures must end soon for the clients.
const RETRY: Duration = Duration::from_millis(200);

/// Maximum interval between checks while the server is down.
const DOWN: Duration = Duration::from_secs(2);

/// The last connects to one server.
#[derive(Debug, Default)]
pub(super) struct Connects {
    /// Number of failed connects since the last successful one.
    pub(super) failures: u32,
    /// Number of refused connects since the last one that succeeded or failed otherwise.
    refusals: u32,
    pub(super) failed: Option<Instant>,
    /// Why the last connect failed.
    pub(super) error: Option<(Unreached, Arc<str>)>,
    pub(super) accepts: Option<bool>,
}

impl Connects {
    pub(super) fn note(&mut self, result: &Reached, at: Instant) {
        match result {
            Reached::Unknown => {}
            Reached::Accepts => *self = Connects { accepts: Some(true), ..Connects::default() },
            Reached::Refuses(error) | Reached::Fails(error) => {
                let is_refused = matches!(result, Reached::Refuses(_));
                self.failures = self.failures.saturating_add(1);
                self.refusals = if is_refused { self.refusals.saturating_add(1) } else { 0 };
                self.failed.get_or_insert(at);
                self.error = Some((Unreached::of(error), error.to_string().into()));
                if self.failures >= FAILURES {
                    self.accepts = Some(false);
                }
            }
        }
    }

    /// Makes the last refused connect sufficient to close the listener, because a client's connect was refused too.
    pub(super) fn confirm(&mut self) {
        self.failures = self.failures.max(FAILURES);
        self.refusals = FAILURES;
        self.accepts = Some(false);
    }

    /// Whether the listener must be open; `None`: no change.
    pub(super) fn wanted(&self) -> Option<bool> {
        match self.accepts {
            Some(true) if self.failures == 0 => Some(true),
            _ if self.refusals >= FAILURES => Some(false),
            _ => None,
        }
    }

    /// Time until the next check.
    pub(super) fn delay(&self) -> Duration {
        if self.failures == 0 { IDLE } else { (RETRY * self.failures).min(DOWN) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokometer_telemetry::live::Reach;

    use super::super::{Listening, Status};
    use super::*;

    fn accepts() -> Reached {
        Reached::Accepts
    }

    fn refuses() -> Reached {
        Reached::Refuses(io::ErrorKind::ConnectionRefused.into())
    }

    fn fails() -> Reached {
        Reached::Fails(io::Error::other("the name has no address"))
    }

    fn unknown() -> Reached {
        Reached::Unknown
    }

    /// Whether the listener, closed at first, is open after each result; and whether the server accepts connections.
    fn after(results: &[fn() -> Reached]) -> (Vec<bool>, Option<bool>) {
        let (mut connects, mut open) = (Connects::default(), false);
        let begin = Instant::now();
        let states = results.iter().enumerate().map(|(n, result)| {
            connects.note(&result(), begin + RETRY * n as u32);
            open = connects.wanted().unwrap_or(open);
            open
        });
        (states.collect(), connects.accepts)
    }

    #[test]
    fn listener_opens_when_the_server_accepts() {
        assert_eq!(after(&[refuses, refuses]), (vec![false, false], None));
        assert_eq!(after(&[refuses, refuses, refuses, accepts]), (vec![false, false, false, true], Some(true)));
        assert_eq!(after(&[unknown, fails, accepts]), (vec![false, false, true], Some(true)));
    }

    #[test]
    fn listener_closes_only_after_three_refused_connects_in_a_row() {
        assert_eq!(after(&[accepts, refuses, refuses, accepts, refuses]).0, [true; 5]);
        assert_eq!(after(&[accepts, refuses, unknown, refuses, refuses]).0, [true, true, true, true, false]);
        // Other failures do not close the listener: a frozen server with a full backlog still holds its port.
        assert_eq!(after(&[accepts, fails, fails, fails, fails]), (vec![true; 5], Some(false)));
        assert_eq!(after(&[accepts, refuses, refuses, fails, refuses]), (vec![true; 5], Some(false)));
    }

    #[test]
    fn listener_closes_at_once_if_a_client_was_refused_too() {
        let (mut connects, begin) = (Connects::default(), Instant::now());
        connects.note(&accepts(), begin);
        connects.note(&refuses(), begin);
        assert_eq!(connects.wanted(), None);
        connects.confirm();
        assert_eq!((connects.wanted(), connects.accepts, connects.failed), (Some(false), Some(false), Some(begin)));
        connects.note(&accepts(), begin);
        assert_eq!(connects.wanted(), Some(true));
    }

    #[test]
    fn unreachable_time_begins_with_the_first_failed_connect() {
        let (mut connects, begin) = (Connects::default(), Instant::now());
        let reach = |connects: &Connects, at: Duration| {
            let Connects { accepts, failed, .. } = *connects;
            Status { listening: Listening::Waiting, error: None, accepts, failed }.reach(begin + at)
        };
        assert_eq!(reach(&connects, RETRY), Reach::Unknown);
        connects.note(&accepts(), begin);
        connects.note(&refuses(), begin + IDLE);
        connects.note(&refuses(), begin + IDLE + RETRY);
        assert_eq!(reach(&connects, IDLE + RETRY), Reach::Accepts, "one refusal may be a restart");
        connects.note(&refuses(), begin + IDLE + 2 * RETRY);
        assert_eq!(reach(&connects, IDLE + 2 * RETRY), Reach::Fails(2 * RETRY));
        connects.note(&accepts(), begin + 2 * IDLE);
        assert_eq!(reach(&connects, 2 * IDLE), Reach::Accepts);
    }

    #[test]
    fn checks_are_rare_while_idle_and_back_off_while_down() {
        let (mut connects, begin) = (Connects::default(), Instant::now());
        connects.note(&accepts(), begin);
        assert_eq!(connects.delay(), Duration::from_secs(15));
        let mut delays = Vec::new();
        for _ in 0..12 {
            connects.note(&refuses(), begin);
            delays.push(connects.delay().as_millis());
        }
        assert_eq!(delays, [200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2000, 2000, 2000]);
    }
}
