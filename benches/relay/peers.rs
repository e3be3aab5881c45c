//! The measured programs, each configured for the same task on one core.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use tempfile::TempDir;
use tokio::task::JoinHandle;

use tokometer_tap::capture;

use crate::process::Process;
use crate::{Outcome, pin, sink};

/// The program between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// No proxy.
    None,
    /// tokometer, observing, with both exporters on.
    Tokometer,
    /// tokometer, capturing packets: clients connect to the origin.
    Tap,
    /// Like `Tap`, but stopped (SIGSTOP), with a buffer for all packets of a run: measures only the kernel's copies.
    TapStopped,
    /// tokometer, forwarding only.
    Relay,
    /// tokometer in rewrite mode, observing, with every rewrite on.
    Rewrite,
    /// A plain byte copy on tokio.
    Floor,
    Nginx,
    Haproxy,
    Envoy,
    /// pingora-proxy without a filter, if `benches/peers/pingora-proxy` was built.
    Pingora,
}

impl Peer {
    pub(crate) const ALL: [Peer; 11] = [
        Peer::None,
        Peer::Tokometer,
        Peer::Tap,
        Peer::TapStopped,
        Peer::Relay,
        Peer::Rewrite,
        Peer::Floor,
        Peer::Nginx,
        Peer::Haproxy,
        Peer::Envoy,
        Peer::Pingora,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::None => "none",
            Peer::Tokometer => "tokometer",
            Peer::Tap => "tap",
            Peer::TapStopped => "tap-stopped",
            Peer::Relay => "tokometer-relay-only",
            Peer::Rewrite => "tokometer-rewrite",
            Peer::Floor => "tokio-byte-relay",
            Peer::Nginx => "nginx",
            Peer::Haproxy => "haproxy",
            Peer::Envoy => "envoy",
            Peer::Pingora => "pingora-proxy",
        }
    }

    pub(crate) fn named(name: &str) -> Outcome<Peer> {
        let found = Peer::ALL.into_iter().find(|peer| peer.name() == name);
        found.ok_or_else(|| {
            format!("unknown peer {name:?}, expected one of: {}", Peer::ALL.map(Peer::name).join(", ")).into()
        })
    }

    /// Why the peer cannot run on this machine, or `None`.
    pub(crate) fn missing(self) -> Option<String> {
        let (program, flag) = match self {
            Peer::Nginx => ("nginx".into(), "-v"),
            Peer::Haproxy => ("haproxy".into(), "-v"),
            Peer::Envoy => (envoy(), "--version"),
            Peer::Tokometer | Peer::Relay | Peer::Rewrite => {
                let binary = tokometer();
                let responses = Command::new(&binary).args(["run", "--help"]).stderr(Stdio::null()).output();
                let runs = responses.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("--upstream"));
                return (!runs).then(|| format!("{} has no `run` command", binary.display()));
            }
            Peer::Tap | Peer::TapStopped => {
                let settings = capture::Settings {
                    ports: vec![1],
                    interface: capture::Interface::Any,
                    buffer: tokometer_settings::Size(0),
                };
                return capture::Capture::open(&settings).err().map(|error| error.to_string());
            }
            Peer::Pingora => {
                let build = "cargo build --release --manifest-path benches/peers/pingora-proxy/Cargo.toml --target-dir \
                             target/peers";
                return (!Path::new(PINGORA).exists()).then(|| format!("not built: {build}"));
            }
            Peer::None | Peer::Floor => return None,
        };
        let found = Command::new(&program).arg(flag).stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_err().then(|| format!("{} is not installed", program.display()))
    }
}

/// A running peer.
#[derive(Debug)]
pub(crate) struct Running {
    /// Address that clients connect to.
    pub(crate) address: SocketAddr,
    /// `None` without a proxy.
    pub(crate) process: Option<Process>,
    /// The admin server of a process that captures packets.
    pub(crate) tap: Option<SocketAddr>,
    scraper: Option<JoinHandle<()>>,
    /// Directory of its configuration; removed on drop.
    _folder: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(scraper) = &self.scraper {
            scraper.abort();
        }
    }
}

/// Path of the binary that the command in [`Peer::missing`] builds.
const PINGORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/release/pingora-proxy-peer");

fn tokometer() -> PathBuf {
    std::env::var_os("TOKOMETER_BIN").map_or_else(|| env!("CARGO_BIN_EXE_tokometer").into(), PathBuf::from)
}

/// The program that `tests/components/fetch.sh envoy` installs.
fn envoy() -> PathBuf {
    let cache = std::env::var_os("TOKOMETER_TEST_CACHE").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/tokometer-tests");
    cache.unwrap_or_else(home).join("bin/envoy")
}

/// A free port below the kernel's ephemeral ports, so that no outgoing connection takes it.
fn free_address() -> Outcome<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(18_000);
    for _ in 0..5_000 {
        let address = SocketAddr::from(([127, 0, 0, 1], NEXT.fetch_add(1, Relaxed)));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err("no free port found".into())
}

/// Starts `peer` in front of `origin`.
pub(crate) async fn start(peer: Peer, origin: SocketAddr) -> Outcome<Running> {
    let folder = tempfile::tempdir()?;
    let listen = free_address()?;
    let path = folder.path().display();
    let mut scraper = None;
    let command = match peer {
        Peer::None => return Ok(Running { address: origin, process: None, tap: None, scraper, _folder: folder }),
        Peer::Tap | Peer::TapStopped => {
            let config = folder.path().join("tokometer.yaml");
            fs::write(&config, "process:\n  grace_period: 0\nlog:\n  level: error\nscrape:\n  enabled: false\n")?;
            let mut command = pin::on_proxy_core(&tokometer().to_string_lossy())?;
            command.args(["tap", "--port", &origin.port().to_string(), "--interface", "lo"]);
            command.args(["--admin", &listen.to_string(), "--config"]).arg(config);
            let collector = sink::collect().await?;
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"));
            command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
            command.env("OTEL_METRIC_EXPORT_INTERVAL", "5000");
            if peer == Peer::TapStopped {
                command.arg("--set=tap.buffer=512MiB");
                let process = Process::start(command, listen).await?;
                process.signal("-STOP")?;
                return Ok(Running { address: origin, process: Some(process), tap: None, scraper, _folder: folder });
            }
            let process = Some(Process::start(command, listen).await?);
            let scraper = Some(tokio::spawn(sink::scrape(listen)));
            return Ok(Running { address: origin, process, tap: Some(listen), scraper, _folder: folder });
        }
        Peer::Floor => {
            let own = std::env::current_exe()?;
            let mut command = pin::on_proxy_core(&own.to_string_lossy())?;
            command.args(["--floor", &listen.to_string(), &origin.to_string()]);
            command
        }
        Peer::Tokometer | Peer::Relay | Peer::Rewrite => {
            let admin = free_address()?;
            let observe = peer != Peer::Relay;
            let config = folder.path().join("tokometer.yaml");
            let text = format!(
                "process:\n  threads: 1\n  grace_period: 0\nobserve:\n  enabled: {observe}\nlog:\n  level: error\n"
            );
            fs::write(&config, text)?;
            let mut command = pin::on_proxy_core(&tokometer().to_string_lossy())?;
            command.args(["run", "--listen", &listen.to_string(), "--upstream", &origin.to_string()]);
            command.args(["--admin", &admin.to_string(), "--config"]).arg(config);
            if peer == Peer::Rewrite {
                command.arg("--rewrite=include_usage,traceparent,request_id");
            }
            if observe {
                let collector = sink::collect().await?;
                command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"));
                command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
                command.env("OTEL_METRIC_EXPORT_INTERVAL", "5000");
                scraper = Some(tokio::spawn(sink::scrape(admin)));
            }
            command
        }
        Peer::Nginx => {
            let config = folder.path().join("nginx.conf");
            let text = format!(
                "daemon off;\nworker_processes 1;\nworker_rlimit_nofile 20000;\npid {path}/pid;\n\
                 error_log stderr crit;\nevents {{ worker_connections 15000; }}\nhttp {{\n  access_log off;\n  \
                 client_body_temp_path {path}/b;\n  proxy_temp_path {path}/p;\n  fastcgi_temp_path {path}/f;\n  \
                 uwsgi_temp_path {path}/u;\n  scgi_temp_path {path}/s;\n  client_max_body_size 0;\n  upstream origin \
                 {{ server {origin}; keepalive 6000; keepalive_requests 100000000; }}\n  server {{\n    listen {listen} \
                 backlog=4096;\n    keepalive_requests 100000000;\n    tcp_nodelay on;\n    location / {{\n      \
                 proxy_pass http://origin;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      \
                 proxy_buffering off;\n      proxy_request_buffering off;\n      proxy_read_timeout 1h;\n    }}\n  }}\n}}\n"
            );
            fs::write(&config, text)?;
            let mut command = pin::on_proxy_core("nginx")?;
            command.arg("-e").arg("stderr").arg("-c").arg(config);
            command
        }
        Peer::Envoy => {
            let config = folder.path().join("envoy.yaml");
            let at = |address: SocketAddr| {
                format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port())
            };
            let text = format!(
                "static_resources:\n  listeners:\n  - address: {}\n    tcp_backlog_size: 4096\n    filter_chains:\n    - filters:\n      \
                 - name: http\n        typed_config:\n          '@type': {TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager\n          \
                 stat_prefix: bench\n          stream_idle_timeout: 0s\n          route_config:\n            virtual_hosts:\n            \
                 - {{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: origin, timeout: 0s}}}}]}}\n          \
                 http_filters:\n          - name: router\n            typed_config: {{'@type': {TYPE}.filters.http.router.v3.Router}}\n  \
                 clusters:\n  - name: origin\n    type: STATIC\n    circuit_breakers: {{thresholds: [{{max_connections: 20000, \
                 max_pending_requests: 20000, max_requests: 20000}}]}}\n    load_assignment:\n      cluster_name: origin\n      \
                 endpoints: [{{lb_endpoints: [{{endpoint: {{address: {}}}}}]}}]\n",
                at(listen),
                at(origin),
                TYPE = "type.googleapis.com/envoy.extensions",
            );
            fs::write(&config, text)?;
            let mut command = pin::on_proxy_core(&envoy().to_string_lossy())?;
            command.args(["--concurrency", "1", "--log-level", "error", "--disable-hot-restart", "-c"]).arg(config);
            command
        }
        Peer::Pingora => {
            let mut command = pin::on_proxy_core(PINGORA)?;
            command.args([listen.to_string(), origin.to_string()]);
            command
        }
        Peer::Haproxy => {
            let config = folder.path().join("haproxy.cfg");
            let text = format!(
                "global\n  nbthread 1\n  maxconn 9000\ndefaults\n  mode http\n  option http-no-delay\n  timeout connect 5s\n  timeout client \
                 1h\n  timeout server 1h\nfrontend in\n  bind {listen} backlog 4096\n  default_backend out\nbackend \
                 out\n  http-reuse always\n  server origin {origin}\n"
            );
            fs::write(&config, text)?;
            let mut command = pin::on_proxy_core("haproxy")?;
            command.arg("-q").arg("-f").arg(config);
            command
        }
    };
    let process = Process::start(command, listen).await?;
    Ok(Running { address: listen, process: Some(process), tap: None, scraper, _folder: folder })
}
