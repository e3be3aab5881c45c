//! The checks of one server: when to connect to it, and what follows for its listener.

use std::time::{Duration, Instant};

use tokometer_proxy::listen::{Address, Reached};
use tokometer_proxy::relay::{Phase, Relay, Unreachable, Unreached};

use super::connects::Connects;
use super::{ListenerState, Listening, Status};

/// Interval between attempts to open a listener while its old sockets are being closed.
const REOPEN: Duration = Duration::from_millis(200);

/// Interval between attempts to open a listener whose address cannot be used.
const IN_USE: Duration = Duration::from_secs(1);

/// The checks of one server.
#[derive(Debug, Default)]
pub(super) struct Watch {
    connects: Connects,
    /// Number of client connections that the server had accepted at the last check.
    connected: u64,
    /// Number of client connections that the server had refused at the last check.
    refused: u64,
    /// Time of the next check; `None` before the first.
    due: Option<Instant>,
}

impl Watch {
    /// Checks the server if a check is due or a client was refused, opens or closes the listener, and returns the time
    /// until the next call.
    pub(super) fn run(
        &mut self,
        now: Instant,
        state: &ListenerState,
        relay: &Relay,
        listener: usize,
        reach: impl Fn() -> Reached,
    ) -> Duration {
        let always =
            relay.settings().unreachable != Unreachable::Refuse || state.upstream == Address::OriginalDestination;
        let opened = always.then(|| state.open());
        if let Some(listening) = opened {
            // Published first, because the check may take long.
            state.set(Status { listening, ..state.status() }, now);
        }
        self.check(now, relay, listener, reach);
        let wanted = if always { Some(true) } else { self.connects.wanted() };
        let listening = match (opened, wanted) {
            (Some(listening), _) => listening,
            (None, Some(true)) => state.open(),
            (None, Some(false)) => {
                state.gate.close();
                Listening::Waiting
            }
            (None, None) => state.status().listening,
        };
        let Connects { accepts, failed, ref error, .. } = self.connects;
        state.set(Status { listening, error: error.clone(), accepts, failed }, now);
        let check = self.due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now));
        match listening {
            Listening::InUse | Listening::Unusable => check.min(IN_USE),
            // The listener did not open: its old sockets are still being closed, or a drain has begun.
            Listening::Waiting if wanted == Some(true) => check.min(REOPEN),
            _ => check,
        }
    }

    /// Connects to the server if that is due or a client was refused, unless clients have connected since the last
    /// check. During a drain, nobody needs the result.
    fn check(&mut self, now: Instant, relay: &Relay, listener: usize, reach: impl Fn() -> Reached) {
        let stats = relay.stats_of(listener);
        let (connected, refused) = (stats.connected.get(), stats.unreached(Unreached::Refused).get());
        let is_refused = refused != self.refused;
        let is_due = self.due.is_none_or(|due| due <= now) || is_refused && self.connects.accepts != Some(false);
        if !is_due {
            return;
        }
        let is_proven = connected != self.connected && !is_refused;
        (self.connected, self.refused) = (connected, refused);
        let result = match relay.drain().phase() {
            Phase::Running if is_proven => Reached::Accepts,
            Phase::Running => reach(),
            _ => Reached::Unknown,
        };
        self.connects.note(&result, now);
        if is_refused && matches!(result, Reached::Refuses(_)) {
            self.connects.confirm();
        }
        self.due = Some(now + self.connects.delay());
    }
}
