//! Whether each listener's server accepts connections. A listener is open only while its server does.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_observe::closed_enum;
use tokometer_proxy::listen::{self, Address, Gate, Listener, Reached, reach};
use tokometer_proxy::relay::{Relay, Unreachable};
use tokometer_telemetry::live::Reach;

use crate::app::monitors::thread::Monitor;

/// Connects that must fail in a row before a server counts as unreachable. They must be refused before the listener
/// closes. A single one is enough if a client's connect was refused as well: clients that connect before the listener
/// closes get an error that they would not get without tokometer.
const FAILURES: u32 = 3;

/// Time between two checks of a server that accepts connections.
const CHECK: Duration = Duration::from_secs(2);

/// Time between two checks after a connect failed: a server that starts must not wait long for its clients.
const RETRY: Duration = Duration::from_millis(200);

/// The same for a server on another machine, and time between two attempts to listen on an address in use.
const SLOW_RETRY: Duration = Duration::from_secs(1);

closed_enum! {
    /// Whether a listener accepts clients.
    pub(in crate::app) enum Listening {
        /// It does.
        Open = "open",
        /// Not until its server accepts connections.
        Waiting = "waiting",
        /// Another program holds the address: clients reach that program, and nothing is measured.
        InUse = "address_in_use",
        /// The address cannot be used for another reason, which is logged.
        Unusable = "address_unusable",
    }
}

/// State of one listener.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct Status {
    pub(in crate::app) listening: Listening,
    /// `None` until enough connects were made.
    accepts: Option<bool>,
    /// The first of the last failed connects in a row.
    failed: Option<Instant>,
}

impl Status {
    /// What is known about the server at `now`.
    pub(in crate::app) fn reach(&self, now: Instant) -> Reach {
        match (self.accepts, self.failed) {
            (None, _) => Reach::Unknown,
            (Some(false), Some(failed)) => Reach::Fails(now.saturating_duration_since(failed)),
            (Some(_), _) => Reach::Accepts,
        }
    }
}

/// The listeners of a process and the servers behind them.
#[derive(Debug)]
pub(in crate::app) struct Doors {
    doors: Vec<Door>,
}

/// One listener and its server.
#[derive(Debug)]
struct Door {
    name: String,
    listen: Address,
    upstream: Address,
    gate: Gate,
    status: Mutex<Status>,
}

/// The last connects to one server.
#[derive(Debug, Default)]
struct Connects {
    /// Failed connects in a row, and of them the last ones in a row that were refused.
    failures: u32,
    refusals: u32,
    failed: Option<Instant>,
    accepts: Option<bool>,
}

impl Connects {
    fn note(&mut self, result: Reached, at: Instant) {
        match result {
            Reached::Unknown => {}
            Reached::Accepts => *self = Connects { accepts: Some(true), ..Connects::default() },
            Reached::Refuses | Reached::Fails => {
                self.failures = self.failures.saturating_add(1);
                self.refusals = if result == Reached::Refuses { self.refusals.saturating_add(1) } else { 0 };
                self.failed.get_or_insert(at);
                if self.failures >= FAILURES {
                    self.accepts = Some(false);
                }
            }
        }
    }

    /// Counts the last connect, which was refused like that of a client, as enough to close the listener.
    fn confirm(&mut self) {
        self.failures = self.failures.max(FAILURES);
        self.refusals = FAILURES;
        self.accepts = Some(false);
    }

    /// Whether the listener must be open; `None`: as it is.
    fn wanted(&self) -> Option<bool> {
        match self.accepts {
            Some(true) if self.failures == 0 => Some(true),
            _ if self.refusals >= FAILURES => Some(false),
            _ => None,
        }
    }
}

impl Doors {
    pub(in crate::app) fn new(listeners: &[Listener], addresses: &[Address], gates: Vec<Gate>) -> Arc<Doors> {
        let status = Status { listening: Listening::Waiting, accepts: None, failed: None };
        let door = |((listener, listen), gate): ((&Listener, &Address), Gate)| Door {
            name: listener.name.clone(),
            listen: listen.clone(),
            upstream: listener.upstream.clone(),
            gate,
            status: Mutex::new(status),
        };
        Arc::new(Doors { doors: listeners.iter().zip(addresses).zip(gates).map(door).collect() })
    }

    /// State of each listener.
    pub(in crate::app) fn statuses(&self) -> Vec<Status> {
        self.doors.iter().map(Door::status).collect()
    }

    /// State of one listener.
    pub(in crate::app) fn status(&self, listener: usize) -> Option<Status> {
        self.doors.get(listener).map(Door::status)
    }

    /// The addresses that tokometer listens on now.
    pub(in crate::app) fn open(&self) -> Vec<Address> {
        let open = self.doors.iter().filter(|door| door.status().listening == Listening::Open);
        open.map(|door| door.listen.clone()).collect()
    }

    /// One sentence for each listener that is not open.
    pub(in crate::app) fn closed(&self) -> Vec<String> {
        self.doors.iter().filter_map(Door::why_closed).collect()
    }

    /// Checks every server now, and from then on regularly: opens and closes the listeners.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(in crate::app) fn watch(self: &Arc<Doors>, relay: Arc<Relay>) -> io::Result<Monitor> {
        let (doors, clients) = (Arc::clone(self), Arc::clone(&relay));
        let mut watches: Vec<Watch> = doors.doors.iter().map(|_| Watch::default()).collect();
        let mut look = move || {
            let now = Instant::now();
            let mut next = now + CHECK;
            for (listener, (door, watch)) in doors.doors.iter().zip(&mut watches).enumerate() {
                let due = *watch.due.get_or_insert(now);
                if due <= now || watch.is_refused(&relay, listener) {
                    watch.due = Some(Instant::now() + watch.look(door, &relay, listener));
                }
                next = watch.due.map_or(next, |due| next.min(due));
            }
            next.saturating_duration_since(Instant::now())
        };
        let delay = look();
        for door in self.doors.iter().filter(|door| door.status().listening == Listening::Waiting) {
            let (listener, upstream) = (&door.name, &door.upstream);
            tracing::info!(%listener, %upstream, "The server does not accept connections yet: the listener opens when it does.");
        }
        let monitor = Monitor::start("reach", delay, look)?;
        clients.on_refused(monitor.trigger());
        Ok(monitor)
    }
}

/// The checks of one server.
#[derive(Debug, Default)]
struct Watch {
    connects: Connects,
    /// Clients' connections that the server had accepted at the last look.
    connected: u64,
    /// Clients' connections that the server had refused at the last look.
    refused: u64,
    due: Option<Instant>,
}

impl Watch {
    /// True if clients were refused since the last look, by a server that counts as reachable.
    fn is_refused(&self, relay: &Relay, listener: usize) -> bool {
        self.connects.accepts != Some(false) && relay.stats_of(listener).connect_refused.get() != self.refused
    }

    /// Checks the server, opens or closes the listener, and returns the time until the next check.
    fn look(&mut self, door: &Door, relay: &Relay, listener: usize) -> Duration {
        let stats = relay.stats_of(listener);
        let (connected, refused) = (stats.connected.get(), stats.connect_refused.get());
        let is_refused = std::mem::replace(&mut self.refused, refused) != refused;
        let is_proven = std::mem::replace(&mut self.connected, connected) != connected && !is_refused;
        let result = if is_proven { Reached::Accepts } else { reach(&door.upstream) };
        self.connects.note(result, Instant::now());
        if is_refused && result == Reached::Refuses {
            self.connects.confirm();
        }
        let always =
            relay.settings().unreachable != Unreachable::Refuse || door.upstream == Address::OriginalDestination;
        let wanted = if always { Some(true) } else { self.connects.wanted() };
        let listening = match wanted {
            Some(true) => door.open(),
            Some(false) => {
                door.gate.close();
                Listening::Waiting
            }
            None => door.status().listening,
        };
        let Connects { accepts, failed, failures, .. } = self.connects;
        door.set(Status { listening, accepts, failed });
        match (listening, failures) {
            (Listening::InUse | Listening::Unusable, _) => SLOW_RETRY,
            // The old sockets are still being closed.
            (Listening::Waiting, 0) if wanted == Some(true) => RETRY,
            (_, 0) => CHECK,
            _ if is_local(&door.upstream) => RETRY,
            _ => SLOW_RETRY,
        }
    }
}

fn is_local(upstream: &Address) -> bool {
    match upstream {
        Address::Tcp { host, .. } => {
            host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        Address::Unix(_) | Address::OriginalDestination => true,
    }
}

impl Door {
    fn status(&self) -> Status {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Listening {
        match self.gate.open() {
            Ok(true) => Listening::Open,
            Ok(false) => Listening::Waiting,
            Err(error) => {
                let state = if error.is_address_in_use() { Listening::InUse } else { Listening::Unusable };
                if self.status().listening != state {
                    self.complain(&error);
                }
                state
            }
        }
    }

    fn complain(&self, error: &listen::Error) {
        let (listener, upstream) = (&self.name, &self.upstream);
        if error.is_address_in_use() {
            tracing::warn!(%listener, %upstream, %error, "Another program holds the listen address: clients reach it directly, and their requests are not measured. If it is the server, it ignores the address that it was given. Retrying every second.");
        } else {
            tracing::error!(%listener, %error, "The listener cannot be opened. Retrying every second.");
        }
    }

    /// Publishes the state, and logs a change.
    fn set(&self, status: Status) {
        let mut own = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *own, status).listening;
        drop(own);
        let (listener, upstream) = (&self.name, &self.upstream);
        match (before, status.listening) {
            (Listening::Open, Listening::Waiting) => {
                tracing::warn!(%listener, %upstream, "The server refuses connections: the listener is closed until the server accepts them again. Open connections continue.");
            }
            (Listening::Waiting | Listening::InUse | Listening::Unusable, Listening::Open) => {
                tracing::info!(%listener, %upstream, "The server accepts connections: the listener is open.");
            }
            _ => {}
        }
    }

    fn why_closed(&self) -> Option<String> {
        let (name, listen, upstream) = (&self.name, &self.listen, &self.upstream);
        let why = match self.status().listening {
            Listening::Open => return None,
            Listening::Waiting => format!("not listening until the server at {upstream} accepts connections"),
            Listening::InUse => {
                "another program holds the address, so its requests are not measured; retrying".to_owned()
            }
            Listening::Unusable => "the address cannot be used, see the log; retrying".to_owned(),
        };
        Some(if *name == listen.to_string() { format!("{name}: {why}") } else { format!("{name} ({listen}): {why}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the listener is open after each of these results, closed at first; and what is known about the server.
    fn after(results: &[Reached]) -> (Vec<bool>, Option<bool>) {
        let (mut connects, mut open) = (Connects::default(), false);
        let begin = Instant::now();
        let states = results.iter().enumerate().map(|(n, result)| {
            connects.note(*result, begin + RETRY * n as u32);
            open = connects.wanted().unwrap_or(open);
            open
        });
        (states.collect(), connects.accepts)
    }

    #[test]
    fn listener_opens_when_the_server_accepts() {
        use Reached::{Accepts, Fails, Refuses, Unknown};
        assert_eq!(after(&[Refuses, Refuses]), (vec![false, false], None));
        assert_eq!(after(&[Refuses, Refuses, Refuses, Accepts]), (vec![false, false, false, true], Some(true)));
        assert_eq!(after(&[Unknown, Fails, Accepts]), (vec![false, false, true], Some(true)));
    }

    #[test]
    fn listener_closes_only_after_three_refused_connects_in_a_row() {
        use Reached::{Accepts, Fails, Refuses, Unknown};
        assert_eq!(after(&[Accepts, Refuses, Refuses, Accepts, Refuses]).0, [true; 5]);
        assert_eq!(after(&[Accepts, Refuses, Unknown, Refuses, Refuses]).0, [true, true, true, true, false]);
        // A frozen server whose backlog is full still holds its port.
        assert_eq!(after(&[Accepts, Fails, Fails, Fails, Fails]), (vec![true; 5], Some(false)));
        assert_eq!(after(&[Accepts, Refuses, Refuses, Fails, Refuses]), (vec![true; 5], Some(false)));
    }

    #[test]
    fn listener_closes_at_once_if_a_client_was_refused_too() {
        let (mut connects, begin) = (Connects::default(), Instant::now());
        connects.note(Reached::Accepts, begin);
        connects.note(Reached::Refuses, begin);
        assert_eq!(connects.wanted(), None);
        connects.confirm();
        assert_eq!((connects.wanted(), connects.accepts, connects.failed), (Some(false), Some(false), Some(begin)));
        connects.note(Reached::Accepts, begin);
        assert_eq!(connects.wanted(), Some(true));
    }

    #[test]
    fn unreachable_time_begins_with_the_first_failed_connect() {
        let (mut connects, begin) = (Connects::default(), Instant::now());
        let reach = |connects: &Connects, at: Duration| {
            let Connects { accepts, failed, .. } = *connects;
            Status { listening: Listening::Waiting, accepts, failed }.reach(begin + at)
        };
        assert_eq!(reach(&connects, RETRY), Reach::Unknown);
        connects.note(Reached::Accepts, begin);
        connects.note(Reached::Refuses, begin + CHECK);
        connects.note(Reached::Refuses, begin + CHECK + RETRY);
        assert_eq!(reach(&connects, CHECK + RETRY), Reach::Accepts, "one refusal may be a restart");
        connects.note(Reached::Refuses, begin + CHECK + 2 * RETRY);
        assert_eq!(reach(&connects, CHECK + 2 * RETRY), Reach::Fails(2 * RETRY));
        connects.note(Reached::Accepts, begin + 2 * CHECK);
        assert_eq!(reach(&connects, 2 * CHECK), Reach::Accepts);
    }
}
