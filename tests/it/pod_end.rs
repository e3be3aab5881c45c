//! The termination of a pod with a native sidecar (KEP 753), with real processes.
//!
//! The kubelet runs both preStop hooks concurrently, and sends SIGTERM to the server when the server's hook returns.
//! Then it sends SIGTERM to the sidecar, and SIGKILL two seconds later.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::{Pid, Signal};
use tokometer_sim::load;
use tokometer_sim::load::End;

use crate::export::collector::Collector;
use crate::listener::reserved;

/// Minimum time between SIGTERM and SIGKILL of a sidecar.
const KILLED_AFTER: Duration = Duration::from_secs(2);

const STREAMS: u64 = 50;

/// A process that is killed on drop.
pub(crate) struct Process(Child);

impl Process {
    /// Starts the program, and reads its output until `found` returns a value. A thread reads the rest of the output,
    /// so that the process never blocks on a pipe.
    pub(crate) fn start<T: Send + 'static>(
        arguments: &[&str],
        found: impl Fn(&str) -> Option<T> + Send + 'static,
    ) -> (Process, T) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
        command.args(arguments);
        Process::of(command, found)
    }

    /// Like `start`, for any command.
    pub(crate) fn of<T: Send + 'static>(
        mut command: Command,
        found: impl Fn(&str) -> Option<T> + Send + 'static,
    ) -> (Process, T) {
        // The long delay prevents scheduled exports during the test.
        command.env_clear().env("OTEL_BSP_SCHEDULE_DELAY", "60000");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        for pipe in
            [Box::new(child.stdout.take().unwrap()) as Box<dyn Read + Send>, Box::new(child.stderr.take().unwrap())]
        {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    // Sending fails after `found` has succeeded, because nothing receives the lines.
                    sender.send(line).ok();
                }
            });
        }
        drop(sender);
        let process = Process(child);
        let mut all = String::new();
        loop {
            let line = lines.recv_timeout(Duration::from_secs(60));
            all.push_str(&line.unwrap_or_else(|_| panic!("it exited, or printed nothing for a minute, after:\n{all}")));
            all.push('\n');
            if let Some(found) = found(&all) {
                return (process, found);
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Like the kubelet: sends SIGTERM, and SIGKILL after two seconds. `None` if the process had to be killed.
    fn end(&mut self) -> Option<ExitStatus> {
        self.end_within(KILLED_AFTER)
    }

    /// Sends SIGTERM, and SIGKILL after this time. `None` if the process had to be killed.
    pub(crate) fn end_within(&mut self, time: Duration) -> Option<ExitStatus> {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < time {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.0.kill().unwrap();
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have exited already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The port of the address after this word in a program's output.
pub(crate) fn port_after(output: &str, word: &str) -> Option<u16> {
    let address = output.split_once(word)?.1.split_whitespace().next()?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// A server, tokometer in front of it, and a collector.
struct Pod {
    server: Process,
    sidecar: Process,
    port: u16,
    admin: u16,
    collector: Collector,
}

impl Pod {
    fn start(lame_duck_secs: u64) -> Pod {
        let collector = Collector::http();
        let server = ["sim", "--rate", "100", "--ttft-ms", "50", "--listen", "127.0.0.1:0"];
        let (server, inner) = Process::start(&server, |output| port_after(output, "on http://"));
        let upstream = format!("--upstream=127.0.0.1:{inner}");
        let endpoint = format!("--set=otlp.endpoint=http://127.0.0.1:{}", collector.port);
        let lame_duck = format!("--set=process.lame_duck={lame_duck_secs}s");
        let sidecar = ["run", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", &upstream, &endpoint, &lame_duck];
        let (sidecar, (port, admin)) = Process::start(&sidecar, |output| {
            Some((port_after(output, "Relaying. listen=")?, port_after(output, "/drain. address=")?))
        });
        let pod = Pod { server, sidecar, port, admin, collector };
        until("both respond", || {
            ask(admin, "/startz").is_some() && ask(port, "/health").is_some_and(|a| a.contains(" 200 "))
        });
        pod
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn in_flight(&self) -> u64 {
        let response = ask(self.admin, "/drain").unwrap_or_default();
        number(&response, "open_streams")
    }

    /// The preStop hook of the sidecar.
    fn drain(&self, more: &[&str]) -> Output {
        let admin = format!("http://127.0.0.1:{}", self.admin);
        Command::new(env!("CARGO_BIN_EXE_tokometer")).args(["drain", "--admin", &admin]).args(more).output().unwrap()
    }

    /// Outcomes in the exported request spans.
    fn outcomes(&self) -> Vec<String> {
        let of = |span: &Span| {
            use opentelemetry_proto::tonic::common::v1::any_value::Value::StringValue;
            let outcome = span.attributes.iter().find(|listener| listener.key == "tokometer.outcome")?;
            match outcome.value.clone()?.value? {
                StringValue(text) => Some(text),
                _ => None,
            }
        };
        self.collector.spans().iter().filter(|span| span.name.starts_with("chat")).filter_map(of).collect()
    }
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The complete response to a GET; `None` if the connection fails.
pub(crate) fn ask(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    (!response.is_empty()).then_some(response)
}

fn number(response: &str, name: &str) -> u64 {
    let body = response.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    body[name].as_u64().unwrap_or_default()
}

/// Runs this many concurrent streams, one request each, on a separate thread.
fn load(url: String, streams: u64, max_tokens: u64) -> JoinHandle<load::Summary> {
    std::thread::spawn(move || {
        let settings = load::Settings {
            url,
            concurrency: streams as usize,
            requests: Some(streams),
            max_tokens,
            ..load::Settings::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(load::run(settings, |_| {})).unwrap()
    })
}

#[test]
fn fifty_streams_complete_and_all_telemetry_arrives() {
    let mut pod = Pod::start(1);
    // Two seconds of tokens: longer than the lame-duck period.
    let streams = load(pod.url(), STREAMS, 200);
    until("all streams are open", || pod.in_flight() == STREAMS);

    let admin = pod.admin;
    let hook = std::thread::spawn(move || ask(admin, "/drain/wait"));
    let output = pod.drain(&[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("draining: {STREAMS} streams are open\n"));
    assert!(ask(pod.admin, "/readyz").unwrap().contains(" 503 "), "/readyz fails immediately");
    let late = load(pod.url(), 3, 10).join().unwrap();
    assert_eq!(late.ends.get(&End::Complete), Some(&3), "new requests are served in the lame-duck period: {late:?}");

    let response = hook.join().unwrap().unwrap();
    assert!(response.contains(" 200 ") && number(&response, "open_streams") == 0, "{response}");
    let streams = streams.join().unwrap();
    assert_eq!(streams.ends.get(&End::Complete), Some(&STREAMS), "{streams:?}");
    assert!(
        TcpStream::connect(("127.0.0.1", pod.port)).is_err(),
        "after the lame-duck period, connections are refused"
    );
    assert!(
        pod.drain(&["--wait", "--timeout", "5s"]).status.success(),
        "waiting for a completed drain returns immediately"
    );

    assert!(pod.server.end().is_some());
    assert!(pod.sidecar.end().is_some_and(|status| status.success()), "it was killed before it exited");
    let outcomes = pod.outcomes();
    assert_eq!(
        (outcomes.len() as u64, outcomes.iter().all(|outcome| outcome == "ok")),
        (STREAMS + 3, true),
        "{outcomes:?}"
    );
    assert!(!pod.collector.got.lock().unwrap().metrics.is_empty(), "the last metrics arrived");
}

#[test]
fn aborted_streams_are_exported_before_the_kill() {
    let mut pod = Pod::start(0);
    let streams = load(pod.url(), STREAMS, 20_000);
    until("all streams are open", || pod.in_flight() == STREAMS);
    let output = pod.drain(&["--wait", "--timeout", "100ms"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("50 streams are still open"));

    // The grace period is over: the server is killed, and the sidecar gets SIGTERM, and SIGKILL two seconds later.
    pod.server.0.kill().unwrap();
    // The sidecar may exit or be killed; in both cases everything must already be exported.
    pod.sidecar.end();
    assert_eq!(streams.join().unwrap().ends.get(&End::Complete), None);
    let outcomes = pod.outcomes();
    assert_eq!(outcomes.len() as u64, STREAMS, "{outcomes:?}");
    assert!(!outcomes.iter().any(|outcome| outcome == "ok"), "{outcomes:?}");
}

#[test]
fn server_hook_starts_no_drain() {
    let pod = Pod::start(0);
    let begun = Instant::now();
    let response = ask(pod.admin, "/drain/wait").unwrap();
    assert!(response.contains(" 200 ") && response.contains("\"draining\":false"), "{response}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it waits for the start of a drain, not for its end");
    assert!(ask(pod.port, "/health").unwrap().contains(" 200 "), "no drain was started");
}

#[test]
fn get_does_not_drain() {
    let pod = Pod::start(0);
    let response = ask(pod.admin, "/drain?wait").unwrap();
    assert!(response.contains(" 405 ") && response.contains("POST /drain?wait"), "{response}");
    assert!(ask(pod.admin, "/readyz").unwrap().contains(" 200 "));
    assert!(ask(pod.port, "/health").unwrap().contains(" 200 "));
}

#[test]
fn process_exits_after_a_requested_drain() {
    let mut pod = Pod::start(0);
    let streams = load(pod.url(), 2, 200);
    until("both streams are open", || pod.in_flight() == 2);
    let admin = pod.admin;
    let waiter = std::thread::spawn(move || ask(admin, "/drain/wait"));
    assert!(pod.drain(&[]).status.success());
    let text = ask(admin, "/readyz").unwrap();
    for part in [" 503 ", "requested by process ", "2 streams are open", "the process exits"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(pod.drain(&["--wait", "--timeout", "60s"]).status.success());
    assert!(pod.sidecar.0.try_wait().unwrap().is_none(), "hooks in the same container finish first");
    assert!(ask(admin, "/livez").unwrap().contains(" 200 "));
    let waited = waiter.join().unwrap().unwrap();
    assert!(waited.contains(" 200 ") && number(&waited, "open_streams") == 0, "{waited}");
    assert_eq!(streams.join().unwrap().ends.get(&End::Complete), Some(&2), "no stream was aborted");
    let mut exited = None;
    until("the process exits", || {
        exited = pod.sidecar.0.try_wait().unwrap();
        exited.is_some()
    });
    assert_eq!(exited.and_then(|status| status.code()), Some(0));
    assert_eq!(pod.outcomes(), ["ok", "ok"]);
}

#[test]
fn drain_reaches_an_admin_server_that_listens_on_one_address() {
    let upstream = format!("--upstream=127.0.0.1:{}", reserved().port());
    let run = ["run", "--listen=127.0.0.1:0", "--admin=127.0.0.2:0", &upstream];
    let (sidecar, admin) = Process::start(&run, |output| port_after(output, "/drain. address="));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    let output = command.arg("drain").env("TOKOMETER_ADMIN_LISTEN", format!("127.0.0.2:{admin}")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(sidecar);
}

#[test]
fn admin_port_in_use_is_a_configuration_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = format!("--admin={}", taken.local_addr().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    let output = command.args(["run", "--listen=127.0.0.1:0", "--upstream=127.0.0.1:1", &admin]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("in use") && text.contains("`admin.listen` (or --admin) to another port"), "{text}");
}

#[test]
fn drain_of_an_unreachable_server_explains_the_fix() {
    let port = reserved().port();
    let drain = |arguments: &[&str], listen: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
        let output = command.arg("drain").args(arguments).env("TOKOMETER_ADMIN_LISTEN", listen).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, reported) = drain(&["--admin", &format!("http://127.0.0.1:{port}")], "");
    assert!(code == Some(1) && reported.contains("is tokometer running"), "{reported}");
    let (code, reported) = drain(&[], &format!("0.0.0.0:{port}"));
    assert!(code == Some(1) && reported.contains(&format!("127.0.0.1:{port}")), "{reported}");
    // Invalid addresses are usage errors.
    let (code, reported) = drain(&["--admin", "nonsense"], "");
    assert!(
        code == Some(2) && reported.contains("flag --admin: `nonsense`") && reported.contains("http://127.0.0.1:9464"),
        "{reported}"
    );
    let (code, reported) = drain(&[], "nonsense");
    assert!(
        code == Some(2) && reported.contains("environment variable TOKOMETER_ADMIN_LISTEN: `nonsense`"),
        "{reported}"
    );
}
