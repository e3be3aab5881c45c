//! No output of the program contains text of the traffic or secrets: logs at every level, the access log, standard
//! output, the admin pages and exported telemetry.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pod_end::{ask, port_after, until};

/// Each planted text begins with this.
const PLANTED: &str = "PLANTED";

const PATHS: [&str; 4] = [
    "/v1/chat/completions?api_key=PLANTED-query",
    "/broken?k=PLANTED-query",
    "/cut?k=PLANTED-query",
    "/PLANTED-path/v1/chat/completions",
];

const HEADERS: &str = "host: x\r\nauthorization: Bearer e30.eyJzdWIiOiJQTEFOVEVELXN1YiJ9.PLANTED-token\r\n\
    cookie: a=PLANTED-cookie\r\nx-secret: PLANTED-header\r\ncontent-type: application/json\r\n";

const BODY: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"PLANTED-prompt"}]}"#;

const RESPONSE: &str = r#"{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"PLANTED-text"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":7,"total_tokens":8}}"#;

/// Requests that are not valid HTTP/1, and one on HTTP/2 with an invalid header block.
const JUNK: [&[u8]; 6] = [
    b"PLANTED-line garbage\r\n\r\n",
    b"GET / HTTP/1.1\r\nauthorization PLANTED-field\r\n\r\n",
    b"GET /\x01PLANTED-query HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: PLANTED-length\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: PLANTED-coding\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x15\x01\x05\0\0\0\x01\x83\x86\x84\x10\x03x-a\x0dPLANTED-h2-aa",
];

/// Serves each connection of a new listener on its own thread.
fn serve(each: impl Fn(TcpStream) + Send + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let each = each.clone();
            std::thread::spawn(move || each(stream));
        }
    });
    address
}

fn engine(mut stream: TcpStream) {
    let mut buffer = vec![0; 65_536];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let request = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let head = "HTTP/1.1 200 OK\r\nset-cookie: PLANTED-cookie\r\n";
        let response = if request.contains(" /broken") {
            "HTTP/1.1 999999 x PLANTED-reason\r\nPLANTED header\r\n\r\n".to_owned()
        } else if request.contains(" /cut") {
            format!("{head}content-length: 99\r\n\r\nPLANTED-text")
        } else {
            format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{RESPONSE}", RESPONSE.len())
        };
        if stream.write_all(response.as_bytes()).is_err() || !response.contains("\"usage\"") {
            return;
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Sends this and waits for the first bytes of a response, or for the end of the connection.
fn send(port: u16, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    if stream.write_all(bytes).is_ok() {
        drop(stream.read(&mut [0; 65_536]).map(|_| ()));
    }
}

fn traffic(port: u16) {
    for path in PATHS {
        let head = format!("POST {path} HTTP/1.1\r\n{HEADERS}");
        for rest in [
            format!("content-length: {}\r\n\r\n{BODY}", BODY.len()),
            format!("content-length: 99\r\ncontent-length: 98\r\n\r\n{BODY}"),
            format!("transfer-encoding: chunked\r\n\r\nzz\r\n{BODY}"),
            format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{BODY}\r\n0\r\nx: PLANTED-trailer\r\n\r\n", BODY.len()),
        ] {
            send(port, format!("{head}{rest}").as_bytes());
        }
    }
    JUNK.iter().for_each(|junk| send(port, junk));
}

/// Everything that the program outputs with these arguments, by its source.
fn outputs(folder: &Path, arguments: &[&str]) -> Vec<(String, String)> {
    let exported = Arc::new(Mutex::new(Vec::new()));
    let got = Arc::clone(&exported);
    let collector = serve(move |mut stream| {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            got.lock().unwrap().extend_from_slice(&buffer[..length]);
            stream.write_all(b"HTTP/1.1 500 PLANTED\r\ncontent-length: 12\r\n\r\nPLANTED-body").ok();
        }
    });
    let (log, stdout, access) = (folder.join("log"), folder.join("stdout"), folder.join("access"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.args(["run", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", &format!("--upstream={}", serve(engine))]);
    command.args(arguments).arg("--set=access_log.enabled=true").arg("--set=tenants.enabled=true");
    command.arg("--set=tenants.from_jwt_claim=sub").arg(format!("--set=access_log.path={}", access.display()));
    command.arg(format!("--set=otlp.endpoint=http://{collector}")).arg("--set=otlp.headers=authorization=PLANTED-otlp");
    command.arg("--set=otlp.metrics.interval=1s");
    command.env_clear().stdin(Stdio::null());
    command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&log).unwrap());
    let mut process = Killed(command.spawn().unwrap());
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let mut ports = None;
    until("it listens", || {
        let log = read(&log);
        ports = port_after(&log, "Relaying. listen=").zip(port_after(&log, "/drain. address="));
        ports.is_some_and(|(_, admin)| ask(admin, "/startz").is_some())
    });
    let (port, admin) = ports.unwrap();
    traffic(port);
    let last =
        format!("POST {} HTTP/1.1\r\nx-request-id: the-last\r\n{HEADERS}content-length: 2\r\n\r\n{{}}", PATHS[0]);
    send(port, last.as_bytes());
    until("all requests are recorded", || read(&access).contains("the-last"));
    let pages = ["/metrics", "/requests", "/config", "/live/snapshot", "/readyz", "/drain"];
    let mut outputs: Vec<_> = pages.map(|page| (page.to_owned(), ask(admin, page).unwrap())).into();
    rustix::process::kill_process(rustix::process::Pid::from_child(&process.0), rustix::process::Signal::TERM).unwrap();
    process.0.wait().unwrap();
    outputs.extend(
        [("log", &log), ("stdout", &stdout), ("access log", &access)].map(|(name, path)| (name.to_owned(), read(path))),
    );
    let exported = exported.lock().unwrap();
    // The collector's own header is meant for the collector.
    let exported = String::from_utf8_lossy(&exported).replace("PLANTED-otlp", "");
    outputs.push(("exports".to_owned(), exported));
    outputs
}

#[test]
fn no_output_contains_traffic_at_any_level_in_any_mode() {
    for mode in [&[][..], &["--rewrite=include_usage,traceparent,request_id"]] {
        for level in
            ["info", "trace,pingora=trace,pingora_core=trace,h2=trace,hyper=trace,rustls=trace,opentelemetry=trace"]
        {
            let folder = tempfile::tempdir().unwrap();
            let level = format!("--set=log.level={level}");
            let outputs = outputs(folder.path(), &[mode, &[level.as_str()]].concat());
            for (from, text) in &outputs {
                assert!(!text.is_empty() || from == "stdout", "{mode:?} {level}: {from}");
                for encoded in [PLANTED, "eyJzdWIi"] {
                    let found = text.lines().find(|line| line.contains(encoded));
                    assert_eq!(found, None, "{mode:?} {level}: {from}");
                }
            }
        }
    }
}
