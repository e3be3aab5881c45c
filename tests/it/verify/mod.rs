//! `tokometer verify` against the simulated server, with good and faulty proxies.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

mod cases;
mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokometer::app::Instrument;
use tokometer::cli::{Cli, Command};
use tokometer::client::Target;
use tokometer::config;
use tokometer::verify::{self, CheckName, Grade, Report, Settings};
use tokometer_sim::server;
use tokometer_sim::server::Simulator;

use crate::listener::listener_to;

/// Settings of a server with deterministic timing that reports all values that vLLM can report.
fn reporting() -> server::Settings {
    server::Settings {
        pace: server::Pace {
            time_to_first_token: Duration::from_millis(4),
            tokens_per_second: 2000.0,
            tokens_per_chunk: 1,
            jitter: 0.0,
        },
        text: server::Text::Filler,
        per_request_metrics: true,
        force_include_usage: true,
        ..server::Settings::default()
    }
}

fn url(address: SocketAddr) -> Target {
    format!("http://{address}").parse().unwrap()
}

/// The defaults, for these two addresses.
fn settings(relay: SocketAddr, upstream: SocketAddr) -> Settings {
    let words = format!("tokometer verify --relay http://{relay} --upstream http://{upstream}");
    let Command::Verify(settings) = Cli::parse_words(words.split(' ')).unwrap().command else { panic!("verify") };
    settings
}

/// A simulated server with tokometer in front of it.
struct Rig {
    runtime: tokio::runtime::Runtime,
    simulator: Option<Simulator>,
    instrument: Option<Instrument>,
    upstream: SocketAddr,
    relay: SocketAddr,
    admin: SocketAddr,
}

impl Rig {
    fn new(server: server::Settings) -> Rig {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let simulator = runtime.block_on(Simulator::start(server)).unwrap();
        let mut upstream = simulator.local_address();
        // The server listens on all addresses; requests use the loopback address.
        upstream.set_ip([127, 0, 0, 1].into());
        let mut all = config::Settings::with_listener(listener_to(upstream));
        all.threads = Some(1);
        // Clients of a stopped server always receive a 503, however long it has been stopped.
        all.relay.unreachable = tokometer_proxy::relay::Unreachable::Http503;
        all.admin.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let instrument = Instrument::start(&all, None, Arc::new(String::new)).unwrap();
        let relay = instrument.addresses()[0].to_string().parse().unwrap();
        let admin = instrument.admin();
        Rig { runtime, simulator: Some(simulator), instrument: Some(instrument), upstream, relay, admin }
    }

    /// Verification settings with few canaries and a latency limit that a busy machine meets.
    fn settings(&self) -> Settings {
        Settings {
            admin: Some(url(self.admin)),
            requests: 6,
            max_added: Duration::from_millis(50),
            // Prevents requests to addresses of the test machine.
            own_addresses: Some(vec![[127, 0, 0, 2].into()]),
            ..settings(self.relay, self.upstream)
        }
    }

    /// The same settings with another proxy address.
    fn through(&self, relay: SocketAddr) -> Settings {
        Settings { relay: url(relay), ..self.settings() }
    }

    fn stop_server(&mut self) {
        if let Some(simulator) = self.simulator.take() {
            self.runtime.block_on(simulator.stop());
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(instrument) = self.instrument.take() {
            instrument.stop();
        }
        self.stop_server();
    }
}

fn run(settings: &Settings) -> Report {
    let mut sent = 0;
    let report = verify::run(settings, |requests| sent = requests);
    assert_eq!(sent, report.requests, "progress is reported after every canary");
    report
}

/// The grade of a check, and its detail and fix as text.
fn reported(report: &Report, name: CheckName) -> (Grade, String) {
    let check = report.check(name).unwrap_or_else(|| panic!("no {name:?} in:\n{report}"));
    (check.grade, format!("{} fix: {}", check.detail, check.fix.as_deref().unwrap_or("none")))
}

fn assert_reported(report: &Report, name: CheckName, grade: Grade, words: &[&str]) {
    let (seen, detail) = reported(report, name);
    assert_eq!(seen, grade, "{name:?}: {detail}\n{report}");
    for word in words {
        assert!(detail.contains(word), "no {word:?} in {detail:?}");
    }
}
