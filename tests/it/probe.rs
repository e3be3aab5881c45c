//! `tokometer probe` against real servers, and the copy of the program that exec probes run.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::pod_end::Process;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tokometer");

/// Exit code and message of `probe`.
fn probe(program: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(program).arg("probe").args(arguments).env_clear().output().unwrap();
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    (status.code(), text.trim().to_owned())
}

fn healthy(arguments: &[&str]) -> bool {
    let (code, text) = probe(Path::new(PROGRAM), arguments);
    assert_eq!(
        (code == Some(0), code == Some(1)),
        (text.starts_with("healthy"), text.starts_with("tokometer: ")),
        "{text}"
    );
    code == Some(0)
}

/// Reads the headers of a request.
fn request(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            break;
        }
        bytes.extend(byte);
    }
    String::from_utf8(bytes).unwrap()
}

/// Serves every connection with `respond`, which gets the request and returns the bytes of the response; then the
/// connection is closed. Returns the port and the requests.
fn server(respond: impl Fn(&str) -> String + Send + 'static) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, requests) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = request(&mut stream);
            let response = respond(&request);
            // Before the response, after which the probe may end. The test may have ended already.
            sender.send(request).ok();
            // The probe may close the connection before it has read a long body.
            stream.write_all(response.as_bytes()).ok();
        }
    });
    (port, requests)
}

/// A response with this status line, headers and body, and the matching length.
fn response(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn every_status_from_200_to_399_is_healthy() {
    let (port, _) = server(|request| {
        let status = request.split(['/', ' ']).nth(2).unwrap().to_owned();
        response(&format!("{status} Text"), "", "")
    });
    for (status, expected) in
        [(101, false), (199, false), (200, true), (204, true), (302, true), (304, true), (399, true)]
            .into_iter()
            .chain([(400, false), (404, false), (500, false), (503, false)])
    {
        assert_eq!(healthy(&[&format!("http://127.0.0.1:{port}/{status}")]), expected, "{status}");
    }
    let (code, text) = probe(Path::new(PROGRAM), &[&format!("http://127.0.0.1:{port}/503")]);
    assert_eq!((code, text.as_str()), (Some(1), "tokometer: HTTP probe failed with statuscode: 503"));
}

#[test]
fn redirects_are_followed_to_the_same_host_only() {
    let (port, requests) = server(|request| match request.split(' ').nth(1).unwrap() {
        "/relative" => response("307 Moved", "Location: healthy?a=b\r\n", ""),
        "/absolute" => response("301 Moved", "Location: http://127.0.0.1:PORT/healthy\r\n", "")
            .replace("PORT", request.split("127.0.0.1:").nth(1).unwrap().lines().next().unwrap()),
        "/failing" => response("302 Moved", "location: /down\r\n", ""),
        "/down" => response("500 Down", "", ""),
        "/elsewhere" => response("302 Moved", "Location: http://192.0.2.1/down\r\n", ""),
        "/loop" => response("302 Moved", "Location: /loop\r\n", ""),
        "/unusable" => response("302 Moved", "Location: ftp://127.0.0.1/\r\n", ""),
        _ => response("200 OK", "", ""),
    });
    let check = |path: &str| {
        let result =
            probe(Path::new(PROGRAM), &[&format!("http://127.0.0.1:{port}{path}"), "--header=Host: 127.0.0.1:1"]);
        (result, requests.try_iter().collect::<Vec<String>>())
    };
    for (path, code, sent) in
        [("/relative", 0, 2), ("/failing", 1, 2), ("/elsewhere", 0, 1), ("/loop", 1, 10), ("/unusable", 1, 1)]
    {
        let ((found, text), requests) = check(path);
        assert_eq!((found, requests.len()), (Some(code), sent), "{path}: {text}");
        assert!(requests.iter().all(|request| request.contains("\r\nHost: 127.0.0.1:1\r\n")), "{path}: {requests:?}");
    }
    // The port is another one, but the host is the same.
    let ((code, text), requests) = check("/absolute");
    assert_eq!((code, requests.len()), (Some(1), 1), "{text}");
    assert!(text.contains("cannot connect to 127.0.0.1:1"), "{text}");
}

#[test]
fn body_is_read_to_its_end_or_10_kib() {
    for (name, response, expected) in [
        ("complete", response("200 OK", "", "ok"), true),
        ("cut", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok".to_owned(), false),
        ("longer than announced", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok".to_owned(), true),
        ("long and cut", format!("HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{}", "x".repeat(11_000)), true),
        ("chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".to_owned(), true),
        ("cut chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n".to_owned(), false),
        ("until the end of the connection", "HTTP/1.0 200 OK\r\n\r\nok".to_owned(), true),
        ("informational first", format!("HTTP/1.1 100 Continue\r\n\r\n{}", response("200 OK", "", "")), true),
        ("failing and cut", "HTTP/1.1 500 Down\r\nContent-Length: 9\r\n\r\nok".to_owned(), false),
        ("invalid", "220 smtp.example.com\r\n\r\n".to_owned(), false),
        ("empty", String::new(), false),
        ("cut headers", "HTTP/1.1 200 OK\r\nConte".to_owned(), false),
    ] {
        let (port, _) = server(move |_| response.clone());
        assert_eq!(healthy(&[&format!("http://127.0.0.1:{port}/")]), expected, "{name}");
    }
}

#[test]
fn request_is_that_of_the_kubelet() {
    let (port, requests) = server(|_| response("200 OK", "", ""));
    let url = format!("http://127.0.0.1:{port}/health?deep=1");
    assert!(healthy(&[&url, "--header=X-Probe: a b", "--header", "Host:engine"]));
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "GET /health?deep=1 HTTP/1.1\r\nHost: engine\r\nUser-Agent: kube-probe/{version} (tokometer)\r\nAccept: */*\r\nX-Probe: a b\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(requests.recv().unwrap(), expected);
}

#[test]
fn server_that_does_not_respond_in_time_is_unhealthy() {
    // Neither accepts: the kernel completes the handshake.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for scheme in ["http", "https"] {
        let (code, text) = probe(Path::new(PROGRAM), &[&format!("{scheme}://{address}/"), "--timeout=200ms"]);
        assert_eq!((code, text.as_str()), (Some(1), "tokometer: no complete response within 0.2 s"), "{scheme}");
    }
    assert!(healthy(&[&format!("tcp://{address}")]));
    drop(listener);
    for scheme in ["http", "tcp"] {
        let (code, text) = probe(Path::new(PROGRAM), &[&format!("{scheme}://{address}")]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(&format!("cannot connect to {address}: Connection refused")), "{text}");
    }
}

#[test]
fn unix_socket_is_used_instead_of_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let socket = format!("--socket={}", path.display());
    assert!(!healthy(&["http://127.0.0.1:1/health", &socket]));
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let is_health = request(&mut stream).starts_with("GET /health HTTP/1.1\r\nHost: 127.0.0.1:1\r\n");
            let status = if is_health { "200 OK" } else { "404 Not Found" };
            // A check of the type `tcp` sends nothing.
            stream.write_all(response(status, "", "").as_bytes()).ok();
        }
    });
    assert!(healthy(&["http://127.0.0.1:1/health", &socket]));
    assert!(!healthy(&["http://127.0.0.1:1/other", &socket]));
    assert!(healthy(&["tcp://127.0.0.1:1", &socket]));
}

#[test]
fn certificates_are_not_verified() {
    let made = rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(session, stream.unwrap());
            let status = if request(&mut stream).starts_with("GET /health ") { "200 OK" } else { "503 Down" };
            // Fails for a client without TLS.
            stream.write_all(response(status, "", "").as_bytes()).ok();
            stream.conn.send_close_notify();
            stream.flush().ok();
        }
    });
    assert!(healthy(&[&format!("https://127.0.0.1:{port}/health")]));
    assert!(!healthy(&[&format!("https://127.0.0.1:{port}/other")]));
    assert!(!healthy(&[&format!("http://127.0.0.1:{port}/health")]));
}

#[test]
fn wrong_usage_exits_with_2() {
    for arguments in [&["127.0.0.1:8000"][..], &["http://h/", "--header", "x"], &["http://h/", "--timeout=0s"], &[]] {
        let output = Command::new(PROGRAM).arg("probe").args(arguments).env_clear().output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn sidecar_copies_its_program_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokometer");
    let set = |path: &Path| format!("--set=process.probe_file={}", path.display());
    let (engine, _) = server(|_| response("200 OK", "", ""));
    let upstream = format!("--upstream=127.0.0.1:{engine}");
    let copied = path.clone();
    let (_process, ()) = Process::start(
        &["run", "--listen=127.0.0.1:0", &upstream, "--admin=127.0.0.1:0", &set(&path)],
        // The first line of the log; the listeners open later.
        move |_| copied.exists().then_some(()),
    );
    assert_eq!(probe(&path, &[&format!("http://127.0.0.1:{engine}/")]).0, Some(0));
    let nowhere = folder.path().join("none").join("tokometer");
    let arguments = ["run", "--listen=127.0.0.1:0", &upstream, "--admin=127.0.0.1:0", &set(&nowhere)];
    let output = Command::new(PROGRAM).args(arguments).env_clear().output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("process.probe_file: cannot copy the program to"), "{text}");
}
