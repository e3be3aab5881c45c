//! Background threads that watch the engines, the objectives and the interception of traffic.

use std::io;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use tokometer_engine::scrape::Dial;
use tokometer_engine::scrape::Scraper;
use tokometer_engine::scrape::Settings;
use tokometer_engine::scrape::Target;
use tokometer_engine::scrape::Wire;
use tokometer_proxy::listen;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Interception;
use tokometer_proxy::listen::Listener;
use tokometer_proxy::listen::Protocol;
use tokometer_proxy::listen::Upstream;
use tokometer_proxy::listen::intercepts;
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::Evaluator;
use tokometer_telemetry::slo::Window;

/// Why scraping cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A TLS file cannot be used.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The thread cannot be started.
    #[error("cannot start the thread that scrapes the engines' metrics: {0}")]
    Thread(#[from] io::Error),
}

/// Starts scraping the engines' metrics.
pub(super) fn scrape(settings: &Settings, listeners: &[Listener]) -> Result<Scraper, Error> {
    let dialer = |(listener, target): (&Listener, &Option<Target>)| {
        target.as_ref().map(|target| EngineDialer::new(listener, target)).transpose()
    };
    let dialers: Vec<Option<Arc<EngineDialer>>> =
        listeners.iter().zip(&settings.targets).map(dialer).collect::<Result<_, _>>()?;
    Ok(Scraper::start(settings, |listener, _| Some(dialers.get(listener)?.clone()? as Arc<dyn Dial>))?)
}

/// Connects to an engine's own metrics: address and TLS of the upstream, optionally another port.
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
        // Each connection is used for one request.
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
        Ok(Box::new(self.upstream.connect(None, Protocol::Http1).await?))
    }

    fn host(&self) -> String {
        self.host.clone()
    }

    fn shown(&self) -> String {
        self.shown.clone()
    }
}

/// Time between evaluations. A miss is counted at the second one.
const EVALUATION: Duration = Duration::from_secs(1);

/// Evaluates waiting requests once a second, and keeps the sums for the last minutes. Dropping it stops its thread.
#[derive(Debug)]
pub(super) struct ObjectiveMonitor {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectiveMonitor {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        evaluate: Arc<Evaluator>,
        in_flight: Arc<InFlight>,
        window: Arc<Window>,
    ) -> io::Result<ObjectiveMonitor> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("objectives".to_owned()).spawn(move || {
            while stopped.recv_timeout(EVALUATION) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                evaluate.look(&in_flight, now);
                in_flight.tick(now);
                window.note(now, || evaluate.evaluated());
            }
        })?;
        Ok(ObjectiveMonitor { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ObjectiveMonitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread is already printed; there is nothing left to stop.
            thread.join().ok();
        }
    }
}

/// Time between checks.
const CHECK: Duration = Duration::from_secs(60);

/// Time between checks while a server does not respond, as during startup, when it loads its model.
const STARTUP_CHECK: Duration = Duration::from_secs(2);

/// Result per listener; `None` while its server does not respond.
pub(super) type Interceptions = Arc<Mutex<Vec<Option<Interception>>>>;

/// Checks once a minute whether the server can be reached directly, bypassing tokometer. Dropping it stops its thread.
#[derive(Debug)]
pub(super) struct InterceptionMonitor {
    /// Dropping it ends the thread without waiting: its last connect may take a second.
    _stop: Sender<()>,
}

impl InterceptionMonitor {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        listeners: Vec<Listener>,
        addresses: Vec<Address>,
        found: Interceptions,
    ) -> io::Result<InterceptionMonitor> {
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new().name("interception".to_owned()).spawn(move || {
            let mut last: Vec<Option<Interception>> = vec![None; listeners.len()];
            loop {
                let look =
                    |(listener, listen): (&Listener, &Address)| intercepts(listen, &listener.upstream, &addresses);
                let now: Vec<Option<Interception>> = listeners.iter().zip(&addresses).map(look).collect();
                for ((listener, now), last) in listeners.iter().zip(&now).zip(&last) {
                    if let (Some(now), true) = (now, now != last) {
                        log(listener, now);
                    }
                }
                let period = if now.contains(&None) { STARTUP_CHECK } else { CHECK };
                last.clone_from(&now);
                *found.lock().unwrap_or_else(PoisonError::into_inner) = now;
                if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(InterceptionMonitor { _stop: stop })
    }
}

fn log(listener: &Listener, Interception { mode, result }: &Interception) {
    let (name, upstream) = (&listener.name, &listener.upstream);
    match *result {
        "open" => {
            tracing::warn!(listener = %name, %upstream, mode, "The server can be reached directly: requests that bypass tokometer are not measured.")
        }
        result => {
            tracing::info!(listener = %name, %upstream, mode, result, "Checked how tokometer intercepts traffic to the server.")
        }
    }
}
