//! Checks whether each listener's server accepts connections. A listener is open only while its server accepts them.

use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_observe::closed_enum;
use tokometer_proxy::listen::{self, Address, Gate, Listener, Reached, reach};
use tokometer_proxy::relay::{Relay, Unreachable, Unreached};
use tokometer_telemetry::live::Reach;

use crate::app::monitors::thread::Monitor;

/// Consecutive failed connects after which a server counts as unreachable, and consecutive refused connects after which
/// its listener closes. One refused connect suffices if a client's connect was refused too: while the listener is open,
/// tokometer accepts clients that the server would refuse.
const FAILURES: u32 = 3;

/// Interval between checks of a server that accepts connections.
const CHECK: Duration = Duration::from_secs(2);

/// Interval between checks after a failed connect: a server that has started must be reachable for its clients soon.
const RETRY: Duration = Duration::from_millis(200);

/// Like `RETRY`, for a server on another machine. Also the interval between attempts to open a listener.
const SLOW_RETRY: Duration = Duration::from_secs(1);

/// Maximum time that the start waits for the first checks of servers on this machine. Their listeners are then open
/// when the program reports that it has started. A check takes microseconds unless the server is frozen.
const FIRST_CHECKS: Duration = Duration::from_secs(1);

closed_enum! {
    /// Whether a listener accepts clients.
    pub(in crate::app) enum Listening {
        /// The listener accepts clients.
        Open = "open",
        /// The listener is closed until its server accepts connections.
        Waiting = "waiting",
        /// Another program holds the address: clients reach that program, and nothing is measured.
        InUse = "address_in_use",
        /// The address cannot be used for another reason, which is logged.
        Unusable = "address_unusable",
    }
}

/// State of one listener.
#[derive(Clone, Debug)]
pub(in crate::app) struct Status {
    pub(in crate::app) listening: Listening,
    /// Why the last connect failed; `None` if it succeeded.
    pub(in crate::app) error: Option<Arc<str>>,
    /// Whether the server accepts connections; `None` until enough connects have been attempted.
    accepts: Option<bool>,
    /// Time of the first of the latest consecutive failed connects.
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

    /// Why the last connect failed, for the log.
    fn reason(&self) -> &str {
        self.error.as_deref().unwrap_or_default()
    }
}

/// The listeners of a process and the servers behind them.
#[derive(Debug)]
pub(in crate::app) struct ListenerStates {
    listener_states: Vec<Arc<ListenerState>>,
}

/// One listener and its server.
#[derive(Debug)]
struct ListenerState {
    name: String,
    listen: Address,
    upstream: Address,
    gate: Gate,
    status: Mutex<Status>,
}

/// The last connects to one server.
#[derive(Debug, Default)]
struct Connects {
    /// Number of failed connects since the last successful one.
    failures: u32,
    /// Number of refused connects since the last one that succeeded or failed otherwise.
    refusals: u32,
    failed: Option<Instant>,
    /// Why the last connect failed.
    error: Option<Arc<str>>,
    accepts: Option<bool>,
}

impl Connects {
    fn note(&mut self, result: &Reached, at: Instant) {
        match result {
            Reached::Unknown => {}
            Reached::Accepts => *self = Connects { accepts: Some(true), ..Connects::default() },
            Reached::Refuses(error) | Reached::Fails(error) => {
                let is_refused = matches!(result, Reached::Refuses(_));
                self.failures = self.failures.saturating_add(1);
                self.refusals = if is_refused { self.refusals.saturating_add(1) } else { 0 };
                self.failed.get_or_insert(at);
                self.error = Some(error.to_string().into());
                if self.failures >= FAILURES {
                    self.accepts = Some(false);
                }
            }
        }
    }

    /// Makes the last refused connect sufficient to close the listener, because a client's connect was refused too.
    fn confirm(&mut self) {
        self.failures = self.failures.max(FAILURES);
        self.refusals = FAILURES;
        self.accepts = Some(false);
    }

    /// Whether the listener must be open; `None`: no change.
    fn wanted(&self) -> Option<bool> {
        match self.accepts {
            Some(true) if self.failures == 0 => Some(true),
            _ if self.refusals >= FAILURES => Some(false),
            _ => None,
        }
    }
}

impl ListenerStates {
    pub(in crate::app) fn new(listeners: &[Listener], addresses: &[Address], gates: Vec<Gate>) -> Arc<ListenerStates> {
        let status = Status { listening: Listening::Waiting, error: None, accepts: None, failed: None };
        let state = |((listener, listen), gate): ((&Listener, &Address), Gate)| {
            Arc::new(ListenerState {
                name: listener.name.clone(),
                listen: listen.clone(),
                upstream: listener.upstream.clone(),
                gate,
                status: Mutex::new(status.clone()),
            })
        };
        Arc::new(ListenerStates { listener_states: listeners.iter().zip(addresses).zip(gates).map(state).collect() })
    }

    /// State of each listener.
    pub(in crate::app) fn statuses(&self) -> Vec<Status> {
        self.listener_states.iter().map(|state| state.status()).collect()
    }

    /// State of one listener.
    pub(in crate::app) fn status(&self, listener: usize) -> Option<Status> {
        self.listener_states.get(listener).map(|state| state.status())
    }

    /// The addresses that tokometer listens on now.
    pub(in crate::app) fn open(&self) -> Vec<Address> {
        let open = self.listener_states.iter().filter(|state| state.status().listening == Listening::Open);
        open.map(|state| state.listen.clone()).collect()
    }

    /// One sentence for each listener that is not open.
    pub(in crate::app) fn closed(&self) -> Vec<String> {
        self.listener_states.iter().filter_map(|state| state.why_closed()).collect()
    }

    /// Checks every server now and then regularly, and opens and closes the listeners. Each server has its own thread,
    /// because a check may take long, for example name resolution without a DNS server. Returns when the servers on
    /// this machine are checked, or after `FIRST_CHECKS`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(in crate::app) fn watch(&self, relay: &Arc<Relay>) -> io::Result<Vec<Monitor>> {
        self.watch_with(relay, reach, FIRST_CHECKS)
    }

    fn watch_with(
        &self,
        relay: &Arc<Relay>,
        reach: impl Fn(&Address) -> Reached + Clone + Send + 'static,
        first_checks: Duration,
    ) -> io::Result<Vec<Monitor>> {
        let (checking, checked) = channel::<()>();
        let watch = |(listener, state): (usize, &Arc<ListenerState>)| {
            let (state, relay, reach, mut watch) =
                (Arc::clone(state), Arc::clone(relay), reach.clone(), Watch::default());
            let mut first = is_local(&state.upstream).then(|| checking.clone());
            Monitor::start(&format!("reach-{listener}"), Duration::ZERO, move || {
                let delay = watch.run(&state, &relay, listener, &reach);
                drop(first.take());
                delay
            })
        };
        let monitors = self.listener_states.iter().enumerate().map(watch).collect::<io::Result<Vec<_>>>()?;
        let triggers: Vec<_> = monitors.iter().map(Monitor::trigger).collect();
        relay.on_refused(move |listener| triggers.get(listener).into_iter().for_each(|trigger| trigger()));
        drop(checking);
        // Nothing is sent: this ends when every sender is dropped.
        checked.recv_timeout(first_checks).ok();
        Ok(monitors)
    }
}

/// The checks of one server.
#[derive(Debug, Default)]
struct Watch {
    connects: Connects,
    /// Number of client connections that the server had accepted at the last check.
    connected: u64,
    /// Number of client connections that the server had refused at the last check.
    refused: u64,
    /// Time of the next check; `None` before the first.
    due: Option<Instant>,
}

impl Watch {
    /// True if the server has refused clients since the last check and does not count as unreachable yet.
    fn is_refused(&self, relay: &Relay, listener: usize) -> bool {
        self.connects.accepts != Some(false)
            && relay.stats_of(listener).unreached(Unreached::Refused).get() != self.refused
    }

    /// Checks the server if a check is due or a client was refused; returns the time until the next check.
    fn run(
        &mut self,
        state: &ListenerState,
        relay: &Relay,
        listener: usize,
        reach: impl Fn(&Address) -> Reached,
    ) -> Duration {
        let now = Instant::now();
        match self.due {
            Some(due) if due > now && !self.is_refused(relay, listener) => due - now,
            due => {
                let delay = self.check(state, relay, listener, reach);
                self.due = Some(Instant::now() + delay);
                let status = state.status();
                if due.is_none() && self.connects.failures > 0 && status.listening == Listening::Waiting {
                    let (listener, upstream, error) = (&state.name, &state.upstream, status.reason());
                    tracing::info!(%listener, %upstream, error, "The server does not accept connections yet: the listener opens when it does.");
                }
                delay
            }
        }
    }

    /// Checks the server, opens or closes the listener, and returns the time until the next check.
    fn check(
        &mut self,
        state: &ListenerState,
        relay: &Relay,
        listener: usize,
        reach: impl Fn(&Address) -> Reached,
    ) -> Duration {
        let always =
            relay.settings().unreachable != Unreachable::Refuse || state.upstream == Address::OriginalDestination;
        let opened = always.then(|| state.open());
        if let Some(listening) = opened {
            // Published first, because the check may take long.
            state.set(Status { listening, ..state.status() });
        }
        let stats = relay.stats_of(listener);
        let (connected, refused) = (stats.connected.get(), stats.unreached(Unreached::Refused).get());
        let is_refused = std::mem::replace(&mut self.refused, refused) != refused;
        let is_proven = std::mem::replace(&mut self.connected, connected) != connected && !is_refused;
        let result = if is_proven { Reached::Accepts } else { reach(&state.upstream) };
        self.connects.note(&result, Instant::now());
        if is_refused && matches!(result, Reached::Refuses(_)) {
            self.connects.confirm();
        }
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
        let Connects { accepts, failed, failures, ref error, .. } = self.connects;
        state.set(Status { listening, error: error.clone(), accepts, failed });
        match (listening, failures) {
            (Listening::InUse | Listening::Unusable, _) => SLOW_RETRY,
            // The listener did not open: its old sockets are still being closed, or a drain has begun.
            (Listening::Waiting, 0) if wanted == Some(true) => RETRY,
            (_, 0) => CHECK,
            _ if is_local(&state.upstream) => RETRY,
            _ => SLOW_RETRY,
        }
    }
}

fn is_local(upstream: &Address) -> bool {
    match upstream {
        Address::Tcp { host, .. } => {
            host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback())
        }
        Address::Unix(_) | Address::OriginalDestination => true,
    }
}

impl ListenerState {
    fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn open(&self) -> Listening {
        match self.gate.open() {
            Ok(true) => Listening::Open,
            Ok(false) => Listening::Waiting,
            Err(error) => {
                let listening = if error.is_address_in_use() { Listening::InUse } else { Listening::Unusable };
                if self.status().listening != listening {
                    self.log_open_error(&error);
                }
                listening
            }
        }
    }

    fn log_open_error(&self, error: &listen::Error) {
        let (listener, upstream) = (&self.name, &self.upstream);
        if error.is_address_in_use() {
            tracing::warn!(%listener, %upstream, %error, "Another program holds the listen address: clients reach it directly, and their requests are not measured. If that program is the server, it ignores its configured address. Retrying every second.");
        } else {
            tracing::error!(%listener, %error, "The listener cannot be opened. Retrying every second.");
        }
    }

    /// Publishes the state, and logs a change.
    fn set(&self, status: Status) {
        let mut own = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *own, status.clone());
        drop(own);
        let (listener, upstream, error) = (&self.name, &self.upstream, status.reason());
        match (before.listening, status.listening) {
            (Listening::Open, Listening::Waiting) => {
                tracing::warn!(%listener, %upstream, error, "The server refuses connections: the listener is closed until the server accepts them again. Open connections continue.");
            }
            (Listening::Waiting | Listening::InUse | Listening::Unusable, Listening::Open) => {
                let why = if status.accepts == Some(true) { "The server accepts connections: the" } else { "The" };
                tracing::info!(%listener, %upstream, "{why} listener is open.");
            }
            (Listening::Open, Listening::Open) => match (before.accepts, status.accepts) {
                (None | Some(true), Some(false)) => {
                    tracing::warn!(%listener, %upstream, error, "The server cannot be reached. The listener stays open.");
                }
                (Some(false), Some(true)) => {
                    tracing::info!(%listener, %upstream, "The server accepts connections again.");
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn why_closed(&self) -> Option<String> {
        let (name, listen, upstream) = (&self.name, &self.listen, &self.upstream);
        let status = self.status();
        let why = match status.listening {
            Listening::Open => return None,
            Listening::Waiting => {
                let error = status.error.map(|error| format!("; last error: {error}")).unwrap_or_default();
                format!("not listening until the server at {upstream} accepts connections{error}")
            }
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
    use std::net::SocketAddr;
    use std::sync::mpsc::sync_channel;

    use tokometer_observe::input::{Connection, Observe, Observer};
    use tokometer_proxy::relay::{Drain, Settings};

    use super::*;

    /// Long enough for every event that a test expects.
    const WAIT: Duration = Duration::from_secs(60);

    struct Unobserved;

    impl Observe for Unobserved {
        fn accepted(&self, _: &Connection) -> Option<Box<dyn Observer>> {
            None
        }
    }

    /// A listener on a free port for each of these servers.
    fn listener_states(upstreams: &[&str], settings: Settings) -> (Arc<ListenerStates>, Arc<Relay>) {
        let listener = |upstream: &&str| Listener {
            name: (*upstream).to_owned(),
            listen: Address::from(SocketAddr::from(([127, 0, 0, 1], 0))),
            upstream: Address::Tcp { host: (*upstream).to_owned(), port: 1 },
            tls: None,
            upstream_tls: None,
            rewrite: None,
        };
        let listeners: Vec<Listener> = upstreams.iter().map(listener).collect();
        let bound: Vec<_> = listeners.iter().map(|of| listen::reserve(of.clone(), &settings).unwrap()).collect();
        let addresses: Vec<Address> = bound.iter().map(|bound| bound.address.clone()).collect();
        let relay = Relay::new(settings, listeners.len(), Arc::new(Unobserved), Drain::new());
        let (_workers, gates) = listen::gated(bound, &relay, 1).unwrap();
        (ListenerStates::new(&listeners, &addresses, gates), relay)
    }

    fn host(address: &Address) -> &str {
        match address {
            Address::Tcp { host, .. } => host,
            _ => "",
        }
    }

    #[test]
    fn start_does_not_wait_for_remote_servers_whose_checks_run_concurrently() {
        let (listener_states, relay) = listener_states(&["a.example", "127.0.0.1", "b.example"], Settings::default());
        // Checks of remote servers block until the end of the test, like name resolution without a DNS server.
        let (checking, checks) = channel();
        let resolver = Arc::new(Mutex::new(()));
        let (resolves, unresolved) = (Arc::clone(&resolver), resolver.lock().unwrap());
        let check = move |upstream: &Address| {
            if host(upstream) != "127.0.0.1" {
                checking.send(()).unwrap();
                drop(resolves.lock());
            }
            Reached::Accepts
        };
        let monitors = listener_states.watch_with(&relay, check, WAIT).unwrap();
        let listening = || listener_states.statuses().into_iter().map(|status| status.listening).collect::<Vec<_>>();
        assert_eq!(listening(), [Listening::Waiting, Listening::Open, Listening::Waiting]);
        for _ in 0..2 {
            checks.recv_timeout(WAIT).unwrap();
        }
        drop((unresolved, monitors));
    }

    #[test]
    fn start_does_not_wait_long_for_a_frozen_local_server() {
        let (listener_states, relay) = listener_states(&["127.0.0.1"], Settings::default());
        let (frozen, until) = sync_channel::<()>(0);
        let check = move |_: &Address| {
            frozen.send(()).ok();
            fails()
        };
        let _monitors = listener_states.watch_with(&relay, check, Duration::ZERO).unwrap();
        assert_eq!(listener_states.statuses()[0].reach(Instant::now()), Reach::Unknown);
        drop(until);
    }

    #[test]
    fn closed_listener_reports_why_its_server_cannot_be_reached() {
        let (listener_states, relay) = listener_states(&["127.0.0.1"], Settings::default());
        let _monitors = listener_states.watch_with(&relay, |_| fails(), WAIT).unwrap();
        let closed = listener_states.closed();
        assert!(closed[0].ends_with("accepts connections; last error: the name has no address"), "{closed:?}");
        assert_eq!(listener_states.statuses()[0].error.as_deref(), Some("the name has no address"));
    }

    #[test]
    fn listener_that_is_always_open_does_not_wait_for_a_check() {
        let settings = Settings { unreachable: Unreachable::Http503, ..Settings::default() };
        let (listener_states, relay) = listener_states(&["a.example"], settings);
        let (checking, checks) = sync_channel(0);
        let opened = Arc::clone(&listener_states);
        let check = move |_: &Address| {
            checking.send(opened.statuses()[0].listening).ok();
            fails()
        };
        let _monitors = listener_states.watch_with(&relay, check, WAIT).unwrap();
        assert_eq!(checks.recv_timeout(WAIT), Ok(Listening::Open));
    }

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
        connects.note(&refuses(), begin + CHECK);
        connects.note(&refuses(), begin + CHECK + RETRY);
        assert_eq!(reach(&connects, CHECK + RETRY), Reach::Accepts, "one refusal may be a restart");
        connects.note(&refuses(), begin + CHECK + 2 * RETRY);
        assert_eq!(reach(&connects, CHECK + 2 * RETRY), Reach::Fails(2 * RETRY));
        connects.note(&accepts(), begin + 2 * CHECK);
        assert_eq!(reach(&connects, 2 * CHECK), Reach::Accepts);
    }
}
