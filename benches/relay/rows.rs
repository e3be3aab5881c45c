//! The measured workloads.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokometer_sim::load::{End, Summary};
use tokometer_sim::server::{Pace, Simulator, Text};
use tokometer_sim::{load, server};

use crate::peers::{Peer, Running};
use crate::results::{Measurements, Results};
use crate::{Outcome, peers, process, reader, sink};

/// What to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rows: Vec<Row>,
    pub(crate) peers: Vec<Peer>,
    /// Number of rounds, in each of which every peer runs once; `None` for the row's default.
    pub(crate) rounds: Option<usize>,
    /// One short run of everything: a functional check, not a measurement.
    pub(crate) quick: bool,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// 16 streams of 50 tokens per second: the reference for constant cost per token.
    S16,
    /// 256 streams of 50 tokens per second.
    S1,
    /// 1,024 streams of 50 tokens per second.
    S2,
    /// 4 streams of 4,000 tokens per second, measured over 60,000 tokens each.
    Long,
    /// 5,000 streams of one token per second: memory.
    Rss,
    /// No connections: memory.
    Idle,
    /// `Ends1` to `Ends3`: the streams of `S1`, `S2` and `Rss`, with a server that sleeps until the next event: CPU of
    /// server and clients.
    Ends1,
    Ends2,
    Ends3,
    /// 16 streams at full speed.
    Saturation,
    /// Short responses on 64 keep-alive connections.
    Short,
    /// Request bodies of 10 MB.
    Body,
    /// A new connection for every request.
    Connect,
}

impl Row {
    pub(crate) const ALL: [Row; 13] = [
        Row::S1,
        Row::S2,
        Row::Rss,
        Row::Ends1,
        Row::Ends2,
        Row::Ends3,
        Row::Idle,
        Row::Saturation,
        Row::Short,
        Row::Body,
        Row::Connect,
        Row::S16,
        Row::Long,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Row::S16 => "s16",
            Row::S1 => "s1",
            Row::S2 => "s2",
            Row::Long => "long",
            Row::Rss => "rss",
            Row::Idle => "idle",
            Row::Ends1 => "ends1",
            Row::Ends2 => "ends2",
            Row::Ends3 => "ends3",
            Row::Saturation => "saturation",
            Row::Short => "short",
            Row::Body => "body",
            Row::Connect => "connect",
        }
    }

    pub(crate) fn named(name: &str) -> Outcome<Row> {
        let found = Row::ALL.into_iter().find(|row| row.name() == name);
        found.ok_or_else(|| {
            format!("unknown row {name:?}, expected one of: {}", Row::ALL.map(Row::name).join(", ")).into()
        })
    }

    fn rounds(self) -> usize {
        match self {
            Row::S1 => 5,
            Row::S2 | Row::Rss => 3,
            Row::S16 | Row::Short | Row::Saturation => 2,
            _ => 1,
        }
    }
}

/// Runs every row with every peer, alternately, so that disturbances of the machine affect all of them.
pub(crate) async fn run(plan: &Plan, results: &mut Results) -> Outcome<()> {
    let mut peers = plan.peers.clone();
    peers.retain(|peer| match peer.missing() {
        Some(why) => {
            eprintln!("without {}: {why}", peer.name());
            results.missing.insert(peer.name().to_owned(), why);
            false
        }
        None => true,
    });
    for row in &plan.rows {
        let mut peers = peers.clone();
        // Without a proxy there is no process to measure.
        peers.retain(|peer| *row != Row::Idle || *peer != Peer::None);
        // The buffer of the stopped tap is large enough only for the packets of these rows.
        let is_paced = matches!(row, Row::S1 | Row::S2 | Row::Rss | Row::Ends1 | Row::Ends2 | Row::Ends3);
        peers.retain(|peer| is_paced || *peer != Peer::TapStopped);
        let rounds = plan.rounds.unwrap_or(if plan.quick { 1 } else { row.rounds() });
        for round in 1..=rounds {
            let mut failed = Vec::new();
            for peer in &peers {
                eprintln!("{} {round}/{rounds} {}", row.name(), peer.name());
                match measure(*row, *peer, plan.quick).await {
                    Ok(measurements) => results.add(row.name(), peer.name(), measurements),
                    Err(error) => {
                        eprintln!("  failed: {error}");
                        let what = format!("{} in row {}", peer.name(), row.name());
                        results.failed.insert(what, error.to_string());
                        failed.push(*peer);
                    }
                }
            }
            // A failed peer is excluded from the rest of the row, so that runs with the same index stay comparable.
            peers.retain(|peer| !failed.contains(peer));
        }
    }
    Ok(())
}

/// Durations of one run.
struct Window {
    warm_up: Duration,
    measure: Duration,
}

/// The client that reads the responses.
#[derive(Clone, Copy, Debug)]
enum Client {
    /// The load generator, which parses every event.
    Events,
    /// A client that only searches for the end of each stream.
    Bytes,
}

async fn measure(row: Row, peer: Peer, quick: bool) -> Outcome<Measurements> {
    let seconds = |full, quick_ones| Duration::from_secs(if quick { quick_ones } else { full });
    let window = Window { warm_up: seconds(4, 2), measure: seconds(8, 2) };
    let spin = !matches!(row, Row::Ends1 | Row::Ends2 | Row::Ends3);
    match row {
        Row::S16 => streams(peer, 16, 50.0, 150, window, spin).await,
        Row::S1 | Row::Ends1 => streams(peer, 256, 50.0, 150, window, spin).await,
        Row::S2 | Row::Ends2 => streams(peer, 1024, 50.0, 150, window, spin).await,
        // The window starts after the exporters' first push and scrape, which are one-time costs. It ends before the
        // streams end, because the first request to end creates its series, another one-time cost.
        Row::Long => {
            let window = Window { warm_up: seconds(6, 2), measure: seconds(16, 2) };
            streams(peer, 4, 4000.0, 120_000, window, spin).await
        }
        Row::Rss | Row::Ends3 => {
            let window = Window { warm_up: seconds(8, 6), ..window };
            streams(peer, 5000, 1.0, 3600, window, spin).await
        }
        Row::Idle => idle(peer).await,
        Row::Saturation => {
            let settings = load::Settings { concurrency: 16, max_tokens: 20_000, ..load::Settings::default() };
            flood(peer, settings, "event", window).await
        }
        Row::Short => {
            let settings =
                load::Settings { concurrency: 64, max_tokens: 1, stream: false, ..load::Settings::default() };
            flood(peer, settings, "request", window).await
        }
        Row::Body => {
            let prompt = "a".repeat(10_000_000);
            let settings =
                load::Settings { concurrency: 4, max_tokens: 1, stream: false, prompt, ..Default::default() };
            flood(peer, settings, "request", window).await
        }
        Row::Connect => {
            let settings =
                load::Settings { concurrency: 16, max_tokens: 1, stream: false, ..load::Settings::default() };
            // The run is short, because every request uses a port on both sides of the proxy, and the ports of earlier
            // runs are still in TIME_WAIT.
            let settings = load::Settings { keep_alive: false, ..settings };
            let window = Window { warm_up: Duration::from_millis(200), measure: Duration::from_secs(1) };
            flood(peer, settings, "request", window).await
        }
    }
}

fn origin(pace: Pace, text: Text, spin: bool) -> server::Settings {
    server::Settings {
        pace,
        text,
        spin,
        max_model_len: 100_000_000,
        max_concurrency: 100_000,
        idle_timeout: Duration::from_secs(600),
        ..server::Settings::default()
    }
}

fn pace(tokens_per_second: f64) -> Pace {
    Pace { time_to_first_token: Duration::ZERO, tokens_per_second, tokens_per_chunk: 1, jitter: 0.0 }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Resource usage of the proxy and tokens of the origin during the window, while `load` runs.
async fn over(
    window: &Window,
    client: Client,
    settings: load::Settings,
    running: &Running,
    simulator: &Simulator,
) -> Outcome<(Measurements, Summary, u64, Duration)> {
    let mut measurements = Measurements::new();
    let idle = running.process.as_ref().map(|process| process.resident_kib());
    let settings = load::Settings {
        url: url(running.address),
        ignore_eos: true,
        warm_up: window.warm_up,
        duration: Some(window.warm_up + window.measure),
        ..settings
    };
    let address = running.address;
    let load = tokio::spawn(async move {
        match client {
            Client::Events => load::run(settings, |_| {}).await.map_err(io::Error::other),
            Client::Bytes => reader::run(settings, address).await,
        }
    });
    tokio::time::sleep(window.warm_up).await;
    let warm = running.process.as_ref().map(|process| process.resident_kib());
    let (tokens, cpu, began) = (simulator.stats().generation_tokens, used(running), Instant::now());
    let own = process::cpu(std::process::id());
    // Slightly shorter than the load, so that the end of the load is outside the window.
    tokio::time::sleep(window.measure.mul_f64(0.97)).await;
    let tokens = simulator.stats().generation_tokens - tokens;
    let (cpu, wall) = (used(running).saturating_sub(cpu), began.elapsed());
    if let (Some(process), Some(idle), Some(warm)) = (&running.process, idle, warm) {
        let now = process.resident_kib();
        measurements.insert("rss_grown_kib".to_owned(), now - idle);
        measurements.insert("rss_grown_while_measured_kib".to_owned(), now - warm);
    }
    let own = process::cpu(std::process::id()).saturating_sub(own);
    measurements.insert("cpu_s".to_owned(), cpu.as_secs_f64());
    measurements.insert("ends_cpu_s".to_owned(), own.as_secs_f64());
    let summary = load.await??;
    if let Some(admin) = running.tap {
        for (name, metric) in LOSSES {
            let lost = sink::value(admin, metric).await.ok_or_else(|| format!("no {metric}"))?;
            measurements.insert(name.to_owned(), lost);
        }
    }
    let well = summary.count(End::Complete) + summary.count(End::Unfinished);
    if well != summary.requests || tokens == 0 {
        return Err(format!("requests failed: {:?}, statuses {:?}", summary.ends, summary.statuses).into());
    }
    Ok((measurements, summary, tokens, wall))
}

/// Measurements of a capture, and their metrics: packets, lost packets, and use of the buffer.
const LOSSES: [(&str, &str); 3] = [
    ("packets_captured", "tokometer_capture_packets_total"),
    ("packets_lost", "tokometer_capture_packets_lost_total"),
    ("ring_used", "tokometer_capture_ring_used_ratio"),
];

fn used(running: &Running) -> Duration {
    running.process.as_ref().map_or(Duration::ZERO, |process| process.cpu())
}

/// Paced streams, one after the other on each connection. A server that does not `spin` sleeps until the next event:
/// its times are less exact, but its CPU is measured.
async fn streams(
    peer: Peer,
    count: usize,
    rate: f64,
    tokens: u64,
    window: Window,
    spin: bool,
) -> Outcome<Measurements> {
    let epoch = Instant::now();
    let simulator = Simulator::start(origin(pace(rate), Text::Stamp(epoch), spin)).await?;
    let running = peers::start(peer, simulator.local_address()).await?;
    // The starts are spread evenly over the duration of a stream, but over at most three quarters of the warm-up.
    let lasts = Duration::from_secs_f64(tokens as f64 / rate);
    let settings = load::Settings {
        concurrency: count,
        max_tokens: tokens,
        ramp: lasts.min(window.warm_up.mul_f64(0.75)),
        stamp: Some(epoch),
        // If clients do not request usage, rewrite mode requests it and removes it from the response.
        include_usage: false,
        ..load::Settings::default()
    };
    let (mut measurements, summary, generated, wall) =
        over(&window, Client::Events, settings, &running, &simulator).await?;
    let cpu = measurements.remove("cpu_s").unwrap_or_default();
    let ends = measurements.remove("ends_cpu_s").filter(|_| !spin);
    let grown = measurements.remove("rss_grown_kib");
    let grown_since = measurements.remove("rss_grown_while_measured_kib");
    if peer != Peer::None {
        measurements.insert("cpu_us_per_token".to_owned(), cpu * 1e6 / generated as f64);
    }
    if let Some(ends) = ends {
        measurements.insert("ends_cpu_us_per_token".to_owned(), ends * 1e6 / generated as f64);
    }
    if let Some(grown) = grown {
        measurements.insert("kib_per_stream".to_owned(), grown / count as f64);
    }
    if let Some(grown) = grown_since {
        measurements.insert("kib_grown_per_stream".to_owned(), grown / count as f64);
    }
    measurements.insert("tokens_per_s".to_owned(), generated as f64 / wall.as_secs_f64());
    if !spin {
        return Ok(measurements);
    }
    measurements.insert("transit_p50_us".to_owned(), summary.transit_us.p50);
    measurements.insert("transit_p99_us".to_owned(), summary.transit_us.p99);
    if summary.time_to_first_token_ms.count > 0 {
        measurements.insert("ttft_p50_us".to_owned(), summary.time_to_first_token_ms.p50 * 1e3);
        measurements.insert("ttft_p99_us".to_owned(), summary.time_to_first_token_ms.p99 * 1e3);
    }
    Ok(measurements)
}

/// Requests at full speed.
async fn flood(peer: Peer, settings: load::Settings, unit: &str, window: Window) -> Outcome<Measurements> {
    let simulator = Simulator::start(origin(pace(0.0), Text::Filler, false)).await?;
    let running = peers::start(peer, simulator.local_address()).await?;
    let client = if unit == "event" { Client::Bytes } else { Client::Events };
    let (mut measurements, _, generated, wall) = over(&window, client, settings, &running, &simulator).await?;
    let cpu = measurements.remove("cpu_s").unwrap_or_default();
    let ends = measurements.remove("ends_cpu_s").unwrap_or_default();
    measurements.remove("rss_grown_while_measured_kib");
    // One token is one event. If the unit is a request, each request generates one token.
    let units = generated as f64;
    if peer != Peer::None {
        measurements.insert(format!("cpu_us_per_{unit}"), cpu * 1e6 / units);
    }
    measurements.insert(format!("ends_cpu_us_per_{unit}"), ends * 1e6 / units);
    measurements.insert(format!("{unit}s_per_s"), units / wall.as_secs_f64());
    Ok(measurements)
}

async fn idle(peer: Peer) -> Outcome<Measurements> {
    let simulator = Simulator::start(origin(pace(0.0), Text::Filler, false)).await?;
    let running = peers::start(peer, simulator.local_address()).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kib = running.process.as_ref().map_or(0.0, |process| process.resident_kib());
    Ok(Measurements::from([("rss_mb".to_owned(), kib * 1024.0 / 1e6)]))
}
