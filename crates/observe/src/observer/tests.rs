//! Memory used by an observer, requests beyond its limits, and connections that cannot be parsed completely.

use std::mem::size_of;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::input::{Activity, Close, Connection, Direction, Observe as _, Observer as _, Side};
use crate::measure::{Detach, Message, Outcome, Record, Sink};
use crate::observer::connection::ConnectionObserver;
use crate::observer::request::OpenRequest;
use crate::observer::{ConfiguredEngine, Observers, Settings, TargetHeaders};
use tokometer_decode::{Engine, RequestDecoder, ResponseDecoder, Route};
use tokometer_settings::Size;
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
    let settings =
        Settings { max_open_requests: 1, engine: ConfiguredEngine(Some(Engine::Vllm)), targets, ..Settings::default() };
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
    assert_eq!(recorded.request.targets.as_ref().unwrap().tenant.as_deref(), Some("blue"));
    assert_eq!(recorded.request.id.as_deref(), Some("id-1"));
    assert_eq!(recorded.request.trace.unwrap().span_id, 0xb7ad6b7169203331);
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
    // A request that cannot be parsed.
    let odd = "GET / HTTP/1.1\r\nhost x\r\n\r\n";
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
        (&[(client, "PO")], Activity::Incomplete),
        (&[(client, "PRI * HT")], Activity::Incomplete),
        (&[(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")], Activity::Idle),
        (&[(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (server, "HTTP/1.1 400 X\r\n")], Activity::InProgress),
        (&[(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (server, response), (server, "a")], Activity::Idle),
        (&[(client, "\u{16}\u{3}\u{1}")], Activity::Incomplete),
        (&[(client, "\u{16}\u{3}\u{1}"), (server, "\u{16}\u{3}")], Activity::InProgress),
        (&[(client, odd)], Activity::InProgress),
        (&[(client, odd), (server, response)], Activity::InProgress),
        (&[(client, odd), (server, response), (server, "a")], Activity::Idle),
        (&[(client, odd), (server, response), (server, "a"), (client, whole)], Activity::InProgress),
    ] {
        assert_eq!(activity_after(steps), expected, "{steps:?}");
    }
}

#[test]
fn request_that_lost_its_observer_is_still_in_progress() {
    let observers = Observers::new(Settings::default(), 1, Arc::new(Records::default()) as Arc<dyn Sink>);
    let accepted = Instant::now();
    let connection = Connection { id: 7, peer: None, listener: 0, upstream: "x".into(), accepted };
    let mut observer = ConnectionObserver::new(&connection, observers.shared.load_full(), false);
    observer.seen(Direction::Request, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{", accepted);
    observer.take_back();
    assert_eq!(observer.activity(), Activity::Incomplete);
    observer.seen(Direction::Request, b"}", accepted);
    assert_eq!(observer.activity(), Activity::InProgress);
    observer.seen(Direction::Response, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", accepted);
    assert_eq!(observer.activity(), Activity::Idle);
    assert!(observer.account().held() < 64, "only the queue of requests is charged");
}

/// The calls for one connection.
#[derive(Default)]
struct Calls {
    /// Outcome and tenant of each request.
    records: Mutex<Vec<(Outcome, Option<String>)>>,
    detached: Mutex<Vec<Detach>>,
    unparsed: Mutex<usize>,
}

impl Sink for Calls {
    fn record(&self, record: &Arc<Record>) {
        let tenant = record.request.targets.as_ref().and_then(|targets| targets.tenant.as_deref()).map(Into::into);
        self.records.lock().unwrap().push((record.outcome, tenant));
    }

    fn detached(&self, _listener: usize, why: Detach) {
        self.detached.lock().unwrap().push(why);
    }

    fn unparsed(&self, _listener: usize, _of: Message, bytes: usize) {
        *self.unparsed.lock().unwrap() += bytes;
    }
}

/// One event on a connection.
enum Step {
    Client(Vec<u8>),
    Server(Vec<u8>),
    /// The CPU budget is exhausted until this many bytes are received.
    Exhausted(usize),
    Lost,
    /// The observer is dropped, as after a panic. Further events are not observed.
    Dropped,
}

fn client(bytes: impl AsRef<[u8]>) -> Step {
    Step::Client(bytes.as_ref().to_vec())
}

fn server(bytes: impl AsRef<[u8]>) -> Step {
    Step::Server(bytes.as_ref().to_vec())
}

const CHAT: &str = "POST /v1/chat/completions HTTP/1.1\r\nx-team: acme\r\ncontent-type: application/json\r\n\
    content-length: 13\r\n\r\n{\"model\":\"m\"}";
const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 97\r\n\r\n\
    {\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":7}}";
const REJECTED: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// An HTTP/2 client that sends these header blocks, each on its own stream.
fn streams(blocks: &[Vec<u8>]) -> Step {
    let mut bytes = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(4, 0, 0, &[])[..]].concat();
    let frames = blocks.iter().enumerate().map(|(place, block)| frame(1, 5, 2 * place as u8 + 1, block));
    bytes.extend(frames.flatten());
    Step::Client(bytes)
}

/// Events that cause `why`, and the records up to the two chats that follow on the connection.
fn cause(why: Detach) -> (Settings, Vec<Step>, Vec<(Outcome, bool)>) {
    let (ok, unread, of_tenant) = ((Outcome::Ok, true), (Outcome::Unobserved, false), (Outcome::Unobserved, true));
    let targets = TargetHeaders { tenant: vec!["x-team".into()], ..TargetHeaders::default() };
    let default = Settings { head_bytes: 1024, targets, ..Settings::default() };
    let shake = |to: &str| format!("GET /v1/realtime HTTP/1.1\r\nx-team: acme\r\nupgrade: {to}\r\n\r\n");
    let switch = |to: &str| format!("HTTP/1.1 101 -\r\nupgrade: {to}\r\n\r\n");
    let tls = [22, 3, 1, 0, 1, 0];
    let (steps, records) = match why {
        Detach::Upgraded => (vec![client(shake("x")), server(switch("x")), client("a")], vec![ok]),
        Detach::NotHttp => (vec![client("\0"), server(REJECTED)], vec![unread, ok, ok]),
        Detach::Tls => (vec![client(tls), server(tls), client(tls)], vec![unread, ok]),
        Detach::MalformedRequest => {
            let ambiguous = CHAT.replacen("content-length", "content-length: 7\r\ncontent-length", 1);
            (vec![client(ambiguous), server(REJECTED)], vec![of_tenant, ok, ok])
        }
        Detach::MalformedResponse => (vec![client(CHAT), server("nonsense")], vec![of_tenant, ok, ok]),
        Detach::MalformedFrame => {
            let endless = [[0x82, 127].as_slice(), &[0xff; 8]].concat();
            (vec![client(shake("websocket")), server(switch("websocket")), server(endless)], vec![ok])
        }
        Detach::HeadTooLarge => {
            (vec![client(format!("GET /{}", "x".repeat(2000))), server(REJECTED)], vec![unread, ok, ok])
        }
        Detach::UnexpectedResponse => (vec![client(CHAT), server(ANSWER), server(ANSWER)], vec![ok, unread, ok, ok]),
        Detach::HeaderCompression => {
            let valid = vec![0x82];
            (vec![streams(&[valid.clone(), vec![0xbe], valid])], vec![unread; 3])
        }
        Detach::HeaderTableTooLarge => (vec![streams(&[vec![0x3f, 0xe2, 0xff, 0x03], vec![0x82]])], vec![unread; 2]),
        Detach::HeaderExpansion => {
            // The first block adds a field of 4,000 bytes to the table. The others refer to it.
            let field = [&b"\x82\x40\x01a\x7f\xa0\x1e"[..], &[b'x'; 3999]].concat();
            let blocks: Vec<Vec<u8>> = std::iter::once(field).chain(vec![vec![0xbe; 16]; 39]).collect();
            let limits = Settings { head_bytes: 64 * 1024, ..default };
            return (limits, vec![streams(&blocks)], vec![unread; 40]);
        }
        Detach::Memory => {
            let part = format!("{}x: {}", CHAT.split_once("x-team").unwrap().0, "a".repeat(4000));
            let steps = vec![client(part), client("\r\n\r\n"), server(REJECTED)];
            let limits = Settings { memory: Size(12_000), head_bytes: 64 * 1024, ..default };
            return (limits, steps, vec![unread, ok, ok]);
        }
        Detach::Work => {
            let exhausted = Step::Exhausted(CHAT.len() * 3 / 2);
            (vec![exhausted, client(CHAT), server(ANSWER)], vec![of_tenant, ok, ok])
        }
        Detach::Panic => (vec![client(CHAT), Step::Dropped], vec![of_tenant]),
        Detach::Shed => {
            return (Settings { max_observed: 0, ..default }, vec![], vec![of_tenant; 2]);
        }
        Detach::CaptureGap => (vec![client(CHAT), Step::Lost], vec![of_tenant]),
    };
    (default, steps, records)
}

#[test]
fn requests_are_counted_after_every_reason_to_detach() {
    assert!(!Detach::ALL.is_empty());
    for why in Detach::ALL {
        let (settings, mut steps, expected) = cause(why);
        let http2 = matches!(why, Detach::HeaderCompression | Detach::HeaderTableTooLarge | Detach::HeaderExpansion);
        if !http2 {
            steps.extend([client(CHAT), server(ANSWER), client(CHAT), server(ANSWER)]);
        }
        let calls = Arc::new(Calls::default());
        let observers = Observers::new(settings, 1, Arc::clone(&calls) as Arc<dyn Sink>);
        let at = Instant::now();
        let connection = Connection { id: 1, peer: None, listener: 0, upstream: "x".into(), accepted: at };
        let shared = observers.shared.load_full();
        let over_limit = !shared.admit();
        let mut observer = Some(ConnectionObserver::new(&connection, shared, over_limit));
        for step in steps {
            match (&mut observer, step) {
                (Some(observer), Step::Client(bytes)) => observer.seen(Direction::Request, &bytes, at),
                (Some(observer), Step::Server(bytes)) => observer.seen(Direction::Response, &bytes, at),
                (Some(observer), Step::Exhausted(bytes)) => observer.exhaust(bytes, at),
                (Some(observer), Step::Lost) => observer.lost(at),
                (_, Step::Dropped) => observer = None,
                (None, _) => {}
            }
        }
        if let Some(observer) = &mut observer {
            observer.closed(Close::Finished { first: Side::Client }, at);
        }
        drop(observer);
        let recorded: Vec<_> =
            calls.records.lock().unwrap().iter().map(|(outcome, tenant)| (*outcome, tenant.is_some())).collect();
        assert_eq!(recorded, expected, "{why:?}");
        assert_eq!(*calls.detached.lock().unwrap(), [why], "{why:?}");
        // The bytes are counted if requests cannot be recognised in them.
        let blind = matches!(why, Detach::Upgraded | Detach::Tls | Detach::CaptureGap);
        assert_eq!(*calls.unparsed.lock().unwrap() > 0, blind, "{why:?}");
        assert_eq!((observers.open(), observers.observed(), observers.budget().held()), (0, 0, 0), "{why:?}");
    }
}

#[test]
fn idle_connection_gives_up_its_requests_to_another_client_and_is_observed_again() {
    const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let records = Arc::new(Records::default());
    let settings = Settings { memory: Size(40 * 1024), ..Settings::default() };
    let observers = Observers::new(settings, 1, Arc::clone(&records) as Arc<dyn Sink>);
    let start = Instant::now();
    let connect = |id: u8, accepted| {
        let peer = Some(([192, 0, 2, id], 1).into());
        observers.accepted(&Connection { id: id.into(), peer, listener: 0, upstream: "x".into(), accepted }).unwrap()
    };
    let mut idle = connect(1, start);
    idle.seen(Direction::Request, &REQUEST.repeat(4), start);
    assert_eq!((observers.open(), observers.budget().refused()), (4, 0));
    let later = start + Duration::from_secs(10);
    let mut other = connect(2, later);
    other.seen(Direction::Request, &REQUEST.repeat(4), later);
    let lost: Vec<_> = records.0.lock().unwrap().drain(..).map(|record| (record.connection, record.outcome)).collect();
    assert_eq!(lost, [(1, Outcome::Unobserved); 4]);
    assert_eq!((observers.open(), observers.observed()), (4, 2));
    // The responses are still to come, so a drain must not close the connection.
    assert!(!idle.idle());
    other.closed(Close::Reset(Side::Client), later);
    idle.seen(Direction::Response, &RESPONSE.repeat(4), later);
    assert!(idle.idle());
    idle.seen(Direction::Request, REQUEST, later);
    idle.seen(Direction::Response, RESPONSE, later);
    let last = records.0.lock().unwrap().pop().unwrap();
    assert_eq!((last.connection, last.sequence, last.outcome), (1, 4, Outcome::Ok));
    idle.closed(Close::Finished { first: Side::Client }, later);
    drop((idle, other));
    assert_eq!((observers.open(), observers.budget().held()), (0, 0));
}

#[test]
fn http2_connection_with_unfollowed_requests_is_not_idle() {
    let settings = Settings { max_open_requests: 0, ..Settings::default() };
    let observers = Observers::new(settings, 1, Arc::new(Records::default()));
    let accepted = Instant::now();
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: "x".into(), accepted };
    let mut observer = observers.accepted(&connection).unwrap();
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    observer.seen(Direction::Request, &[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat(), accepted);
    assert!(observer.idle());
    // HEADERS of stream 1 with END_STREAM and END_HEADERS: GET, http, /.
    observer.seen(Direction::Request, b"\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84", accepted);
    assert!(!observer.idle());
    observer.closed(Close::Reset(Side::Client), accepted);
}
