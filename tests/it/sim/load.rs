//! The load generator's results match those of the simulated server.

use std::time::Duration;

use tokometer_sim::load::End;
use tokometer_sim::server::Simulator;
use tokometer_sim::{load, server};

use crate::sim::round_trip;

fn toward(simulator: &Simulator) -> load::Settings {
    load::Settings {
        url: format!("http://{}", simulator.local_address()),
        model: "tiny".to_owned(),
        concurrency: 4,
        requests: Some(20),
        max_tokens: 30,
        ..load::Settings::default()
    }
}

#[tokio::test]
async fn every_token_is_counted() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    for (keep_alive, stream) in [(true, true), (false, true), (true, false)] {
        let before = simulator.stats().generation_tokens;
        let settings = load::Settings { keep_alive, stream, ..toward(&simulator) };
        let mut calls = 0;
        let summary = load::run(settings, |_| calls += 1).await.unwrap();
        assert_eq!((summary.requests, summary.count(End::Complete)), (20, 20), "{summary}");
        assert_eq!(summary.statuses[&200], 20);
        assert_eq!(serde_json::to_value(&summary).unwrap()["ends"]["complete"], 20);
        assert!(calls > 0);
        if stream {
            assert_eq!(summary.tokens, simulator.stats().generation_tokens - before);
            assert_eq!(summary.tokens_from_usage, summary.tokens);
            assert_eq!(summary.time_to_first_token_ms.count, 20);
        }
    }
}

#[tokio::test]
async fn connection_closed_after_response_loses_no_request() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    for api in [load::Api::LlamaCompletion, load::Api::Infill] {
        let settings = load::Settings { api: Some(api), concurrency: 1, ..toward(&simulator) };
        let summary = load::run(settings, |_| {}).await.unwrap();
        assert_eq!((summary.requests, summary.count(End::Complete)), (20, 20), "{api}: {summary}");
    }
    assert_eq!(simulator.stats().requests, 40);
}

#[tokio::test]
async fn each_fault_is_counted_as_its_own_end() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    for (fault, end) in [
        ("status:503", End::ErrorStatus),
        ("error-event", End::ErrorEvent),
        ("cut", End::Truncated),
        ("reset", End::Reset),
        ("no-done", End::NoDone),
        ("empty", End::NoTokens),
        ("garbage", End::Malformed),
        ("hang", End::Timeout),
        ("stall:0.001", End::Complete),
        ("slow-headers:0.001", End::Complete),
    ] {
        let settings = load::Settings {
            requests: Some(2),
            model: format!("fault/{fault}"),
            timeout: (fault == "hang").then_some(Duration::from_millis(200)),
            ..toward(&simulator)
        };
        let summary = load::run(settings, |_| {}).await.unwrap();
        assert_eq!((summary.requests, summary.count(end)), (2, 2), "{fault}: {:?}", summary.ends);
    }
    let settings = load::Settings { requests: Some(1), ..toward(&simulator) };
    simulator.stop().await;
    let summary = load::run(settings, |_| {}).await.unwrap();
    assert_eq!(summary.count(End::Refused), 1);
}

#[tokio::test]
async fn client_aborts_are_counted_on_both_sides() {
    let mut settings = round_trip::swift();
    settings.pace.tokens_per_second = 1000.0;
    let simulator = Simulator::start(settings).await.unwrap();
    let settings = load::Settings { abort: 1.0, ignore_eos: true, max_tokens: 4000, ..toward(&simulator) };
    let settings = load::Settings { requests: Some(4), duration: Some(Duration::from_secs(20)), ..settings };
    let summary = load::run(settings, |_| {}).await.unwrap();
    assert_eq!(summary.count(End::Aborted), 4, "{summary}");
    while simulator.stats().aborted < 4 {
        tokio::task::yield_now().await;
    }
    assert!(simulator.stats().generation_tokens >= summary.tokens);
}

#[tokio::test]
async fn timestamps_measure_transit_and_run_ends_on_time() {
    let epoch = std::time::Instant::now();
    let mut settings = round_trip::swift();
    settings.pace.tokens_per_second = 200.0;
    settings.text = server::Text::Stamp(epoch);
    let simulator = Simulator::start(settings).await.unwrap();
    let settings = load::Settings {
        stamp: Some(epoch),
        requests: None,
        ignore_eos: true,
        max_tokens: 30_000,
        duration: Some(Duration::from_millis(300)),
        ..toward(&simulator)
    };
    let summary = load::run(settings, |_| {}).await.unwrap();
    assert_eq!(summary.count(End::Unfinished), 4, "{summary}");
    assert!(summary.transit_us.count > 0 && summary.transit_us.p50 < 1e6, "{summary}");
}

#[tokio::test]
async fn filler_events_are_counted() {
    let settings = server::Settings { text: server::Text::Filler, ..round_trip::swift() };
    let simulator = Simulator::start(settings).await.unwrap();
    let settings = load::Settings { ignore_eos: true, max_tokens: 2000, requests: Some(2), ..toward(&simulator) };
    let summary = load::run(settings, |_| {}).await.unwrap();
    assert_eq!((summary.tokens, summary.token_events, summary.count(End::Complete)), (4000, 4000, 2));
    assert!(summary.bytes > 4000 * 100, "{}", summary.bytes);
    assert_eq!(simulator.stats().generation_tokens, 4000);
}

#[tokio::test]
async fn unsent_request_is_not_counted() {
    // Nothing accepts connections here. The backlog is full immediately, so further connects hang.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let settings = load::Settings {
        url: format!("http://{}", listener.local_addr().unwrap()),
        concurrency: 20,
        duration: Some(Duration::from_secs(2)),
        ..load::Settings::default()
    };
    let summary = load::run(settings, |_| {}).await.unwrap();
    assert!((1..=5).contains(&summary.requests), "only requests in the backlog were sent: {summary}");
    assert_eq!(summary.count(End::Unfinished), summary.requests);
}
