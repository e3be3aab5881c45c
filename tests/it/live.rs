//! Wedge detection by the whole program, in front of a simulated server that hangs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokometer::admin;
use tokometer::app::Instrument;
use tokometer::config::Settings;
use tokometer_engine::scrape::{self, Target};
use tokometer_proxy::listen::Address;
use tokometer_sim::server::{self, Pace, Simulator};
use tokometer_telemetry::live;

use crate::listener::listener_to;

/// Timeout of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// Wedge detection threshold: shorter than the injected faults, longer than the time between two tokens on a busy
/// machine.
const BOUND: Duration = Duration::from_millis(700);

/// Tokometer in front of a simulator.
struct Stage {
    // Dropping the runtime ends all tasks that run on it.
    runtime: tokio::runtime::Runtime,
    simulator: Option<Simulator>,
    instrument: Option<Instrument>,
}

impl Stage {
    fn new(pace: Pace, response_tokens: u64) -> Stage {
        Stage::with_engine(pace, response_tokens, scrape::Settings::default())
    }

    /// Like `new`, with these settings for scraping the engine's metrics.
    fn with_engine(pace: Pace, response_tokens: u64, scrape: scrape::Settings) -> Stage {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let settings = server::Settings {
            pace,
            response_tokens: response_tokens..=response_tokens,
            ..server::Settings::default()
        };
        let simulator = runtime.block_on(Simulator::start(settings)).expect("a free port");
        let bounds = live::Bounds { decode: BOUND, prefill: BOUND };
        let settings = Settings {
            live: live::Settings { bounds, ..live::Settings::default() },
            admin: admin::Settings { listen: "127.0.0.1:0".parse().expect("an address"), ..admin::Settings::default() },
            threads: Some(1),
            scrape,
            ..Settings::with_listener(listener_to(simulator.local_address()))
        };
        let instrument = Instrument::start(&settings, None, Arc::new(String::new)).expect("loopback has free ports");
        Stage { runtime, simulator: Some(simulator), instrument: Some(instrument) }
    }

    fn instrument(&self) -> &Instrument {
        self.instrument.as_ref().expect("it is running")
    }

    /// Sends a chat request with this fault, and returns the connection for reading the response.
    fn ask(&self, streaming: bool, fault: Option<&str>) -> TcpStream {
        self.ask_for("chat/completions", &format!(r#""stream":{streaming},"max_tokens":30000"#), fault)
    }

    /// Like `ask`, with these members of the request body.
    fn ask_for(&self, api: &str, members: &str, fault: Option<&str>) -> TcpStream {
        let Address::Tcp { host, port } = self.instrument().addresses()[0].clone() else { panic!("TCP") };
        let mut stream = TcpStream::connect((host, port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let body =
            format!(r#"{{"model":"sim",{members},"prompt":"hi","messages":[{{"role":"user","content":"hi"}}]}}"#);
        let fault = fault.map(|fault| format!("x-sim-fault: {fault}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /v1/{api} HTTP/1.1\r\nhost: a\r\n{fault}connection: close\r\ncontent-type: application/json\r\n\
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
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let status = response.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, response.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }

    fn json(&self, target: &str) -> (u16, Value) {
        let (status, body) = self.page(target);
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Status and first listener of the engine health page.
    fn health(&self) -> (u16, Value) {
        let (status, mut body) = self.json("/engine/healthz");
        assert_eq!(body["healthy"], status == 200);
        (status, body["listeners"][0].take())
    }

    /// Polls until the health is as expected.
    fn until(&self, what: &str, wanted: impl Fn(u16, &Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let (status, listener) = self.health();
            if wanted(status, &listener) {
                return listener;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {status} {listener}");
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

fn is_wedged(status: u16, _listener: &Value) -> bool {
    status == 503
}

fn is_well(status: u16, _listener: &Value) -> bool {
    status == 200
}

/// Status of the server's own `/health`, without the proxy.
fn server_health_status(stage: &Stage) -> u16 {
    let address = stage.simulator.as_ref().expect("it is running").local_address();
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

#[test]
fn hang_before_the_first_token_is_a_wedge_until_it_arrives() {
    let stage = Stage::new(quick(), 20);
    assert_eq!(stage.health().1["state"], "idle");
    let mut response = stage.ask(true, Some("hang:3"));
    let listener = stage.until("wedged", is_wedged);
    assert_eq!((&listener["state"], &listener["rule"]), (&"wedged".into(), &"prefill".into()), "{listener}");
    assert_eq!((listener["prefilling"].as_u64(), listener["in_flight"].as_u64()), (Some(1), Some(1)), "{listener}");
    assert!(listener["silent_secs"].as_f64() > listener["bound_secs"].as_f64(), "{listener}");
    assert_eq!(server_health_status(&stage), 200, "the server's own health check is not affected");
    assert_eq!(stage.metric("tokometer_engine_wedged{"), 1.0);
    assert!(stage.metric("tokometer_engine_silence_seconds{") > BOUND.as_secs_f64());
    let open = stage.json("/requests").1["open"][0].take();
    assert_eq!((&open["doing"], &open["model"], &open["tokens"]), (&"prefill".into(), &"sim".into(), &0.into()));

    stage.until("recovered", is_well);
    let mut text = String::new();
    response.read_to_string(&mut text).expect("the whole response");
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
fn limits_that_the_engine_ignores_do_not_shorten_the_silence() {
    let stage = Stage::new(quick(), 20);
    for (api, members) in [
        ("chat/completions", r#""max_tokens":30000"#),
        ("chat/completions", r#""n_predict":1,"max_tokens":30000"#),
        ("chat/completions", r#""n_predict":1"#),
        ("chat/completions", r#""options":{"num_predict":1},"sampling_params":{"max_new_tokens":1}"#),
        ("chat/completions", r#""max_tokens":1,"max_\u0074okens":30000"#),
        ("chat/completions", r#""max_tokens":1,"max_completion_tokens":30000"#),
        ("chat/completions", r#""stream":true,"str\u0065am":false,"max_tokens":30000"#),
        ("completions", r#""max_completion_tokens":1,"max_tokens":30000"#),
    ] {
        let response = stage.ask_for(api, members, Some("hang"));
        let listener =
            stage.until("pending", |_, listener| listener["in_flight"] == 1 && listener["rule"] != Value::Null);
        assert_eq!(listener["rule"], "whole", "{members}: {listener}");
        assert!(listener["bound_secs"].as_f64() > Some(1600.0), "{members}: {listener}");
        drop(response);
        stage.until("idle", |_, listener| listener["in_flight"] == 0);
    }
}

#[test]
fn stall_between_tokens_is_a_wedge_until_it_resumes() {
    let stage = Stage::new(quick(), 20);
    let mut response = stage.ask(true, Some("stall:3"));
    let listener = stage.until("wedged", is_wedged);
    assert_eq!((&listener["rule"], &listener["decoding"]), (&"decode".into(), &1.into()), "{listener}");
    assert_eq!(stage.metric("tokometer_in_flight_stalled{"), 0.0, "the stall threshold is longer");
    // An unknown listener gives a 404, an unknown query key a 400. A listener is selected by its name or index.
    assert_eq!(stage.json("/engine/healthz?listener=other").0, 404);
    assert_eq!(stage.json("/engine/healthz?pear=test").0, 400);
    assert_eq!([stage.json("/engine/healthz?listener=test").0, stage.json("/engine/healthz?listener=0").0], [503, 503]);
    stage.until("recovered", is_well);
    response.read_to_end(&mut Vec::new()).expect("the whole response");
    let page = stage.ended();
    assert!(page["longest_gap"][0]["longest_gap_ms"].as_f64() > Some(2000.0), "{page}");
}

/// Serves vLLM's metrics of two data-parallel ranks, of which only the first makes iterations; returns the port.
fn serve_stuck_rank_metrics() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for (reads, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let line = |rank: u8, iterations: usize| {
                format!(
                    "vllm:num_requests_running{{engine=\"{rank}\"}} 1\n\
                     vllm:iteration_tokens_total_count{{engine=\"{rank}\"}} {iterations}\n"
                )
            };
            let body = line(0, reads) + &line(1, 7);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n";
            // One read is enough for the small request. The write fails if the scraper has disconnected.
            let request = stream.read(&mut [0; 4096]);
            request.and_then(|_| write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len())).ok();
        }
    });
    port
}

#[test]
fn frozen_rank_is_a_wedge_while_others_send_tokens() {
    let target = Target { port: Some(serve_stuck_rank_metrics()), ..Target::default() };
    let scrape = scrape::Settings {
        interval: Duration::from_millis(20),
        targets: vec![Some(target)],
        ..scrape::Settings::default()
    };
    let stage = Stage::with_engine(Pace { tokens_per_second: 50.0, ..quick() }, 300, scrape);
    let mut moving = stage.ask(true, None);
    let mut frozen = stage.ask(true, Some("stall:3"));
    let listener = stage.until("wedged", is_wedged);
    assert_eq!((&listener["state"], &listener["rank"]), (&"wedged".into(), &1.into()), "{listener}");
    assert_eq!((&listener["rule"], &listener["decoding"]), (&"decode".into(), &2.into()), "{listener}");
    assert!(listener["silent_secs"].as_f64() > listener["bound_secs"].as_f64(), "{listener}");
    let stopped = |rank: u8| {
        let page = stage.page("/metrics").1;
        let is_own = |line: &&str| {
            line.starts_with("tokometer_engine_iterations_stopped_seconds{")
                && line.contains(&format!("data_parallel_rank=\"{rank}\""))
        };
        let line = page.lines().find(is_own).expect("a series of the rank");
        line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")
    };
    assert!(stopped(0) == 0.0 && stopped(1) > 0.0, "{} {}", stopped(0), stopped(1));
    frozen.read_to_end(&mut Vec::new()).expect("the whole response");
    moving.read_to_end(&mut Vec::new()).expect("the whole response");
    // The page still reports a running request on the second rank, but no client waits for a response.
    stage.until("recovered", |status, listener| status == 200 && listener["state"] == "idle");
}

#[test]
fn killed_server_is_unreachable() {
    let mut stage = Stage::new(quick(), 20);
    stage.until("the server was reached", |_, _| stage.metric("tokometer_engine_reachable{") == 1.0);
    let simulator = stage.simulator.take().expect("it is running");
    stage.runtime.block_on(simulator.stop());
    let listener = stage.until("unreachable", |status, _| status == 503);
    assert_eq!(listener["state"], "unreachable", "{listener}");
    assert!(listener["unreachable_secs"].as_f64().is_some(), "{listener}");
    assert!(listener["unreachable_error"].as_str().is_some_and(|error| error.contains("refused")), "{listener}");
    assert_eq!(stage.metric("tokometer_engine_reachable{"), 0.0);
    assert_eq!(stage.metric("tokometer_engine_wedged{"), 0.0);
    let snapshot = stage.json("/live/snapshot").1;
    let [state, listening] = ["state", "listening"].map(|name| snapshot["listeners"][0][name].clone());
    assert_eq!((state, listening), ("unreachable".into(), "waiting".into()));
    let (status, text) = stage.page("/readyz");
    assert!(status == 200 && text.contains("not listening until the server at"), "{text}");
    assert!(text.contains("; last error: Connection refused"), "{text}");
}

#[test]
fn queued_request_is_not_a_wedge_while_a_stream_progresses() {
    let stage = Stage::new(Pace { tokens_per_second: 50.0, ..quick() }, 150);
    let mut moving = stage.ask(true, None);
    let queued = stage.ask(true, Some("hang"));
    stage.until("both are in flight", |_, listener| listener["decoding"] == 1 && listener["prefilling"] == 1);
    let began = Instant::now();
    while began.elapsed() < 2 * BOUND {
        let (status, listener) = stage.health();
        assert_eq!(status, 200, "{listener}");
    }
    moving.read_to_end(&mut Vec::new()).expect("the whole response");
    stage.until("no stream progresses", is_wedged);
    drop(queued);
    stage.until("no request is pending", |status, listener| status == 200 && listener["in_flight"] == 0);
}

#[test]
fn backpressure_is_not_a_wedge() {
    let unpaced = Pace { tokens_per_second: 0.0, ..quick() };
    let stage = Stage::new(unpaced, 30_000);
    let response = stage.ask(true, None);
    stage.until("backpressure is detected", |_, listener| listener["blocked"] == 1);
    let began = Instant::now();
    while began.elapsed() < 2 * BOUND {
        let (status, listener) = stage.health();
        // The state may differ while data in socket buffers is still in transit; the status must not.
        assert_eq!(status, 200, "{listener}");
    }
    assert_eq!(stage.health().1["state"], "idle");
    assert_eq!(stage.metric("tokometer_in_flight_blocked{"), 1.0);
    drop(response);
    stage.until("the request has ended", |_, listener| listener["in_flight"] == 0);
}

#[test]
fn non_streamed_response_has_its_own_bound() {
    let stage = Stage::new(quick(), 20);
    let mut response = stage.ask(false, Some("hang:2"));
    let listener = stage.until("the request is in flight", |_, listener| listener["whole"] == 1);
    assert!(listener["bound_secs"].as_f64() > Some(2_000.0), "thirty thousand tokens may take long: {listener}");
    response.read_to_end(&mut Vec::new()).expect("the whole response");
    let page = stage.ended();
    assert_eq!(page["latest"][0]["timeline"], Value::Null, "no token arrival was observed");
    assert_eq!(stage.json("/requests?limit=0").1["latest"].as_array().map(Vec::len), Some(0));
    assert_eq!(stage.json("/requests?limit=x").0, 400);
}

#[test]
fn drain_wait_follows_a_reload_of_the_grace_period() {
    let stage = Stage::new(quick(), 20);
    let _hangs = stage.ask(true, Some("hang:60"));
    stage.until("in flight", |_, listener| listener["in_flight"] == 1);
    let settings = Settings::with_listener(listener_to(stage.instrument().addresses()[0].clone()));
    let settings = Settings { grace_period: Duration::from_millis(300), ..settings };
    stage.instrument().reload(&settings).expect("usable settings");
    let mut admin = tokometer::admin::connect_locally(stage.instrument().admin()).expect("it listens");
    admin.write_all(b"POST /drain HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("the request is sent");
    admin.read_to_string(&mut String::new()).expect("a response");
    let (status, report) = stage.json("/drain/wait");
    assert_eq!((status, report["open_streams"].as_u64()), (503, Some(1)), "{report}");
    assert!(
        (300..10_000).contains(&report["waited_ms"].as_u64().unwrap_or_default()),
        "the reloaded grace period applies: {report}"
    );
    let (status, text) = stage.page("/readyz");
    assert!(status == 503 && text.contains("1 stream is open") && text.contains("requested by process "), "{text}");
}
