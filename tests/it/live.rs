//! Wedge detection by the whole program, in front of a simulated server that hangs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokometer::admin;
use tokometer::app::Instrument;
use tokometer::config::Settings;
use tokometer_proxy::listen::Address;
use tokometer_sim::server::{self, Pace, Simulator};
use tokometer_telemetry::live;

use crate::pair::pair;

/// Timeout of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// Shorter than the faults, longer than a busy machine takes between two tokens.
const BOUND: Duration = Duration::from_millis(700);

/// Tokometer in front of a simulator.
struct Stage {
    // Dropping it ends every task that runs on it.
    runtime: tokio::runtime::Runtime,
    simulator: Option<Simulator>,
    instrument: Option<Instrument>,
}

impl Stage {
    fn new(pace: Pace, answer_tokens: u64) -> Stage {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let settings =
            server::Settings { pace, answer_tokens: answer_tokens..=answer_tokens, ..server::Settings::default() };
        let simulator = runtime.block_on(Simulator::start(settings)).expect("a free port");
        let bounds = live::Bounds { decode: BOUND, prefill: BOUND, ..live::Bounds::default() };
        let settings = Settings {
            live: live::Settings { bounds, ..live::Settings::default() },
            admin: admin::Settings { listen: "127.0.0.1:0".parse().expect("an address"), ..admin::Settings::default() },
            threads: Some(1),
            ..Settings::of_pair(pair(simulator.local_address()))
        };
        let instrument = Instrument::start(&settings, None, Arc::new(String::new)).expect("loopback has free ports");
        Stage { runtime, simulator: Some(simulator), instrument: Some(instrument) }
    }

    fn instrument(&self) -> &Instrument {
        self.instrument.as_ref().expect("it is running")
    }

    /// Sends a chat request with this fault, and returns the connection for reading the response.
    fn ask(&self, streaming: bool, fault: Option<&str>) -> TcpStream {
        let Address::Tcp { host, port } = self.instrument().addresses()[0].clone() else { panic!("TCP") };
        let mut stream = TcpStream::connect((host, port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let body = format!(
            r#"{{"model":"sim","stream":{streaming},"max_tokens":30000,"messages":[{{"role":"user","content":"hi"}}]}}"#
        );
        let fault = fault.map(|fault| format!("x-sim-fault: {fault}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{fault}connection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body.as_bytes()))
            .expect("the request is sent");
        stream
    }

    /// Status and body of an admin server page.
    fn page(&self, target: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.instrument().admin()).expect("the admin server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let request = format!("GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("a response");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }

    fn json(&self, target: &str) -> (u16, Value) {
        let (status, body) = self.page(target);
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Status and first listener of the engine health page.
    fn health(&self) -> (u16, Value) {
        let (status, mut body) = self.json("/engine/healthz");
        assert_eq!(body["healthy"], status == 200);
        (status, body["pairs"][0].take())
    }

    /// Polls until the health is as expected.
    fn until(&self, what: &str, wanted: impl Fn(u16, &Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let (status, pair) = self.health();
            if wanted(status, &pair) {
                return pair;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {status} {pair}");
        }
    }

    /// The value of the first series whose line starts with `name`.
    fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics").1;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    }

    fn ended(&self) -> Value {
        let began = Instant::now();
        loop {
            let page = self.json("/requests").1;
            if page["latest"].as_array().is_some_and(|latest| !latest.is_empty()) {
                return page;
            }
            assert!(began.elapsed() < PATIENCE, "nothing ended");
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(instrument) = self.instrument.take() {
            instrument.stop();
        }
        if let Some(simulator) = self.simulator.take() {
            self.runtime.block_on(simulator.stop());
        }
    }
}

fn quick() -> Pace {
    Pace { time_to_first_token: Duration::from_millis(5), tokens_per_second: 500.0, ..Pace::default() }
}

fn is_wedged(status: u16, _pair: &Value) -> bool {
    status == 503
}

fn is_well(status: u16, _pair: &Value) -> bool {
    status == 200
}

/// Status of the server's own `/health`, requested directly.
fn server_says(stage: &Stage) -> u16 {
    let address = stage.simulator.as_ref().expect("it is running").local_address();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("the request is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a response");
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

#[test]
fn hang_before_the_first_token_is_a_wedge_until_it_arrives() {
    let stage = Stage::new(quick(), 20);
    assert_eq!(stage.health().1["state"], "idle");
    let mut answer = stage.ask(true, Some("hang:3"));
    let pair = stage.until("wedged", is_wedged);
    assert_eq!((&pair["state"], &pair["rule"]), (&"wedged".into(), &"prefill".into()), "{pair}");
    assert_eq!((pair["prefilling"].as_u64(), pair["in_flight"].as_u64()), (Some(1), Some(1)), "{pair}");
    assert!(pair["silent_secs"].as_f64() > pair["bound_secs"].as_f64(), "{pair}");
    assert_eq!(server_says(&stage), 200, "the server's own health check is not affected");
    assert_eq!(stage.metric("tokometer_engine_wedged{"), 1.0);
    assert!(stage.metric("tokometer_engine_silence_seconds{") > BOUND.as_secs_f64());
    let open = stage.json("/requests").1["open"][0].take();
    assert_eq!((&open["doing"], &open["model"], &open["tokens"]), (&"prefill".into(), &"sim".into(), &0.into()));

    stage.until("recovered", is_well);
    let mut text = String::new();
    answer.read_to_string(&mut text).expect("the whole response");
    assert!(text.contains("[DONE]"));
    let page = stage.ended();
    let ended = &page["latest"][0];
    assert_eq!((&ended["outcome"], &ended["output_tokens"]), (&"ok".into(), &20.into()), "{ended}");
    let points = ended["timeline"]["points"].as_array().expect("a timeline");
    assert_eq!(points.iter().filter_map(|point| point[1].as_u64()).sum::<u64>(), 20, "{ended}");
    let number = |value: &Value| value.as_f64().expect("a number");
    assert!((number(&points[0][0]) - number(&ended["time_to_first_token_ms"])).abs() < 0.01, "{ended}");
    assert_eq!(page["slowest_first_token"][0]["connection"], ended["connection"]);
    assert_eq!((stage.health().1["state"].as_str(), stage.metric("tokometer_engine_wedged{")), (Some("idle"), 0.0));
}

#[test]
fn stall_between_tokens_is_a_wedge_until_it_resumes() {
    let stage = Stage::new(quick(), 20);
    let mut answer = stage.ask(true, Some("stall:3"));
    let pair = stage.until("wedged", is_wedged);
    assert_eq!((&pair["rule"], &pair["decoding"]), (&"decode".into(), &1.into()), "{pair}");
    assert_eq!(stage.metric("tokometer_in_flight_stalled{"), 0.0, "the stall threshold is longer");
    // An unknown listener name is an error that lists the known ones; an index is also accepted.
    assert_eq!(stage.json("/engine/healthz?pair=other").0, 404);
    assert_eq!(stage.json("/engine/healthz?pear=test").0, 400);
    assert_eq!([stage.json("/engine/healthz?pair=test").0, stage.json("/engine/healthz?pair=0").0], [503, 503]);
    stage.until("recovered", is_well);
    answer.read_to_end(&mut Vec::new()).expect("the whole response");
    let page = stage.ended();
    assert!(page["longest_gap"][0]["longest_gap_ms"].as_f64() > Some(2000.0), "{page}");
}

#[test]
fn queued_request_is_no_wedge_while_a_stream_progresses() {
    let stage = Stage::new(Pace { tokens_per_second: 50.0, ..quick() }, 150);
    let mut moving = stage.ask(true, None);
    let queued = stage.ask(true, Some("hang"));
    stage.until("both are in flight", |_, pair| pair["decoding"] == 1 && pair["prefilling"] == 1);
    let began = Instant::now();
    while began.elapsed() < 2 * BOUND {
        let (status, pair) = stage.health();
        assert_eq!(status, 200, "{pair}");
    }
    moving.read_to_end(&mut Vec::new()).expect("the whole response");
    stage.until("no stream progresses", is_wedged);
    drop(queued);
    stage.until("no request is pending", |status, pair| status == 200 && pair["in_flight"] == 0);
}

#[test]
fn backpressure_is_no_wedge() {
    let unpaced = Pace { tokens_per_second: 0.0, ..quick() };
    let stage = Stage::new(unpaced, 30_000);
    let answer = stage.ask(true, None);
    stage.until("backpressure is detected", |_, pair| pair["held_up"] == 1);
    let began = Instant::now();
    while began.elapsed() < 2 * BOUND {
        let (status, pair) = stage.health();
        // Data in socket buffers may still be in transit.
        assert_eq!(status, 200, "{pair}");
    }
    assert_eq!(stage.health().1["state"], "idle");
    assert_eq!(stage.metric("tokometer_in_flight_blocked{"), 1.0);
    drop(answer);
    stage.until("the request has ended", |_, pair| pair["in_flight"] == 0);
}

#[test]
fn non_streamed_response_has_its_own_bound() {
    let stage = Stage::new(quick(), 20);
    let mut answer = stage.ask(false, Some("hang:2"));
    let pair = stage.until("the request is in flight", |_, pair| pair["whole"] == 1);
    assert!(pair["bound_secs"].as_f64() > Some(2_000.0), "thirty thousand tokens may take long: {pair}");
    answer.read_to_end(&mut Vec::new()).expect("the whole response");
    let page = stage.ended();
    assert_eq!(page["latest"][0]["timeline"], Value::Null, "no token arrival was observed");
    assert_eq!(stage.json("/requests?limit=0").1["latest"].as_array().map(Vec::len), Some(0));
    assert_eq!(stage.json("/requests?limit=x").0, 400);
}

#[test]
fn drain_wait_follows_a_reload_of_the_grace_period() {
    let stage = Stage::new(quick(), 20);
    let _hangs = stage.ask(true, Some("hang:60"));
    stage.until("in flight", |_, pair| pair["in_flight"] == 1);
    let settings = Settings::of_pair(pair(stage.instrument().addresses()[0].clone()));
    let settings = Settings { grace_period: Duration::from_millis(300), ..settings };
    stage.instrument().reload(&settings).expect("usable settings");
    let mut admin = TcpStream::connect(stage.instrument().admin()).expect("it listens");
    admin.write_all(b"POST /drain HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("the request is sent");
    admin.read_to_string(&mut String::new()).expect("a response");
    let (status, report) = stage.json("/drain/wait");
    assert_eq!((status, report["open_streams"].as_u64()), (503, Some(1)), "{report}");
    assert!(
        (300..10_000).contains(&report["waited_ms"].as_u64().unwrap_or_default()),
        "the reloaded grace period applies: {report}"
    );
    let (status, text) = stage.page("/readyz");
    assert!(status == 503 && text.contains("1 stream is open") && text.contains("requested by 127.0.0.1:"), "{text}");
}
