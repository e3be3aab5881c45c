//! Memory used by an observer, and requests beyond its limits.

use std::mem::size_of;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::input::{Activity, Connection, Direction, Observe as _};
use crate::measure::{Outcome, Record, Sink};
use crate::observer::connection::ConnectionObserver;
use crate::observer::request::OpenRequest;
use crate::observer::{Observers, Settings, TargetHeaders};
use tokometer_decode::{RequestDecoder, ResponseDecoder, Route};
use tokometer_wire::{Http1, Http2};

/// Documented limit: maximum memory of the observer of an open stream, including its decoder.
const OPEN_STREAM_BYTES: usize = 2048;

#[test]
fn observer_of_open_stream_uses_less_than_two_kib() {
    // An unanswered request has one entry in the parser's queue, of eight bytes.
    let request = size_of::<OpenRequest>() + 8;
    let open = size_of::<ConnectionObserver>() + request + size_of::<ResponseDecoder>();
    println!(
        "connection {} (HTTP parser {}), request record {}, request decoder {}, response decoder {}: total {open}",
        size_of::<ConnectionObserver>(),
        size_of::<Http1>(),
        size_of::<OpenRequest>(),
        size_of::<RequestDecoder>(),
        size_of::<ResponseDecoder>()
    );
    assert!(open < OPEN_STREAM_BYTES, "{open} bytes");
}

#[test]
fn observer_memory_of_http2_streams_stays_within_limits() {
    // A stream has a request with its queue entry, a parser entry, and a response decoder. A connection also has two
    // header compression tables, not measured here: 4 KiB each by default, at most 64 KiB.
    let stream = size_of::<OpenRequest>() + size_of::<Box<OpenRequest>>() + 8 + size_of::<ResponseDecoder>();
    let connection = size_of::<ConnectionObserver>() + size_of::<Http2>();
    println!("stream {stream}, connection {connection} (HTTP parser {})", size_of::<Http2>());
    assert!(stream < OPEN_STREAM_BYTES, "{stream} bytes");
    assert!(connection < 528, "{connection} bytes");
}

#[derive(Default)]
struct Records(Mutex<Vec<Arc<Record>>>);

impl Sink for Records {
    fn record(&self, record: &Arc<Record>) {
        self.0.lock().unwrap().push(Arc::clone(record));
    }
}

#[test]
fn request_over_the_limit_is_recorded_from_its_headers() {
    let records = Arc::new(Records::default());
    let targets = TargetHeaders { tenant: vec!["x-team".into()], ..TargetHeaders::default() };
    let settings = Settings { max_open_requests: 1, engine: Some("vllm"), targets, ..Settings::default() };
    let observers = Observers::new(settings, 1, Arc::clone(&records) as Arc<dyn Sink>);
    let accepted = Instant::now();
    let connection = Connection { id: 7, peer: None, listener: 0, upstream: "x".into(), accepted };
    let mut observer = observers.accepted(&connection).unwrap();
    let request = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-team: blue\r\nx-request-id: id-1\r\n\
        traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ncontent-length: 2\r\n\r\n{}";
    observer.seen(Direction::Request, request.repeat(2).as_bytes(), accepted);
    let recorded = records.0.lock().unwrap().pop().unwrap();
    assert_eq!((observers.open(), records.0.lock().unwrap().len()), (1, 0), "the first request is observed");
    assert_eq!((recorded.connection, recorded.sequence, recorded.outcome), (7, 1, Outcome::Unobserved));
    assert_eq!((recorded.labels.route, recorded.labels.engine), (Route::Chat, Some("vllm")));
    assert_eq!(recorded.targets.as_ref().unwrap().tenant.as_deref(), Some("blue"));
    assert_eq!(recorded.request_id.as_deref(), Some("id-1"));
    assert_eq!(recorded.trace.unwrap().span_id, 0xb7ad6b7169203331);
}

#[test]
fn connection_waits_for_its_client_until_a_request_is_complete() {
    let settings = Settings { max_open_requests: 2, ..Settings::default() };
    let observers = Observers::new(settings, 1, Arc::new(Records::default()) as Arc<dyn Sink>);
    let accepted = Instant::now();
    let connection = Connection { id: 7, peer: None, listener: 0, upstream: "x".into(), accepted };
    let activity_after = |steps: &[(Direction, &str)]| {
        let mut observer = observers.accepted(&connection).unwrap();
        steps.iter().for_each(|(direction, bytes)| observer.seen(*direction, bytes.as_bytes(), accepted));
        observer.activity()
    };
    let (client, server) = (Direction::Request, Direction::Response);
    let whole = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let upload = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{";
    let response = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n";
    for (steps, expected) in [
        (&[][..], Activity::Idle),
        (&[(client, upload)], Activity::Incomplete),
        (&[(client, upload), (server, "HTTP/1.1 100 Continue\r\n\r\n")], Activity::Incomplete),
        (&[(client, upload), (client, "}")], Activity::InProgress),
        (&[(client, upload), (server, response)], Activity::InProgress),
        (&[(client, whole)], Activity::InProgress),
        (&[(client, whole), (server, response)], Activity::InProgress),
        (&[(client, whole), (server, response), (server, "a")], Activity::Idle),
        (&[(client, whole), (client, upload), (server, response), (server, "a")], Activity::Incomplete),
        // The third request is not followed, but its response is pending.
        (&[(client, whole), (client, whole), (client, whole), (server, response), (server, "a")], Activity::InProgress),
        (&[(client, "{no HTTP}")], Activity::InProgress),
        (&[(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")], Activity::Idle),
    ] {
        assert_eq!(activity_after(steps), expected, "{steps:?}");
    }
}
