//! Listeners that are open only while their server accepts connections, and listen addresses held by another program.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::WAIT;
use crate::listener::reserved;
use crate::pod_end::{Process, ask, port_after, until};
use crate::program::{get, value};

const START: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf";

/// A running tokometer in front of this server: its listen port, and its admin server.
struct Sidecar {
    _process: Process,
    port: u16,
    admin: SocketAddr,
}

impl Sidecar {
    /// `variable` (`NAME=value`) is set in the program's environment.
    fn start(listen: &str, upstream: impl Display, variable: &str, more: &[&str]) -> Sidecar {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "export \"$1\"; shift; exec \"$@\"",
            "sh",
            variable,
            env!("CARGO_BIN_EXE_tokometer"),
            "run",
        ]);
        command.args([&format!("--listen={listen}"), &format!("--upstream={upstream}"), "--admin=127.0.0.1:0"]);
        command.args(more);
        let found = |log: &str| Some((port_after(log, "Relaying. listen=")?, port_after(log, "/drain. address=")?));
        let (process, (port, admin)) = Process::of(command, found);
        Sidecar { _process: process, port, admin: SocketAddr::from((Ipv4Addr::LOCALHOST, admin)) }
    }

    fn connects(&self) -> bool {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset), "{error}");
                false
            }
        }
    }

    fn is(&self, state: &str) -> bool {
        let state = format!("state=\"{state}\"");
        value(&get(self.admin, "/metrics"), &["tokometer_listening{", &state]) == Some(1.0)
    }

    /// The text of a probe, which must succeed.
    fn probe(&self, path: &str) -> String {
        let response = get(self.admin, path);
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        response
    }
}

/// Accepts connections until one requests `/`, and sends half of the response on it. The program's checks of the server
/// connect without sending bytes.
fn serve(server: &TcpListener) -> TcpStream {
    let is_request = |mut connection: &TcpStream| {
        let mut start = [0; 6];
        connection.read_exact(&mut start).is_ok() && &start == b"GET / "
    };
    let mut connection = server.incoming().map(Result::unwrap).find(|connection| is_request(connection)).unwrap();
    connection.write_all(START).unwrap();
    connection
}

fn request(address: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(WAIT)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    client
}

fn receives(mut client: &TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, expected);
}

#[test]
fn ready_process_refuses_no_client() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let upstream = server.local_addr().unwrap();
    let (listen, admin) = (reserved(), reserved());
    let [of_listen, of_server, of_admin] =
        [("listen", listen), ("upstream", upstream), ("admin", admin)].map(|(flag, at)| format!("--{flag}={at}"));
    // If the admin server reported readiness before the listener is open, a single start would rarely detect this,
    // because the listener opens soon after. So the program is started several times.
    for _ in 0..10 {
        // Polls `/readyz` from the first line of output until the process responds.
        let (_process, ()) = Process::start(&["run", &of_listen, &of_server, &of_admin], |_| Some(()));
        let mut ready = None;
        until("it responds", || {
            ready = ask(admin.port(), "/readyz");
            ready.is_some()
        });
        let connected = TcpStream::connect(listen).map(drop);
        let ready = ready.unwrap();
        assert!(ready.contains(" 200 ") && ready.ends_with("\r\n\r\nok\n"), "{ready}");
        connected.unwrap();
    }
}

#[test]
fn listener_is_open_only_while_its_server_accepts() {
    let upstream = reserved();
    let sidecar = Sidecar::start("127.0.0.1:0", upstream, "X=1", &["--set=process.threads=2"]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, sidecar.port));
    assert!(!sidecar.connects(), "the server does not listen yet");
    until("the server counts as unreachable", || get(sidecar.admin, "/engine/healthz").contains(" 503 "));
    assert!(sidecar.is("waiting") && !sidecar.connects());
    for path in ["/startz", "/livez", "/readyz"] {
        let text = sidecar.probe(path);
        assert!(text.contains(&format!("not listening until the server at {upstream} accepts connections")), "{text}");
    }

    let server = TcpListener::bind(upstream).unwrap();
    until("the listener opens", || sidecar.connects());
    until("the change is published", || sidecar.is("open"));
    assert!(sidecar.probe("/readyz").ends_with("\r\n\r\nok\n"));
    let client = request(address);
    let mut connection = serve(&server);
    receives(&client, START);

    // The server stops listening while a response is in progress.
    drop(server);
    until("the listener closes", || !sidecar.connects());
    until("the change is published", || sidecar.is("waiting"));
    connection.write_all(b"full").unwrap();
    receives(&client, b"full");

    let server = TcpListener::bind(upstream).unwrap();
    until("the listener opens again", || sidecar.connects());
    let client = request(address);
    let _connection = serve(&server);
    receives(&client, START);
}

#[test]
fn listener_closes_at_once_when_a_client_is_refused() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    // Regular checks alone would close the listener only after 15 seconds.
    let sidecar = Sidecar::start("127.0.0.1:0", server.local_addr().unwrap(), "X=1", &[]);
    until("the listener opens", || sidecar.is("open"));
    // A successful connection since the last check does not prove that the server still accepts connections.
    let client = request(SocketAddr::from((Ipv4Addr::LOCALHOST, sidecar.port)));
    let _connection = serve(&server);
    receives(&client, START);
    drop(server);
    let begin = Instant::now();
    let response = ask(sidecar.port, "/v1/models").unwrap();
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    until("the listener closes", || !sidecar.connects());
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[test]
fn listener_of_an_http_503_stays_open_without_a_server() {
    let upstream = reserved();
    let sidecar = Sidecar::start("127.0.0.1:0", upstream, "X=1", &["--set=relay.unreachable=http_503"]);
    let response = ask(sidecar.port, "/v1/models").unwrap();
    assert!(response.starts_with("HTTP/1.1 503 ") && response.contains(&upstream.to_string()), "{response}");
    assert!(sidecar.is("open"));
}

#[test]
fn listener_stays_closed_if_the_admin_address_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let server = UnixListener::bind(&path).unwrap();
    let admin = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.args(["run", "--listen=127.0.0.1:0", "--set=scrape.enabled=false"]);
    command.args([&format!("--upstream=unix:{}", path.display())]);
    command.args([&format!("--admin={}", admin.local_addr().unwrap())]);
    let output = command.env_clear().output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("the admin server cannot listen"), "{error}");
    // A listener opens only after a check of its server, so no check means that the listener was not opened.
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "its server was not checked");
}

/// One reserved port at three addresses: loopback, all addresses, and the address of tokometer's listener.
fn everywhere() -> (SocketAddr, SocketAddr, SocketAddr) {
    let loopback = reserved();
    let at = |ip: [u8; 4]| SocketAddr::from((ip, loopback.port()));
    (loopback, at([0; 4]), at([127, 0, 0, 2]))
}

#[test]
fn server_that_takes_the_listen_address_is_bypassed_until_it_gives_it_up() {
    let (loopback, all, listen) = everywhere();
    let sidecar = Sidecar::start(&listen.to_string(), loopback, "X=1", &[]);
    let opened = || value(&get(sidecar.admin, "/metrics"), &["tokometer_connections_opened_total{"]);
    // The server listens on all addresses, although it was configured with one.
    let server = TcpListener::bind(all).expect("tokometer does not hold the address before the server is up");
    until("tokometer steps aside", || sidecar.is("address_in_use"));
    for path in ["/startz", "/livez", "/readyz"] {
        let text = sidecar.probe(path);
        assert!(text.contains("another program holds the address"), "{text}");
    }
    let client = request(listen);
    let direct = serve(&server);
    receives(&client, START);
    assert_eq!(opened(), Some(0.0), "the client has reached the server itself");

    drop((client, direct, server));
    let server = TcpListener::bind(loopback).unwrap();
    until("tokometer takes the address", || sidecar.is("open"));
    let client = request(listen);
    let _connection = serve(&server);
    receives(&client, START);
    assert_eq!(opened(), Some(1.0));
}

#[test]
fn address_in_use_at_the_start_is_an_error_except_in_a_pod() {
    let (loopback, all, listen) = everywhere();
    let server = TcpListener::bind(all).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.args(["run", &format!("--listen={listen}"), &format!("--upstream={loopback}"), "--admin=127.0.0.1:0"]);
    let output = command.env_clear().output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(&format!("cannot listen on {listen}: Address already in use")), "{error}");
    assert!(error.trim_end().ends_with(" is free"), "{error}");

    let sidecar = Sidecar::start(&listen.to_string(), loopback, "KUBERNETES_SERVICE_HOST=10.96.0.1", &[]);
    until("tokometer steps aside", || sidecar.is("address_in_use"));
    assert!(sidecar.probe("/livez").contains("another program holds the address"));
    drop(server);
    let _server = TcpListener::bind(loopback).unwrap();
    until("tokometer takes the address", || sidecar.is("open"));
}

#[test]
fn connection_of_another_process_to_the_server_is_a_reported_bypass() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let _direct = TcpStream::connect(address).unwrap();
    let (_accepted, _) = server.accept().unwrap();
    let sidecar = Sidecar::start("127.0.0.1:0", address, "HOME=/", &[]);
    let bypassed = ["tokometer_interception{", "mode=\"other_port\"", "result=\"bypassed\""];
    until("the bypass is reported", || value(&get(sidecar.admin, "/metrics"), &bypassed) == Some(1.0));
}

#[test]
fn wrong_upstream_is_reported_with_what_to_do_soon_after_the_start() {
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tokometer.yaml");
    let address = plain.local_addr().unwrap();
    let listener = format!("{{listen: '127.0.0.1:0', upstream: '{address}', upstream_tls: {{enabled: true}}}}");
    std::fs::write(&config, format!("listeners: [{listener}]\n")).unwrap();
    let tls = format!("--config={}", config.display());
    std::thread::spawn(move || plain.incoming().for_each(drop));
    let refused = format!("--upstream={}", reserved());
    for (arguments, advice) in [
        (vec!["--listen=127.0.0.1:0", &refused], "Start the server, or correct `upstream`"),
        (vec!["--listen=127.0.0.1:0", "--upstream=no-such-server.invalid:80"], "Correct the host name in `upstream`"),
        (vec![&tls], "Check whether the server uses TLS on this port"),
    ] {
        let begin = Instant::now();
        let arguments = [vec!["run", "--admin=127.0.0.1:0", "--set=scrape.enabled=false"], arguments].concat();
        Process::start(&arguments, move |log| {
            let line = log.lines().find(|line| line.contains("The server cannot be reached"))?;
            assert!(line.contains("WARN") && line.contains(advice), "{log}");
            Some(())
        });
        assert!(begin.elapsed() < Duration::from_secs(5), "{advice}: {:?}", begin.elapsed());
    }
}
