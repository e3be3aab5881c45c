//! Compares the live snapshot with `/metrics` for the same traffic.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::admin;
use tokometer::app::Instrument;
use tokometer::config::Settings;
use tokometer_proxy::listen::Address;
use tokometer_sim::load;
use tokometer_sim::server::{self, Pace, Simulator};
use tokometer_telemetry::live::snapshot::Snapshot;

use crate::listener::listener_to;

/// Timeout of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

fn instrument(simulator: &Simulator) -> Instrument {
    let settings = Settings {
        admin: admin::Settings { listen: "127.0.0.1:0".parse().expect("an address"), ..admin::Settings::default() },
        threads: Some(1),
        ..Settings::with_listener(listener_to(simulator.local_address()))
    };
    Instrument::start(&settings, None, Arc::new(String::new)).expect("loopback has free ports")
}

fn page(instrument: &Instrument, target: &str) -> String {
    let mut stream = TcpStream::connect(instrument.admin()).expect("the admin server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let request = format!("GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 200"), "{target}: {response}");
    response.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

fn snapshot(instrument: &Instrument) -> Snapshot {
    serde_json::from_str(&page(instrument, "/live/snapshot")).expect("a snapshot")
}

/// Polls until a snapshot is as expected.
fn until(instrument: &Instrument, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let began = Instant::now();
    loop {
        let snapshot = snapshot(instrument);
        if wanted(&snapshot) {
            return snapshot;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {snapshot:?}");
    }
}

/// Sums of a metric's series by one label, without the operation `other`, and without zero sums.
fn sums(metrics: &str, name: &str, label: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
    for line in metrics.lines().filter(of_name).filter(|line| !line.contains(r#"gen_ai_operation_name="other""#)) {
        let word = line.split_once(&format!(r#"{label}=""#)).and_then(|(_, rest)| rest.split('"').next());
        let value: f64 = line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number");
        if value > 0.0 {
            *sums.entry(word.unwrap_or_default().to_owned()).or_default() += value as u64;
        }
    }
    sums
}

#[test]
fn snapshot_agrees_with_the_metrics() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let faults = [("error-event:5", 0.1), ("cut:5", 0.1), ("status:429", 0.1), ("status:500", 0.1)];
    let settings = server::Settings {
        pace: Pace { time_to_first_token: Duration::from_millis(5), tokens_per_second: 400.0, ..Pace::default() },
        faults: faults.iter().map(|(name, chance)| (name.parse().expect("a fault"), *chance)).collect(),
        ..server::Settings::default()
    };
    let simulator = runtime.block_on(Simulator::start(settings)).expect("a free port");
    let instrument = instrument(&simulator);
    let before = snapshot(&instrument);
    assert!(before.since_start.requests.is_empty() && before.in_flight.streams.is_empty(), "{before:?}");
    assert!(before.objectives.iter().all(|objective| objective.state == "idle"), "{before:?}");
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("TCP") };
    let offered = load::Settings {
        url: format!("http://{host}:{port}"),
        concurrency: 8,
        requests: Some(120),
        max_tokens: 60,
        include_usage: true,
        ..load::Settings::default()
    };
    let summary = runtime.block_on(load::run(offered, |_| {})).expect("the relay responds");
    assert_eq!(summary.requests, 120);
    let reported = until(&instrument, "all requests have ended", |snapshot| {
        snapshot.since_start.requests.values().sum::<u64>() == 120 && snapshot.in_flight.requests == 0
    });
    let metrics = page(&instrument, "/metrics");
    let all = |name: &str| sums(&metrics, name, "no such label").values().sum::<u64>();
    assert_eq!(reported.since_start.requests, sums(&metrics, "tokometer_requests_total", "outcome"));
    assert!(reported.since_start.requests.len() >= 3, "faults must occur: {:?}", reported.since_start.requests);
    assert_eq!(reported.since_start.tokens, all("tokometer_live_tokens_total"));
    // All requests ended within the last minute, the window of the snapshot's distributions.
    assert_eq!(reported.ttft_seconds.count, all("tokometer_time_to_first_token_seconds_count"));
    assert_eq!(reported.decode_tokens_per_second.count, all("tokometer_decode_tokens_per_second_count"), "{metrics}");
    let history = &reported.rates.history;
    assert!(history.iter().map(|second| second.tokens).sum::<u64>() <= reported.since_start.tokens);
    for objective in &reported.objectives {
        let own: String = metrics.lines().filter(|line| line.contains(&format!(r#"slo="{}""#, objective.name))).fold(
            String::new(),
            |mut own, line| {
                own += line;
                own.push('\n');
                own
            },
        );
        let verdicts = sums(&own, "tokometer_slo_events_total", "verdict");
        let of = |verdict: &str| verdicts.get(verdict).copied().unwrap_or(0);
        assert_eq!((objective.good, objective.bad), (of("good"), of("bad")), "{}", objective.name);
        assert_eq!((objective.recent.good, objective.recent.bad), (objective.good, objective.bad));
    }
    let available = reported.objectives.iter().find(|one| one.kind == "availability").expect("a default objective");
    assert_eq!(available.state, "burning", "{available:?}");
    assert_eq!(available.recent.reasons.values().sum::<u64>(), available.recent.bad);
    assert_eq!((reported.listeners[0].name.as_str(), reported.listeners[0].engine.as_deref()), ("test", Some("vllm")));
    // At least one of the five slowest requests was streamed and has a timeline.
    assert_eq!(reported.slowest.len(), 5);
    assert!(reported.slowest.windows(2).all(|listener| listener[0].longest_wait_ms >= listener[1].longest_wait_ms));
    let lined = reported.slowest.iter().find(|slow| !slow.points.is_empty()).expect("at least one was streamed");
    assert!(lined.points.windows(2).all(|listener| listener[0].0 <= listener[1].0), "{lined:?}");
    instrument.stop();
    runtime.block_on(simulator.stop());
}

#[test]
fn stream_in_flight_is_shown_with_its_rate() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let settings = server::Settings {
        pace: Pace { time_to_first_token: Duration::from_millis(20), tokens_per_second: 50.0, ..Pace::default() },
        response_tokens: 30_000..=30_000,
        model: "<b>sim".to_owned(),
        ..server::Settings::default()
    };
    let simulator = runtime.block_on(Simulator::start(settings)).expect("a free port");
    let instrument = instrument(&simulator);
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("TCP") };
    let mut client = TcpStream::connect((host, port)).expect("it listens");
    let body =
        r#"{"model":"<b>sim","stream":true,"max_tokens":30000,"messages":[{"role":"user","content":"a secret"}]}"#;
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\ncontent-type: application/json\r\n";
    client
        .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
        .expect("the request is sent");
    let mut reader = client.try_clone().expect("a second handle");
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let reported = until(&instrument, "its rate is known", |snapshot| {
        snapshot
            .in_flight
            .streams
            .first()
            .is_some_and(|stream| stream.tokens_per_second.is_some_and(|rate| rate > 10.0))
    });
    let stream = &reported.in_flight.streams[0];
    assert_eq!((reported.in_flight.requests, reported.in_flight.streaming, reported.in_flight.left_out), (1, 1, 0));
    assert_eq!((&*stream.route, &*stream.doing, stream.max_tokens), ("chat", "decode", Some(30_000)));
    assert_eq!(stream.model.map(|at| reported.models[at].as_str()), Some("<b>sim"));
    assert!(stream.ttft_ms.is_some() && stream.tokens > 0 && reported.rates.tokens_per_second > 0.0, "{reported:?}");
    let page = page(&instrument, "/live/snapshot");
    assert!(!page.contains("secret") && !page.contains("mine"), "{page}");
    client.shutdown(std::net::Shutdown::Both).expect("it was open");
    reading.join().expect("the reader ends").ok();
    until(&instrument, "the request has ended", |snapshot| snapshot.in_flight.requests == 0);
    instrument.stop();
    runtime.block_on(simulator.stop());
}
