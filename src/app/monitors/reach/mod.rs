//! Checks whether each listener's server accepts connections. A listener is open only while its server accepts them.

mod connects;
mod watch;

use std::io;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_metrics::closed_enum;
use tokometer_proxy::listen::{self, Address, Gate, Listener, Probe, Reached};
use tokometer_proxy::relay::{Relay, Unreached};
use tokometer_telemetry::live::Reach;

use crate::app::monitors::thread::Monitor;
use watch::Watch;

/// Maximum time that the start waits for the first checks of servers on this machine. Their listeners are then open
/// when the program reports that it has started. A check takes microseconds unless the server is frozen.
const FIRST_CHECKS: Duration = Duration::from_secs(1);

/// Time for which checks must fail or have no result until a warning is logged, unless the server counts as unreachable
/// earlier.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between warnings while a server cannot be reached.
const REMINDER: Duration = Duration::from_secs(60);

/// Interval between calls that warn of checks without a result.
const OVERDUE: Duration = Duration::from_secs(1);

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
    error: Option<(Unreached, Arc<str>)>,
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

    /// Why the last connect failed; `None` if it succeeded.
    pub(in crate::app) fn error(&self) -> Option<&Arc<str>> {
        self.error.as_ref().map(|(_, error)| error)
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
    probe: Probe,
    gate: Gate,
    began: Instant,
    status: Mutex<Status>,
    /// Time of the last warning that the server cannot be reached; `None` if it can be reached.
    warned: Mutex<Option<Instant>>,
}

impl ListenerStates {
    /// # Errors
    /// If the name in a server's certificate is not known.
    pub(in crate::app) fn new(
        listeners: &[Listener],
        addresses: &[Address],
        gates: Vec<Gate>,
    ) -> Result<Arc<ListenerStates>, listen::Error> {
        let began = Instant::now();
        let status = Status { listening: Listening::Waiting, error: None, accepts: None, failed: None };
        let state = |((listener, listen), gate): ((&Listener, &Address), Gate)| {
            Ok(Arc::new(ListenerState {
                name: listener.name.clone(),
                listen: listen.clone(),
                upstream: listener.upstream.clone(),
                probe: Probe::new(listener)?,
                gate,
                began,
                status: Mutex::new(status.clone()),
                warned: Mutex::default(),
            }))
        };
        let listener_states = listeners.iter().zip(addresses).zip(gates).map(state).collect::<Result<_, _>>()?;
        Ok(Arc::new(ListenerStates { listener_states }))
    }

    /// How to test each listener's server.
    pub(in crate::app) fn probes(&self) -> Vec<Probe> {
        self.listener_states.iter().map(|state| state.probe.clone()).collect()
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
        self.watch_with(relay, Probe::reach, FIRST_CHECKS)
    }

    fn watch_with(
        &self,
        relay: &Arc<Relay>,
        reach: impl Fn(&Probe) -> Reached + Clone + Send + 'static,
        first_checks: Duration,
    ) -> io::Result<Vec<Monitor>> {
        let (checking, checked) = channel::<()>();
        let watch = |(listener, state): (usize, &Arc<ListenerState>)| {
            let (state, relay, reach, mut watch) =
                (Arc::clone(state), Arc::clone(relay), reach.clone(), Watch::default());
            let mut first = is_local(&state.upstream).then(|| checking.clone());
            Monitor::start(&format!("reach-{listener}"), Duration::ZERO, move || {
                let delay = watch.run(Instant::now(), &state, &relay, listener, || reach(&state.probe));
                drop(first.take());
                delay
            })
        };
        let mut monitors = self.listener_states.iter().enumerate().map(watch).collect::<io::Result<Vec<_>>>()?;
        let triggers: Vec<_> = monitors.iter().map(Monitor::trigger).collect();
        let states = self.listener_states.clone();
        monitors.push(Monitor::start("reach", OVERDUE, move || {
            states.iter().for_each(|state| state.warn_if_down(Instant::now()));
            OVERDUE
        })?);
        relay.on_refused(move |listener| triggers.get(listener).into_iter().for_each(|trigger| trigger()));
        drop(checking);
        // Nothing is sent: this ends when every sender is dropped.
        checked.recv_timeout(first_checks).ok();
        Ok(monitors)
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
    fn set(&self, status: Status, now: Instant) {
        let mut own = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *own, status.clone());
        drop(own);
        let (listener, upstream) = (&self.name, &self.upstream);
        match (before.listening, status.listening) {
            (Listening::Waiting | Listening::InUse | Listening::Unusable, Listening::Open) => {
                let why = if status.accepts == Some(true) { "The server accepts connections: the" } else { "The" };
                tracing::info!(%listener, %upstream, "{why} listener is open.");
            }
            (Listening::Open, Listening::Open) if (before.accepts, status.accepts) == (Some(false), Some(true)) => {
                tracing::info!(%listener, %upstream, "The server accepts connections again.");
            }
            _ => {}
        }
        self.warn_if_down(now);
    }

    /// Warns that the server cannot be reached, once a minute while it lasts.
    fn warn_if_down(&self, now: Instant) {
        let status = self.status();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unchecked = status.accepts.is_none() && self.upstream != Address::OriginalDestination;
        let Some(since) = status.failed.or(is_unchecked.then_some(self.began)) else {
            *warned = None;
            return;
        };
        let is_due = match *warned {
            Some(last) => now >= last + REMINDER,
            None => status.accepts == Some(false) || now >= since + PATIENCE,
        };
        if !is_due {
            return;
        }
        *warned = Some(now);
        drop(warned);
        let (listener, upstream) = (&self.name, &self.upstream);
        let (why, error) = match &status.error {
            Some((why, error)) => (*why, &**error),
            None => (Unreached::NameResolution, "the first check has no result yet"),
        };
        let consequence = match status.listening {
            Listening::Waiting => "the listener is closed until it can be; open connections continue",
            _ => "clients get errors",
        };
        tracing::warn!(%listener, %upstream, error, "The server cannot be reached: {consequence}. {}", why.advice());
    }

    fn why_closed(&self) -> Option<String> {
        let (name, listen, upstream) = (&self.name, &self.listen, &self.upstream);
        let status = self.status();
        let why = match status.listening {
            Listening::Open => return None,
            Listening::Waiting => {
                let error = status.error().map(|error| format!("; last error: {error}")).unwrap_or_default();
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
    use std::cell::RefCell;
    use std::net::SocketAddr;
    use std::sync::mpsc::sync_channel;

    use tokometer_observe::input::{Connection, Observe, Observer};
    use tokometer_proxy::relay::{Drain, Settings, Unreachable};

    use super::*;

    /// Long enough for every event that a test expects.
    const WAIT: Duration = Duration::from_secs(60);

    const NEVER: [u64; 0] = [];

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
        (ListenerStates::new(&listeners, &addresses, gates).unwrap(), relay)
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
        let check = move |probe: &Probe| {
            if host(probe.upstream()) != "127.0.0.1" {
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
        let check = move |_: &Probe| {
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
        assert_eq!(listener_states.statuses()[0].error().map(|error| &**error), Some("the name has no address"));
    }

    #[test]
    fn listener_that_is_always_open_does_not_wait_for_a_check() {
        let settings = Settings { unreachable: Unreachable::Http503, ..Settings::default() };
        let (listener_states, relay) = listener_states(&["a.example"], settings);
        let (checking, checks) = sync_channel(0);
        let opened = Arc::clone(&listener_states);
        let check = move |_: &Probe| {
            checking.send(opened.statuses()[0].listening).ok();
            fails()
        };
        let _monitors = listener_states.watch_with(&relay, check, WAIT).unwrap();
        assert_eq!(checks.recv_timeout(WAIT), Ok(Listening::Open));
    }

    fn fails() -> Reached {
        Reached::Fails(io::Error::other("the name has no address"))
    }

    /// Runs the checks of one server from second to second, and returns the seconds at which it was connected to.
    /// `traffic` is called before each second.
    fn connects(relay: &Relay, states: &ListenerStates, seconds: u64, traffic: impl Fn(u64)) -> Vec<u64> {
        let (mut watch, begin, probed) = (Watch::default(), Instant::now(), RefCell::new(Vec::new()));
        for second in 0..seconds {
            traffic(second);
            let reach = || {
                probed.borrow_mut().push(second);
                Reached::Accepts
            };
            watch.run(begin + Duration::from_secs(second), &states.listener_states[0], relay, 0, reach);
        }
        probed.into_inner()
    }

    #[test]
    fn idle_server_is_connected_to_every_15_seconds_and_a_busy_one_never() {
        for unreachable in [Unreachable::Refuse, Unreachable::Http503] {
            let settings = Settings { unreachable, ..Settings::default() };
            let (states, relay) = listener_states(&["127.0.0.1"], settings.clone());
            assert_eq!(connects(&relay, &states, 61, |_| {}), [0, 15, 30, 45, 60], "{unreachable:?}");
            let busy = |_| relay.stats_of(0).connected.add(1);
            assert_eq!(connects(&relay, &states, 61, busy), NEVER, "{unreachable:?}");
            // The client that is refused triggers a check at once.
            let (states, relay) = listener_states(&["127.0.0.1"], settings);
            let refused = |second| relay.stats_of(0).unreached(Unreached::Refused).add(u64::from(second == 20));
            assert_eq!(connects(&relay, &states, 30, refused), [0, 15, 20], "{unreachable:?}");
        }
    }

    #[test]
    fn server_behind_a_listener_that_cannot_open_is_not_connected_to_more_often() {
        let (states, relay) = listener_states(&["127.0.0.1"], Settings::default());
        relay.drain().begin();
        assert_eq!(connects(&relay, &states, 61, |_| {}), NEVER);
        assert_eq!(states.statuses()[0].listening, Listening::Waiting);
    }

    #[test]
    fn unreachable_server_is_warned_of_soon_and_then_every_minute() {
        let (states, _relay) = listener_states(&["127.0.0.1"], Settings::default());
        let state = &states.listener_states[0];
        let warned = |second: u64| {
            let now = state.began + Duration::from_secs(second);
            state.warn_if_down(now);
            *state.warned.lock().unwrap() == Some(now)
        };
        // The first check has no result.
        assert_eq!((0..130).filter(|second| warned(*second)).collect::<Vec<_>>(), [2, 62, 122]);
        let status = Status { accepts: Some(true), ..state.status() };
        state.set(status.clone(), state.began + Duration::from_secs(130));
        assert_eq!((130..300).filter(|second| warned(*second)).count(), 0);
        let failed = Some(state.began + Duration::from_secs(300));
        let error = Some((Unreached::Refused, "Connection refused".into()));
        state.set(Status { error, failed, ..status }, state.began + Duration::from_secs(300));
        assert_eq!((300..400).filter(|second| warned(*second)).collect::<Vec<_>>(), [302, 362]);
    }
}
