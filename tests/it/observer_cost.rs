//! Memory cost of observation: token events of a running stream cause no allocations, in any dialect.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use tokometer::app::Tee;
use tokometer_metrics::Listener as ExportListener;
use tokometer_observe::input::{Close, Connection, Direction, Observe, Side};
use tokometer_observe::measure::Sink;
use tokometer_observe::observer::{Observers, Settings};
use tokometer_telemetry::export::{Exporters, Settings as ExportSettings};
use tokometer_telemetry::live::{InFlight, Settings as LiveSettings};

use crate::allocation::{allocations_of, held_after};
use crate::coding::encode::encode;
use crate::http2::messages::{framed, vllm, vllm_chunk};
use crate::websocket::{HANDSHAKE, SWITCHED, of_client, of_server};
use crate::wire::http2::frames;

#[path = "../../benches/observer/stream.rs"]
mod stream;

use stream::{CASES, Stream};

/// Number of allocations of an observer with exporters for these events, after these opening bytes. Before that,
/// another stream creates the series and fills their histograms, which allocate on the first gap of a new length.
fn allocations(opening: &[(Direction, Vec<u8>)], events: &[Vec<u8>]) -> u64 {
    let settings = ExportSettings {
        listeners: vec![ExportListener { name: "one".to_owned(), address: "127.0.0.1".to_owned(), port: Some(8001) }],
        ..ExportSettings::default()
    };
    let exporters = Exporters::start(&settings).expect("no endpoint is configured");
    let mut now = Instant::now();
    let in_flight =
        InFlight::start(LiveSettings::default(), &["pair".to_owned()], now).expect("the thread can be started");
    let observers =
        Observers::new(Settings::default(), 1, Tee::of(vec![Arc::clone(&in_flight) as Arc<dyn Sink>, exporters]));
    let mut stream = || {
        let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("server"), accepted: now };
        let mut observer = observers.accepted(&connection).expect("observing is enabled");
        let mut seen = |direction, bytes: &[u8]| {
            now += Duration::from_millis(20);
            observer.seen(direction, bytes, now);
        };
        opening.iter().for_each(|(direction, bytes)| seen(*direction, bytes));
        let allocations = allocations_of(|| events.iter().for_each(|bytes| seen(Direction::Response, bytes)));
        assert!(!in_flight.open(now, 1).is_empty(), "the stream is in the in-flight table");
        observer.closed(Close::Reset(Side::Client), now);
        allocations
    };
    stream();
    stream()
}

/// Number of allocations for the token events of a stream.
fn allocations_in(stream: &Stream) -> u64 {
    let response = stream.opening.iter().map(|bytes| (Direction::Response, bytes.clone()));
    let opening: Vec<_> = [(Direction::Request, stream.request.clone())].into_iter().chain(response).collect();
    assert!(!stream.events.is_empty());
    allocations(&opening, &stream.events)
}

#[test]
fn running_stream_does_not_allocate_per_event() {
    for (case, token) in CASES {
        let stream = Stream::of_case(case, token);
        assert_eq!(allocations_in(&stream), 0, "{case}");
        if case == "vllm-0.32.0/chat-stream-usage" {
            assert_eq!(allocations_in(&stream.over_http2()), 0, "{case} over HTTP/2");
        }
    }
}

#[test]
fn running_grpc_stream_does_not_allocate_per_message() {
    let chunk = vllm_chunk(0, " word", 1);
    let coded = encode("gzip", &[&chunk.encode_to_vec()]);
    let compressed = [&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat();
    for message in [framed(&chunk), compressed] {
        let call = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/vllm.Inference/GenerateStream"),
            ("content-type", "application/grpc"),
        ];
        let head = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-encoding", "gzip")];
        let opening = [
            (Direction::Request, frames::opening()),
            (Direction::Response, frames::settings()),
            (Direction::Request, frames::headers(1, 0, &call)),
            (Direction::Request, frames::data(1, frames::END_STREAM, &framed(&vllm::GenerateRequest::default()))),
            (Direction::Response, frames::headers(1, 0, &head)),
            (Direction::Response, frames::data(1, 0, &message)),
        ];
        let events = vec![frames::data(1, 0, &message); 100];
        assert_eq!(allocations(&opening, &events), 0, "{} bytes", message.len());
    }
}

/// Checks memory with many open requests: first with partial request bodies, then with one streamed token each.
#[test]
fn open_requests_use_no_more_memory_than_charged() {
    const REQUESTS: u32 = 500;
    let exporters = Exporters::start(&ExportSettings::default()).expect("no endpoint is configured");
    let now = Instant::now();
    let in_flight = InFlight::start(LiveSettings::default(), &["pair".to_owned()], now).expect("the thread starts");
    let observers =
        Observers::new(Settings::default(), 1, Tee::of(vec![Arc::clone(&in_flight) as Arc<dyn Sink>, exporters]));
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("server"), accepted: now };
    let mut observer = observers.accepted(&connection).expect("observing is enabled");
    observer.seen(Direction::Request, &frames::opening(), now);
    observer.seen(Direction::Response, &frames::settings(), now);
    let streams = || (0..REQUESTS).map(|n| 2 * n + 1);
    let call = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/chat/completions"),
        ("content-type", "application/json"),
    ];
    let (_, asking) = held_after(|| {
        for stream in streams() {
            observer.seen(Direction::Request, &frames::headers(stream, 0, &call), now);
            observer.seen(
                Direction::Request,
                &frames::data(stream, 0, br#"{"model":"m","messages":[{"role":"user"#),
                now,
            );
        }
    });
    let charged = observers.budget().held();
    println!("{asking} bytes held by {REQUESTS} requests, {charged} charged");
    assert!(asking <= charged, "{asking} bytes held, {charged} charged");
    let head = [(":status", "200"), ("content-type", "text/event-stream")];
    let event = br#"data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let (_, response_started) = held_after(|| {
        for stream in streams() {
            observer.seen(Direction::Request, &frames::data(stream, frames::END_STREAM, b"\"}]}"), now);
            observer.seen(Direction::Response, &frames::headers(stream, 0, &head), now);
            observer.seen(Direction::Response, &frames::data(stream, 0, &[&event[..], b"\n\n"].concat()), now);
        }
    });
    let charged = observers.budget().held();
    println!("{} bytes held by {REQUESTS} streams, {charged} charged", asking + response_started);
    assert!(asking + response_started <= charged, "{asking} and {response_started} bytes held, {charged} charged");
    observer.closed(Close::Reset(Side::Client), now);
    drop(observer);
    assert_eq!(observers.budget().held(), 0);
}

#[test]
fn running_session_response_does_not_allocate_per_message() {
    let delta = of_server(r#"{"type":"transcription.delta","delta":" word"}"#);
    let opening = [
        (Direction::Request, HANDSHAKE.to_vec()),
        (Direction::Response, SWITCHED.to_vec()),
        (Direction::Request, of_client(r#"{"type":"input_audio_buffer.commit","final":true}"#)),
        (Direction::Response, delta.clone()),
    ];
    assert_eq!(allocations(&opening, &vec![delta; 100]), 0);
}
