//! `tokometer demo`: a simulated server, tokometer in front of it and a load, in one process, shown by `top`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::app::instrument;
use crate::app::instrument::Instrument;
use crate::{config, top};
use tokometer_engine::scrape::Target;
use tokometer_observe::measure::{Outcome, Record, Sink};
use tokometer_proxy::listen::{Address, Listener};
use tokometer_sim::server::Simulator;
use tokometer_sim::{load, server};

/// Intervals between updates of the screen, and between plain lines.
const REDRAW: Duration = Duration::from_secs(1);
const LINE: Duration = Duration::from_secs(2);

/// Time between two scrapes of the simulated server's metrics.
const SCRAPE: Duration = Duration::from_secs(3);

/// Duration of a demo without a terminal.
const UNATTENDED: Duration = Duration::from_secs(20);

/// User settings of a demo.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Run time; `None`: run until the user ends the demo, or for 20 s without a terminal.
    pub duration: Option<Duration>,
    /// Concurrent streams.
    pub streams: usize,
    /// What the terminal can show.
    pub display: top::Display,
    /// Admin address; `None`: the default port on loopback, or any free port if that one is in use.
    pub admin: Option<SocketAddr>,
}

/// The default admin address.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Why a demo failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The simulated server cannot start.
    #[error(transparent)]
    Simulator(#[from] server::Error),
    /// The proxy cannot start.
    #[error(transparent)]
    Instrument(#[from] instrument::Error),
    /// The load failed.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// The display of the traffic failed.
    #[error(transparent)]
    Top(#[from] top::Error),
    /// The output cannot be written, or a runtime cannot be created.
    #[error("the demo cannot run: {0}")]
    Io(#[from] io::Error),
    /// The proxy and the load recorded different numbers of requests.
    #[error("the proxy recorded {recorded} requests, the client {ended}: this is a bug in tokometer")]
    Disagree {
        /// Recorded by the proxy.
        recorded: u64,
        /// Recorded by the load.
        ended: u64,
    },
}

impl Error {
    /// True for a configuration error, which a retry cannot fix.
    pub fn is_config_error(&self) -> bool {
        matches!(self, Error::Instrument(error) if error.is_config_error())
    }
}

/// Runs a demo and writes to `out`.
///
/// # Errors
/// If a part cannot start, or the request counts of the proxy and the client differ.
pub fn run(settings: &Settings, out: &mut impl Write) -> Result<(), Error> {
    let duration = settings.duration.or((!io::stdout().is_terminal()).then_some(UNATTENDED));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let simulator = runtime.block_on(Simulator::start(simulated(settings.streams)))?;
    let outcomes = Arc::new(Outcomes::default());
    let instrument = start(settings, &simulator, &outcomes)?;
    let relay = instrument.addresses().first().map(ToString::to_string).unwrap_or_default();
    let mut admin = instrument.admin();
    if admin.ip().is_unspecified() {
        admin.set_ip([127, 0, 0, 1].into());
    }
    writeln!(
        out,
        "A simulated vLLM with tokometer in front of it. Clients: {}; some requests fail on purpose.\n\n  \
         live page  http://{admin}/live\n  \
         metrics    http://{admin}/metrics\n  \
         proxy      http://{relay}/v1/chat/completions\n",
        settings.streams
    )?;
    if settings.admin.is_none() && admin != ADMIN {
        writeln!(
            out,
            "Port {} is in use, perhaps by another tokometer; this one uses port {}.\n",
            ADMIN.port(),
            admin.port()
        )?;
    }
    let load = runtime.spawn(load::run(offered(settings, duration, &relay), |_| {}));
    let display = top::Settings {
        admin: admin.into(),
        once: false,
        interval: if settings.display.has_screen() { REDRAW } else { LINE },
        end: duration.map(|duration| Instant::now() + duration),
        hangup_ends: true,
        display: settings.display,
    };
    top::run(&display, out)?;
    // The user may have ended the demo early.
    let summary = if display.end.is_some_and(|end| Instant::now() >= end) {
        Some(runtime.block_on(load).map_err(io::Error::other)??)
    } else {
        load.abort();
        None
    };
    runtime.block_on(instrument.drain(Duration::ZERO, std::future::pending()));
    instrument.stop();
    // Read after `stop`: until then, a low-priority thread may still be recording the last requests.
    let outcomes = outcomes.0.lock().unwrap_or_else(PoisonError::into_inner);
    let counts: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{} {count}", outcome.as_str())).collect();
    writeln!(out, "\n{}", counts.join("   "))?;
    if let Some(summary) = summary {
        let first_token = summary.time_to_first_token_ms.p50;
        writeln!(
            out,
            "{} requests in {:.1} s; time to first token p50 at the client: {first_token:.1} ms",
            summary.requests, summary.seconds
        )?;
        let recorded = outcomes.values().sum();
        if recorded != summary.requests {
            return Err(Error::Disagree { recorded, ended: summary.requests });
        }
    }
    writeln!(
        out,
        "\nNext, in front of your own server on port 8001:\n  \
         tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001"
    )?;
    Ok(())
}

/// A server that is too small for the clients, so that requests queue, and with faults, so that outcomes vary.
fn simulated(streams: usize) -> server::Settings {
    let faults = [("stall:2", 0.02), ("error-event:10", 0.02), ("cut:10", 0.01), ("status:429", 0.02)];
    let faults = faults.iter().filter_map(|(name, chance)| Some((name.parse().ok()?, *chance)));
    server::Settings {
        max_concurrency: (streams * 7 / 8).max(1),
        // About 200 tokens per client.
        kv_cache_tokens: streams as u64 * 200,
        cached_share: 0.4,
        per_request_metrics: true,
        force_include_usage: true,
        faults: faults.collect(),
        ..server::Settings::default()
    }
}

fn offered(settings: &Settings, duration: Option<Duration>, relay: &str) -> load::Settings {
    load::Settings {
        url: format!("http://{relay}"),
        concurrency: settings.streams,
        duration,
        requests: duration.is_none().then_some(u64::MAX),
        ramp: Duration::from_secs(1),
        max_tokens: 400,
        abort: 0.03,
        ..load::Settings::default()
    }
}

fn start(settings: &Settings, simulator: &Simulator, outcomes: &Arc<Outcomes>) -> Result<Instrument, Error> {
    let listener = Listener {
        name: "demo".to_owned(),
        listen: Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 },
        upstream: simulator.local_address().into(),
        tls: None,
        upstream_tls: None,
        rewrite: None,
    };
    let mut all = config::Settings::with_listener(listener);
    all.admin.listen = settings.admin.unwrap_or(ADMIN);
    all.scrape.targets = vec![Some(Target::default())];
    all.scrape.interval = SCRAPE;
    let also = || Some(Arc::clone(outcomes) as Arc<dyn Sink>);
    let page: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| "# the demo has no configuration\n".to_owned());
    match Instrument::start(&all, also(), Arc::clone(&page)) {
        Err(instrument::Error::Admin(_)) if settings.admin.is_none() => {
            all.admin.listen.set_port(0);
            Ok(Instrument::start(&all, also(), page)?)
        }
        started => Ok(started?),
    }
}

/// Counts requests by outcome.
#[derive(Debug, Default)]
struct Outcomes(Mutex<BTreeMap<Outcome, u64>>);

impl Sink for Outcomes {
    fn record(&self, record: &Arc<Record>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(record.outcome).or_default() += 1;
    }
}
