//! `tokometer tap` as a process, in front of the simulated server.

use std::cell::OnceCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokometer_sim::load::{self, Summary};
use tokometer_sim::server::{self, Simulator};

use super::is_permitted;
use crate::pod_end::{Process, port_after};
use crate::program::{get, value};

/// A simulated server with its runtime.
pub(super) struct Server {
    pub(super) runtime: Runtime,
    simulator: Simulator,
}

impl Server {
    pub(super) fn start() -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let pace = server::Pace {
            time_to_first_token: Duration::from_millis(20),
            tokens_per_second: 200.0,
            ..server::Pace::default()
        };
        let settings = server::Settings { pace, ..server::Settings::default() };
        let simulator = runtime.block_on(Simulator::start(settings)).unwrap();
        Server { runtime, simulator }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.simulator.local_address()
    }

    /// Sends this many requests of 20 tokens on 8 connections, directly to the server.
    pub(super) fn load(&self, requests: u64) -> Summary {
        let settings = load::Settings {
            url: format!("http://{}", self.address()),
            requests: Some(requests),
            max_tokens: 20,
            ignore_eos: true,
            ..load::Settings::default()
        };
        let summary = self.runtime.block_on(load::run(settings, |_| {})).unwrap();
        assert_eq!((summary.requests, summary.tokens_from_usage), (requests, requests * 20), "{summary:?}");
        summary
    }
}

/// `tokometer tap` on these ports of the loopback interface.
fn command(ports: &[u16], more: &[&str]) -> Command {
    with_arguments(Command::new(env!("CARGO_BIN_EXE_tokometer")), ports, more)
}

fn with_arguments(mut command: Command, ports: &[u16], more: &[&str]) -> Command {
    command.args(["tap", "--interface=lo", "--admin=127.0.0.1:0", "--set=scrape.enabled=false"]);
    command.args(ports.iter().map(|port| format!("--port={port}"))).args(more);
    command
}

/// A running tap on these ports, and its admin address.
pub(super) fn tap(ports: &[u16], more: &[&str]) -> (Process, SocketAddr) {
    started(command(ports, more))
}

/// Like `tap`, started by this command, which must accept a command to run.
pub(super) fn tap_by(by: Command, ports: &[u16], more: &[&str]) -> (Process, SocketAddr) {
    started(with_arguments(by, ports, more))
}

fn started(command: Command) -> (Process, SocketAddr) {
    let (process, port) = Process::of(command, |log| port_after(log, "/drain. address="));
    (process, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Polls the page until this condition is true; returns the page.
pub(super) fn until(admin: SocketAddr, path: &str, is: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + crate::WAIT;
    loop {
        let page = get(admin, path);
        if is(&page) {
            return page;
        }
        assert!(Instant::now() < end, "{page}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn requests(page: &str, parts: &[&str]) -> u64 {
    let is_one =
        |line: &&str| line.starts_with("tokometer_requests_total") && parts.iter().all(|part| line.contains(part));
    let counts = page.lines().filter(is_one).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    counts.sum::<f64>() as u64
}

#[test]
fn tap_reports_what_the_client_received() {
    if !is_permitted() {
        return;
    }
    let servers = [Server::start(), Server::start()];
    let ports = servers.each_ref().map(|server| server.address().port());
    let (mut process, admin) = tap(&ports, &[]);
    servers[0].load(24);
    servers[1].load(8);
    let page = until(admin, "/metrics", |page| requests(page, &[]) == 32);
    for (port, n) in ports.iter().zip([24, 8]) {
        let labels = ["outcome=\"ok\"", &format!("server_port=\"{port}\""), "gen_ai_operation_name=\"chat\""];
        assert_eq!(requests(&page, &labels), n, "{page}");
        let tokens = value(&page, &["tokometer_output_tokens_total", &format!("server_port=\"{port}\""), "usage"]);
        assert_eq!(tokens, Some(n as f64 * 20.0));
    }
    assert!(page.contains("tokometer_capture_mode=\"tap\""), "{page}");
    assert!(value(&page, &["tokometer_capture_packets_total"]) > Some(500.0), "{page}");
    assert_eq!(value(&page, &["tokometer_capture_packets_lost_total"]), Some(0.0));
    assert_eq!(value(&page, &["tokometer_relay_io_bytes_total"]), None, "nothing is relayed");
    let ready = get(admin, "/readyz");
    let expected = format!("ok\ncapturing TCP port {}, {} on interface lo: ", ports[0], ports[1]);
    assert!(ready.contains(&expected), "{ready}");
    assert!(process.end_within(Duration::from_secs(20)).unwrap().success(), "SIGTERM ends it: nothing is in flight");
}

#[test]
fn request_in_flight_is_recorded_before_sigterm_ends_the_tap() {
    if !is_permitted() {
        return;
    }
    let server = Server::start();
    let log = tempfile::NamedTempFile::new().unwrap();
    let path = format!("--set=access_log.path={}", log.path().display());
    let (mut process, admin) =
        tap(&[server.address().port()], &["--set=access_log.enabled=true", "--set=access_log.format=json", &path]);
    let end = thread::scope(|scope| {
        let loaded = scope.spawn(|| server.load(8));
        until(admin, "/metrics", |page| value(page, &["tokometer_in_flight", "streaming"]) >= Some(1.0));
        let end = process.end_within(Duration::from_secs(20));
        loaded.join().unwrap();
        end
    });
    assert!(end.unwrap().success());
    let lines = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(lines.matches("\"outcome\":\"ok\"").count(), 8, "{lines}");
    assert_eq!(lines.matches("\"output_tokens\":20,").count(), 8, "{lines}");
}

#[test]
fn connection_in_progress_is_observed_from_its_next_request_on() {
    if !is_permitted() {
        return;
    }
    let server = Server::start();
    let mut client = TcpStream::connect(server.address()).unwrap();
    let ask = |client: &mut TcpStream| {
        client.write_all(b"GET /v1/other HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut bytes = [0; 4096];
        assert!(client.read(&mut bytes).unwrap() > 0);
    };
    ask(&mut client);
    let (_process, admin) = tap(&[server.address().port()], &[]);
    ask(&mut client);
    let page = until(admin, "/metrics", |page| requests(page, &[]) == 1);
    let connections = |kind| value(&page, &["tokometer_capture_connections_total", kind]);
    assert_eq!((connections("\"attached\""), connections("\"synchronised\"")), (Some(1.0), Some(1.0)), "{page}");
}

#[test]
fn tls_is_reported() {
    if !is_permitted() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = OnceCell::new();
    let is_logged = move |log: &str| {
        let admin = port_after(log, "/drain. address=")?;
        client.get_or_init(|| {
            let mut client = TcpStream::connect(address).unwrap();
            // The start of a TLS record with the beginning of a ClientHello.
            client.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]).unwrap();
            client
        });
        log.contains("Connections carry TLS, which a capture cannot read").then_some(admin)
    };
    let (_process, admin) = Process::of(command(&[address.port()], &[]), is_logged);
    let admin = SocketAddr::from(([127, 0, 0, 1], admin));
    let ready = until(admin, "/readyz", |page| page.contains("TLS"));
    assert!(ready.contains("1 connections carry TLS, which cannot be read: use `tokometer run`"), "{ready}");
    let page = get(admin, "/metrics");
    assert_eq!(value(&page, &["tokometer_capture_connections_total", "\"tls\""]), Some(1.0), "{page}");
}

/// Standard error and exit code of a command that ends by itself.
fn failed(program: &str, arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(program).args(arguments).env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn missing_capability_is_explained_with_exit_code_2() {
    let tokometer = env!("CARGO_BIN_EXE_tokometer");
    let arguments = ["tap", "--port=8000", "--admin=127.0.0.1:0"];
    let is_root = rustix::process::geteuid().is_root();
    if is_root && Command::new("setpriv").arg("--version").output().is_err() {
        return eprintln!("SKIP: no setpriv");
    }
    let (error, code) = match is_root {
        true => failed(
            "setpriv",
            &[&["--bounding-set=-net_raw", "--inh-caps=-net_raw", tokometer][..], &arguments].concat(),
        ),
        false => failed(tokometer, &arguments),
    };
    assert_eq!(code, Some(2), "{error}");
    for part in
        ["NET_RAW", "kubectl debug POD", "--profile=general", "--custom", "\"add\":[\"NET_RAW\"]", "--port 8000"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn wrong_usage_is_rejected() {
    let tokometer = env!("CARGO_BIN_EXE_tokometer");
    for (arguments, expected) in [
        (&["tap"][..], "no port; add --port 8000"),
        (&["run", "--set=tap.ports=8000"], "tap.ports is set, which is for `tokometer tap`"),
        (&["tap", "--port=0"], "flag --port: tap.ports[0]: invalid port 0"),
        (&["tap", "--port=8000", "--port=8000"], "flag --port: tap.ports[1]: invalid port 8000"),
        (&["tap", "--port=8000", "--admin=127.0.0.1:8000"], "admin.listen"),
        (&["tap", "--port=8000", "--interface="], "flag --interface: tap.interface: the name is empty"),
    ] {
        let (error, code) = failed(tokometer, arguments);
        assert!(code == Some(2) && error.contains(expected), "{arguments:?}: {code:?} {error}");
    }
    if is_permitted() {
        let (error, code) = failed(tokometer, &["tap", "--port=8000", "--interface=nic9", "--admin=127.0.0.1:0"]);
        assert!(code == Some(2) && error.contains("there is no network interface `nic9`"), "{code:?} {error}");
    }
}
