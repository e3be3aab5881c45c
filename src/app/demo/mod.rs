//! `tokometer demo`: a simulated server, tokometer in front of it and a load, in one process, with a live table.

mod board;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::app::demo::board::Board;
use crate::app::demo::screen::Frame;
use crate::app::instrument;
use crate::app::instrument::Instrument;
use crate::config;
use tokometer_observe::measure::Sink;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Pair;
use tokometer_sim::load;
use tokometer_sim::server;
use tokometer_sim::server::Simulator;

/// Intervals between redraws of the table, and between plain lines.
const REDRAW: Duration = Duration::from_millis(250);
const LINE: Duration = Duration::from_secs(2);

/// Duration of a demo without a terminal.
const UNWATCHED: Duration = Duration::from_secs(20);

/// User settings of a demo.
#[derive(Clone, Debug)]
pub struct Settings {
    /// End after this long; `None`: run until interrupted, or for 20 s without a terminal.
    pub duration: Option<Duration>,
    /// Concurrent streams.
    pub streams: usize,
    /// Print plain lines even on a terminal.
    pub plain: bool,
    /// Preferred admin address; if it is in use, any free port.
    pub admin: SocketAddr,
}

impl Default for Settings {
    fn default() -> Settings {
        let admin = SocketAddr::from(([127, 0, 0, 1], 9464));
        Settings { duration: None, streams: 24, plain: false, admin }
    }
}

/// Why a demo failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The simulated server.
    #[error(transparent)]
    Simulator(#[from] server::Error),
    /// The proxy.
    #[error(transparent)]
    Instrument(#[from] instrument::Error),
    /// The load.
    #[error(transparent)]
    Load(#[from] load::Error),
    /// The terminal, or a runtime.
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

/// Runs a demo and writes to `out`.
///
/// # Errors
/// If a part cannot start, or the request counts of the proxy and the client differ.
pub fn run(settings: &Settings, out: &mut impl Write) -> Result<(), Error> {
    let watched = io::stdout().is_terminal() && !settings.plain;
    let duration = settings.duration.or((!io::stdout().is_terminal()).then_some(UNWATCHED));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let simulator = Simulator::start(simulated()).await?;
        let board = Arc::new(Board::default());
        let instrument = start(settings, &simulator, &board)?;
        let relay = instrument.addresses().first().map(ToString::to_string).unwrap_or_default();
        let mut admin = instrument.admin();
        if admin.ip().is_unspecified() {
            admin.set_ip([127, 0, 0, 1].into());
        }
        let frame = Frame {
            relay: relay.clone(),
            admin: admin.to_string(),
            load: format!("simulated vLLM, {} concurrent streams, some of which fail", settings.streams),
        };
        if !watched {
            let Frame { load, admin, .. } = &frame;
            writeln!(
                out,
                "{load}\nlook: http://{admin}/live   metrics: http://{admin}/metrics   relay: http://{relay}"
            )?;
        }
        let load = tokio::spawn(load::run(offered(settings, duration, &relay), |_| {}));
        let started = Instant::now();
        let mut show = Show { watched, tokens: 0, at: started, rate: 0.0, peak: 0.0, drawn: 0 };
        let mut ticks = tokio::time::interval(if watched { REDRAW } else { LINE });
        ticks.tick().await;
        let mut load = std::pin::pin!(load);
        let summary = loop {
            tokio::select! {
                _ = ticks.tick() => show.draw(&frame, &board, started, out)?,
                _ = tokio::signal::ctrl_c() => break None,
                summary = &mut load => break Some(summary.map_err(io::Error::other)??),
            }
        };
        show.draw(&frame, &board, started, out)?;
        instrument.drain(Duration::ZERO, std::future::pending()).await;
        tokio::task::spawn_blocking(move || instrument.stop()).await.map_err(io::Error::other)?;
        // Only after `stop`: a low-priority thread records the last requests.
        let figures = board.figures();
        writeln!(out, "\n{}", screen::outcomes(&figures, false))?;
        if let Some(summary) = summary {
            let recorded = figures.outcomes.values().sum();
            let client = summary.time_to_first_token_ms;
            writeln!(
                out,
                "{} requests, {} tokens in {:.1} s; time to first token p50: client {:.1} ms, tokometer {} ms",
                summary.requests,
                figures.tokens,
                summary.seconds,
                client.p50,
                figures.first_token[0].map_or("-".to_owned(), |ms| format!("{ms:.1}")),
            )?;
            if recorded != summary.requests {
                return Err(Error::Disagree { recorded, ended: summary.requests });
            }
        }
        writeln!(
            out,
            "next: tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001   (your server on port 8001)"
        )?;
        Ok(())
    })
}

/// A server with a small batch, so that requests queue, and with faults, so that outcomes vary.
fn simulated() -> server::Settings {
    let faults = [("stall:2", 0.02), ("error-event:10", 0.02), ("cut:10", 0.01), ("status:429", 0.02)];
    let faults = faults.iter().filter_map(|(name, chance)| Some((name.parse().ok()?, *chance)));
    server::Settings {
        max_concurrency: 20,
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

fn start(settings: &Settings, simulator: &Simulator, board: &Arc<Board>) -> Result<Instrument, Error> {
    let pair = Pair {
        name: "demo".to_owned(),
        listen: Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 },
        upstream: simulator.local_address().into(),
        tls: None,
        upstream_tls: None,
    };
    let mut all = config::Settings::of_pair(pair);
    all.admin.listen = settings.admin;
    let also = || Some(Arc::clone(board) as Arc<dyn Sink>);
    let page: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| "# the demo has no configuration\n".to_owned());
    match Instrument::start(&all, also(), Arc::clone(&page)) {
        Err(instrument::Error::Admin(_)) => {
            all.admin.listen.set_port(0);
            Ok(Instrument::start(&all, also(), page)?)
        }
        started => Ok(started?),
    }
}

/// Draws, and keeps the state between two drawings.
struct Show {
    watched: bool,
    tokens: u64,
    at: Instant,
    rate: f64,
    peak: f64,
    /// Number of lines of the last table, to move the cursor back.
    drawn: usize,
}

impl Show {
    fn draw(&mut self, frame: &Frame, board: &Board, started: Instant, out: &mut impl Write) -> io::Result<()> {
        let figures = board.figures();
        let now = Instant::now();
        let span = now.saturating_duration_since(self.at).as_secs_f64();
        if span > 0.1 {
            let rate = figures.tokens.saturating_sub(self.tokens) as f64 / span;
            // Token counts arrive in batches: a moving average hides them.
            self.rate = if self.rate == 0.0 { rate } else { 0.7 * self.rate + 0.3 * rate };
            self.peak = self.peak.max(self.rate);
            (self.tokens, self.at) = (figures.tokens, now);
        }
        let elapsed = now.saturating_duration_since(started);
        if self.watched {
            let table = screen::table(frame, &figures, elapsed, self.rate, self.peak);
            if self.drawn > 0 {
                write!(out, "\x1b[{}A", self.drawn)?;
            }
            self.drawn = table.lines().count();
            write!(out, "{table}")?;
        } else {
            writeln!(out, "{}", screen::plain(&figures, elapsed, self.rate))?;
        }
        out.flush()
    }
}
