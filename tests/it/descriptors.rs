//! The whole program with a low limit of file descriptors, and with a port in use.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::pod_end::{Process, ask, port_after, until};
use crate::program::value;

/// The number after this word in a log.
fn number_after(log: &str, word: &str) -> Option<usize> {
    log.split_once(word)?.1.split_whitespace().next()?.parse().ok()
}

/// True when the request on this connection is for `/`.
fn requests_root(mut connection: &TcpStream) -> bool {
    let mut start = [0; 6];
    connection.read_exact(&mut start).is_ok() && &start == b"GET / "
}

/// Bytes that a client has received so far; never blocks.
fn received(mut client: &TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    client.set_nonblocking(true).unwrap();
    match client.read_to_end(&mut got) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        Ok(_) => assert!(!got.is_empty(), "closed without a response"),
    }
    client.set_nonblocking(false).unwrap();
    got
}

#[test]
fn clients_above_the_descriptor_limit_are_refused() {
    const IDLE: usize = 120;
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new("sh");
    // The program must raise the soft limit to the hard one.
    command.args(["-c", "ulimit -S -n 100 && ulimit -H -n 256 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tokometer")]);
    command.args(["run", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--set=process.threads=2"]);
    command.arg(format!("--upstream={}", upstream.local_addr().unwrap()));
    let (_process, (max, port, admin)) = Process::of(command, |log| {
        assert!(!log.contains("limit=") || log.contains("limit=256"), "{log}");
        Some((
            number_after(log, "connections=")?,
            port_after(log, "Relaying. listen=")?,
            port_after(log, "/drain. address=")?,
        ))
    });
    // About 30 of 256 descriptors are already open. Half of the rest is for connections, three descriptors each.
    assert!((20..=40).contains(&max), "{max}");

    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    // The program itself also connects to the server: for scrapes and for checks.
    let mut server = upstream.incoming().map(Result::unwrap).find(requests_root).unwrap();
    server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf").unwrap();
    // Their requests are complete, so none of them is closed to make room for others.
    let wait = |_| {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        client
    };
    let mut idle: Vec<TcpStream> = (0..IDLE).map(wait).collect();

    let metric =
        |parts: &[&str]| value(&ask(admin, "/metrics").unwrap_or_default(), parts).unwrap_or_default() as usize;
    let refused = || metric(&["tokometer_connections_refused_total", "reason=\"descriptors\""]);
    until("connections above the limit are refused", || refused() == 1 + IDLE - max);
    assert_eq!(metric(&["tokometer_connections_opened_total"]), max);
    assert!(ask(admin, "/livez").unwrap().starts_with("HTTP/1.1 200 "));
    server.write_all(b"full").unwrap();
    let mut response = [0; 46];
    client.set_read_timeout(Some(crate::WAIT)).unwrap();
    client.read_exact(&mut response).unwrap();
    assert!(response.ends_with(b"halffull"));

    let response_complete = |idle: &[TcpStream]| idle.iter().filter(|client| client.peek(&mut [0; 1]).is_ok()).count();
    idle.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    until("each refused client has received its response", || response_complete(&idle) == 1 + IDLE - max);
    idle.retain(|client| {
        let got = String::from_utf8(received(client)).unwrap();
        let refused = got.starts_with("HTTP/1.1 503 ") && got.contains("\"type\":\"too_many_connections\"");
        assert!(refused || got.is_empty(), "{got}");
        got.is_empty()
    });
    assert_eq!(idle.len() + 1, max);
    // With a linger time of zero, the drop sends resets, which end the relayed connections at once.
    idle.iter().for_each(|client| SockRef::from(client).set_linger(Some(Duration::ZERO)).unwrap());
    drop(idle);
    until("only the stream is open", || metric(&["tokometer_connections_open{"]) == 1);
    let mut next = TcpStream::connect(("127.0.0.1", port)).unwrap();
    next.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    upstream.incoming().map(Result::unwrap).find(requests_root).unwrap();
}

/// Responds to each `GET` on this server; other requests get no response.
fn serve(server: TcpListener) {
    std::thread::spawn(move || {
        for mut connection in server.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut request = [0; 64];
                if connection.read(&mut request).is_ok_and(|length| request[..length].starts_with(b"GET ")) {
                    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok();
                }
                // Open until tokometer closes it.
                drop(connection.read(&mut [0; 64]).map(|_| ()));
            });
        }
    });
}

/// Whether a new client with this request gets a successful response.
fn is_served(port: u16) -> bool {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(crate::WAIT)).unwrap();
    let mut status = [0; 13];
    let asked = client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").and_then(|()| client.read_exact(&mut status));
    asked.is_ok() && status.starts_with(b"HTTP/1.1 200 ")
}

#[test]
fn clients_without_a_complete_request_make_room_for_others() {
    const MAX: usize = 32;
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = upstream.local_addr().unwrap();
    serve(upstream);
    for (mode, request) in [
        (None, ""),
        (None, "G"),
        (None, "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"),
        (None, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (None, "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        (Some("--rewrite=request_id"), ""),
        (Some("--rewrite=request_id"), "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"),
        (Some("--rewrite=request_id"), "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
        command.args(["run", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--set=process.threads=2"]);
        command.arg(format!("--set=relay.max_connections={MAX}")).arg(format!("--upstream={server}")).args(mode);
        let (_process, port) = Process::of(command, |log| port_after(log, "Relaying. listen="));
        let hold = |_| {
            let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            client.write_all(request.as_bytes()).ok();
            client
        };
        let held: Vec<TcpStream> = (0..2 * MAX).map(hold).collect();
        // A client is refused while all connections are new.
        until(&format!("{mode:?} {request:?}: another client is served"), || is_served(port));
        assert_eq!(held.len(), 2 * MAX);
    }
}

#[test]
fn port_of_a_running_process_cannot_be_bound_unless_shared() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("--upstream={}", upstream.local_addr().unwrap());
    serve(upstream);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.args(["run", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--set=process.threads=2", &server]);
    let (_process, port) = Process::of(command, |log| port_after(log, "Relaying. listen="));
    until("the listener is open", || is_served(port));

    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    let bound = socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into());
    assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrInUse);
    let listen = format!("--listen=127.0.0.1:{port}");
    for sharing in ["--set=relay.port_sharing=false", "--set=relay.port_sharing=true"] {
        let output = failed_run(&[&listen, &server, "--admin=127.0.0.1:0", sharing]);
        assert_eq!(output.status.code(), Some(2), "{sharing}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Runs the program until it exits with an error.
fn failed_run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.arg("run").args(arguments).env_clear().output().unwrap()
}

#[test]
fn port_in_use_is_a_configuration_error_unless_shared() {
    // Listens like an inference server with SO_REUSEPORT.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(1).unwrap();
    let taken = socket.local_addr().unwrap().as_socket().unwrap();
    let listen = format!("--listen={taken}");

    let output = failed_run(&[&listen, "--upstream=127.0.0.1:1", "--admin=127.0.0.1:0"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    let expected = format!("--listen: listeners[0].listen: cannot listen on {taken}: Address already in use");
    assert!(error.contains(&expected) && error.contains("`relay.port_sharing`"), "{error}");

    let admin = format!("--admin={taken}");
    let output = failed_run(&["--listen=127.0.0.1:0", "--upstream=127.0.0.1:1", &admin]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("`admin.listen` (or --admin) to another port"), "{error}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.args(["run", &listen, "--upstream=127.0.0.1:1", "--admin=127.0.0.1:0", "--set=relay.port_sharing=true"]);
    let (_process, port) = Process::of(command, |log| port_after(log, "Relaying. listen="));
    assert_eq!(port, taken.port());
}
