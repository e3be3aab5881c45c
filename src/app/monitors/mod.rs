//! Background threads that watch the engines, the objectives and the interception of traffic.

mod reach;
mod thread;
mod watching;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokometer_engine::scrape::{Dial, Scraper, Settings, Target, Wire};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};
use tokometer_proxy::listen::Route;
use tokometer_proxy::listen::{self, Address, DirectClients, Interception, Listener, Protocol, Upstream, intercepts};
use tokometer_proxy::relay::Relay;
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::{Evaluator, Window};

pub(super) use reach::ListenerStates;
pub(super) use thread::Monitor;
pub(super) use watching::Watching;

/// Why the monitors cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A TLS file cannot be used.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// A thread cannot be started.
    #[error("cannot start the thread that {0}: {1}")]
    Thread(&'static str, #[source] io::Error),
}

/// Starts scraping the engines' metrics.
pub(super) fn scrape(settings: &Settings, listeners: &[Listener]) -> Result<Scraper, Error> {
    let dialer = |(listener, target): (&Listener, &Option<Target>)| {
        target.as_ref().map(|target| EngineDialer::new(listener, target)).transpose()
    };
    let dialers: Vec<Option<Arc<EngineDialer>>> =
        listeners.iter().zip(&settings.targets).map(dialer).collect::<Result<_, _>>()?;
    Scraper::start(settings, |listener, _| Some(dialers.get(listener)?.clone()? as Arc<dyn Dial>))
        .map_err(|error| Error::Thread("scrapes the engines' metrics", error))
}

/// Connects to an engine's metrics page, with the upstream's address and TLS settings and optionally another port.
struct EngineDialer {
    upstream: Upstream,
    host: String,
    shown: String,
}

impl EngineDialer {
    fn new(listener: &Listener, target: &Target) -> Result<Arc<EngineDialer>, listen::Error> {
        let mut address = listener.upstream.clone();
        if let (Address::Tcp { port, .. }, Some(own)) = (&mut address, target.port) {
            *port = own;
        }
        let shown = address.to_string();
        let host = match &address {
            Address::Tcp { .. } => shown.clone(),
            _ => "localhost".to_owned(),
        };
        // No keepalive, because each connection is used for one request.
        Ok(Arc::new(EngineDialer {
            upstream: Upstream::new(&address, listener.upstream_tls.as_ref(), None)?,
            host,
            shown,
        }))
    }
}

#[async_trait]
impl Dial for EngineDialer {
    async fn dial(&self) -> io::Result<Box<dyn Wire>> {
        Ok(Box::new(self.upstream.connect(Route::default(), Protocol::Http1).await?))
    }

    fn host(&self) -> String {
        self.host.clone()
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }
}

/// Interval between evaluations. A missed objective is counted when two consecutive evaluations detect it.
const EVALUATION: Duration = Duration::from_secs(1);

/// Evaluates waiting requests once a second, and keeps the counts of the last minutes.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn objectives(
    evaluator: Arc<Evaluator>,
    in_flight: Arc<InFlight>,
    window: Arc<Window>,
) -> io::Result<Monitor> {
    Monitor::start("objectives", EVALUATION, move || {
        let now = Instant::now();
        evaluator.look(&in_flight, now);
        in_flight.tick(now);
        window.note(now, || evaluator.evaluated());
        EVALUATION
    })
}

/// Interval between checks.
const CHECK: Duration = Duration::from_secs(60);

/// Interval between checks while a server does not respond, for example while it loads its model.
const STARTUP_CHECK: Duration = Duration::from_secs(2);

/// Delay before the check that confirms a bypass.
const CONFIRMATION: Duration = Duration::from_secs(1);

/// The results of the last check.
#[derive(Default)]
struct LastCheck(Vec<Option<Interception>>);

impl LastCheck {
    /// Stores the results of a new check; false if they contain a bypass that the previous check did not find. A check
    /// may report a bypass by mistake if a listener of tokometer opens or closes meanwhile; the next check does not.
    fn confirms(&mut self, results: &[Option<Interception>]) -> bool {
        let last = std::mem::replace(&mut self.0, results.to_vec());
        let is_open = |result: &Option<Interception>| result.is_some_and(|found| found.result == "open");
        results.iter().enumerate().all(|(listener, result)| !is_open(result) || last.get(listener) == Some(result))
    }
}

/// Checks once a minute whether the server can be reached directly, bypassing tokometer.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn interception(
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
    found: Arc<ListenerStats>,
) -> io::Result<Monitor> {
    let mut last: Vec<Option<Interception>> = vec![None; listeners.len()];
    let mut last_check = LastCheck::default();
    let probes = found.listener_states.probes();
    let mut direct: Vec<DirectClients> = listeners.iter().map(|_| DirectClients::default()).collect();
    let mut due = Instant::now();
    Monitor::start("interception", Duration::ZERO, move || {
        let open = found.listener_states.open();
        let began = Instant::now();
        // Until the next complete check, only servers that have not responded yet are checked.
        let is_complete = began >= due;
        let each = probes.iter().zip(&addresses).zip(&last).zip(&mut direct);
        let now: Vec<Option<Interception>> = each
            .map(|(((probe, listen), last), direct)| match last {
                Some(last) if !is_complete => Some(*last),
                _ => intercepts(listen, probe, &addresses, &open, direct),
            })
            .collect();
        if !last_check.confirms(&now) || direct.iter().any(DirectClients::unconfirmed) {
            return CONFIRMATION;
        }
        if is_complete {
            due = began + CHECK;
        }
        for ((listener, now), last) in listeners.iter().zip(&now).zip(&last) {
            if let (Some(now), true) = (now, now != last) {
                log(listener, now);
            }
        }
        let period = if now.contains(&None) { STARTUP_CHECK } else { due.saturating_duration_since(Instant::now()) };
        last.clone_from(&now);
        *found.interceptions.lock().unwrap_or_else(PoisonError::into_inner) = now;
        period
    })
}

fn log(listener: &Listener, Interception { mode, result }: &Interception) {
    let (name, upstream) = (&listener.name, &listener.upstream);
    match *result {
        "open" => {
            tracing::warn!(listener = %name, %upstream, mode, "The server can be reached directly: requests that bypass tokometer are not measured.")
        }
        "bypassed" => {
            tracing::warn!(listener = %name, %upstream, mode, "Another process on this machine is connected to the server: its requests bypass tokometer and are not measured. If a proxy in the pod connects to the server on localhost, use port-swap mode, or point the proxy at tokometer.")
        }
        result => {
            tracing::info!(listener = %name, %upstream, mode, result, "Checked how tokometer intercepts traffic to the server.")
        }
    }
}

/// Whether the last reload of the configuration succeeded; the start counts as the first.
#[derive(Debug, Default)]
pub(super) struct Reloads {
    failed: AtomicBool,
}

impl Reloads {
    /// Records a reload.
    pub(super) fn last(&self, applied: bool) {
        self.failed.store(!applied, Ordering::Relaxed);
    }
}

impl Collect for Reloads {
    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::ConfigReload, &[], u64::from(!self.failed.load(Ordering::Relaxed)));
    }
}

/// State and connections of the listeners, and how each listener intercepts its server's traffic.
#[derive(Debug)]
pub(super) struct ListenerStats {
    pub(super) relay: Arc<Relay>,
    pub(super) listener_states: Arc<ListenerStates>,
    /// By listener; `None` while its server does not respond.
    pub(super) interceptions: Mutex<Vec<Option<Interception>>>,
}

impl Collect for ListenerStats {
    fn collect(&self, points: &mut Points<'_>) {
        self.relay.collect(points);
        for (listener, status) in self.listener_states.statuses().into_iter().enumerate() {
            points.put_at(listener, Id::Listening, &[(Key::State, status.listening.as_str().into())], 1.0);
        }
        let interceptions = self.interceptions.lock().unwrap_or_else(PoisonError::into_inner);
        for (listener, found) in interceptions.iter().enumerate() {
            if let Some(Interception { mode, result }) = *found {
                let known = [(Key::Mode, mode.into()), (Key::Result, result.into())];
                points.put_at(listener, Id::Interception, &known, 1.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bypass_counts_when_two_consecutive_checks_find_it() {
        let result = |result| Some(Interception { mode: "address_split", result });
        let (open, closed) = (result("open"), result("closed"));
        let mut last = LastCheck::default();
        for (results, expected) in [
            ([open, None], false),
            ([closed, closed], true),
            ([open, closed], false),
            ([open, closed], true),
            ([open, open], false),
            ([open, open], true),
            ([closed, None], true),
        ] {
            assert_eq!(last.confirms(&results), expected, "{results:?}");
        }
    }
}
