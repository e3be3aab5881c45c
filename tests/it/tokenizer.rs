//! Token counting from text: counts in records, and failures that prevent a count but lose no record.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokometer::app::Instrument;
use tokometer::{app, config};
use tokometer_observe::input::{Close, Connection, Direction, Observe, Side};
use tokometer_observe::measure::{CountSource, EngineSpan, Outcome, Record, Sink, Uncounted};
use tokometer_observe::observer;
use tokometer_observe::observer::Observers;
use tokometer_proxy::listen::Address;
use tokometer_telemetry::accounting::Tenants;
use tokometer_telemetry::tokenizer::{Counting, Settings, Tokenize, Vocabularies};

use crate::endings::{DONE, FINISH, HEAD, LAST, REQUEST, ROLE, chunk};
use crate::injected;
use crate::listener::listener_to;
use crate::truth::vocabulary;

/// Timeout longer than any test takes, so that a hanging test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Last sink of the chain: sends each record to the test.
struct Out(Mutex<Sender<Record>>);

impl Sink for Out {
    fn record(&self, record: &Arc<Record>) {
        self.0.lock().expect("not poisoned").send(Record::clone(record)).expect("the test is receiving");
    }
}

/// Counts one token per word.
struct Words;

impl Tokenize for Words {
    fn tokens(&self, text: &str) -> Option<u64> {
        Some(text.split_whitespace().count() as u64)
    }
}

/// Panics on `panic`, rejects `refuse`, and counts the words of other texts.
struct FaultyTokenizer;

impl Tokenize for FaultyTokenizer {
    fn tokens(&self, text: &str) -> Option<u64> {
        if text.contains("panic") {
            injected::panic("a tokenizer");
        }
        Words.tokens(text).filter(|_| !text.contains("refuse"))
    }
}

/// Blocks on every text until released.
struct Gate {
    entered: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Tokenize for Gate {
    fn tokens(&self, text: &str) -> Option<u64> {
        self.entered.lock().expect("not poisoned").send(()).ok();
        self.go.lock().expect("not poisoned").recv().ok();
        Words.tokens(text)
    }
}

/// Observers, the token counting stage that receives their records, and the records that the stage forwards.
struct Rig {
    observers: Observers,
    counting: Arc<Counting>,
    out: Receiver<Record>,
}

impl Rig {
    fn new(vocabularies: Vocabularies) -> Rig {
        Rig::with(vocabularies, 8, observer::Text { response_bytes: 10_000, memory_bytes: 1 << 20 })
    }

    fn of(tokenize: impl Tokenize) -> Rig {
        Rig::new(Vocabularies::of_all(Arc::new(tokenize)))
    }

    fn with(vocabularies: Vocabularies, queue: usize, text: observer::Text) -> Rig {
        let (sender, out) = channel();
        let counting =
            Counting::start(Arc::new(Out(Mutex::new(sender))), vocabularies, queue).expect("the thread starts");
        let counting = Arc::new(counting);
        let settings = observer::Settings { text: Some(text), ..observer::Settings::default() };
        let observers = Observers::new(settings, 1, Arc::clone(&counting) as Arc<dyn Sink>);
        Rig { observers, counting, out }
    }

    /// Observes this request, and a response with these reads, one millisecond apart.
    fn round_trip(&self, request: &[u8], response: &[Vec<u8>]) {
        let start = Instant::now();
        let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("sim"), accepted: start };
        let mut observer = self.observers.accepted(&connection).expect("observing is enabled");
        let mut at = start;
        observer.seen(Direction::Request, request, at);
        for bytes in response {
            at += Duration::from_millis(1);
            observer.seen(Direction::Response, bytes, at);
        }
        observer.closed(Close::Finished { first: Side::Client }, at);
    }

    /// Observes a chat response without usage, with these text deltas.
    fn says(&self, pieces: &[&str]) {
        self.round_trip(REQUEST, &stream(pieces, &[FINISH, DONE]));
    }

    fn next(&self) -> Record {
        self.out.recv_timeout(PATIENCE).expect("a record is forwarded")
    }

    /// The output count of the next record.
    fn count(&self) -> Option<(u64, CountSource)> {
        self.next().tokens.output.map(|count| (count.tokens, count.source))
    }

    fn uncounted(&self) -> BTreeMap<&'static str, u64> {
        let all = self.counting.uncounted().into_iter();
        all.filter(|(_, responses)| *responses > 0).map(|(why, responses)| (why.as_str(), responses)).collect()
    }
}

fn delta(piece: &str) -> String {
    format!("data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{piece}\"}}}}]}}")
}

fn stream(pieces: &[&str], ends: &[&str]) -> Vec<Vec<u8>> {
    let mut response = vec![HEAD.to_vec(), chunk(ROLE)];
    response.extend(pieces.iter().map(|piece| chunk(&delta(piece))));
    response.extend(ends.iter().map(|event| chunk(event)));
    response.push(LAST.to_vec());
    response
}

const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}"#;

#[test]
fn uncounted_response_gets_a_tokenizer_count() {
    let rig = Rig::of(Words);
    rig.says(&["a b c", " d e", " f g h i j"]);
    let record = rig.next();
    let count = record.tokens.output.unwrap();
    assert_eq!((count.tokens, count.source), (10, CountSource::Tokenizer));
    assert!(!count.source.is_exact(), "a tokenizer count is an estimate");
    assert_eq!((record.outcome, record.tokens.chunks), (Outcome::Ok, 3));
    // There are 10 tokens, 3 of them in the first event. The last event arrives 2 ms after the first.
    let near = |rate: Option<f64>, expected: f64| rate.is_some_and(|rate| (rate - expected).abs() < 1e-6);
    assert!(near(record.rate.estimated, 3500.0), "{:?}", record.rate.estimated);
    assert!(near(record.rate.at_least, 1000.0), "the lower bound is kept: {:?}", record.rate.at_least);
    assert_eq!((record.rate.exact, record.time_per_output_token()), (None, None), "only with exact counts");
    assert_eq!(rig.uncounted(), BTreeMap::new());
}

#[test]
fn response_with_usage_is_not_tokenized() {
    let rig = Rig::of(Words);
    rig.round_trip(REQUEST, &stream(&["a b c", " d e"], &[FINISH, USAGE, DONE]));
    let record = rig.next();
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((4, CountSource::Usage)));
    assert!(record.rate.exact.is_some() && record.rate.estimated.is_none());
    assert_eq!(rig.uncounted(), BTreeMap::new(), "nothing to count");
}

#[test]
fn engine_span_count_wins_over_tokenizer_count() {
    let rig = Rig::of(Words);
    rig.says(&["a b c", " d e", " f"]);
    let mut record = rig.next();
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((6, CountSource::Tokenizer)));
    record.complete(EngineSpan { completion_tokens: Some(7), ..EngineSpan::default() });
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((7, CountSource::EngineSpan)));
    assert!(record.rate.exact.is_some() && record.rate.estimated.is_none(), "the estimate is removed");
}

#[test]
fn text_of_aborted_response_is_counted() {
    let rig = Rig::of(Words);
    rig.round_trip(REQUEST, &stream(&["a b c", " d e"], &[])[..4]);
    let record = rig.next();
    assert_eq!(record.outcome, Outcome::ClientAbortMidStream);
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((5, CountSource::Tokenizer)));
}

#[test]
fn non_streamed_response_is_counted_without_rate() {
    let rig = Rig::of(Words);
    let body = r#"{"model_name":"m","model_version":"1","text_output":"a b c"}"#;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    let request = "POST /v2/models/m/generate HTTP/1.1\r\ncontent-length: 18\r\n\r\n{\"text_input\":\"a\"}";
    rig.round_trip(request.as_bytes(), &[[head, body.to_owned()].concat().into_bytes()]);
    let record = rig.next();
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((3, CountSource::Tokenizer)));
    assert_eq!((record.rate.estimated, record.rate.at_least), (None, None));
}

#[test]
fn count_below_the_number_of_texts_is_rejected() {
    let rig = Rig::of(Words);
    rig.says(&["one", "word", "in", "four"]);
    assert_eq!(rig.count(), Some((4, CountSource::Deltas)));
    assert_eq!(rig.uncounted(), BTreeMap::from([("below_lower_bound", 1)]));
}

/// The last event of a vLLM stream whose last token ends the text.
const END_OF_TEXT: &str = r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"kv_transfer_params":null}"#;

#[test]
fn tokens_without_text_raise_the_estimate_and_not_the_error_count() {
    let rig = Rig::of(Words);
    rig.round_trip(REQUEST, &stream(&["a", " b", " c"], &[END_OF_TEXT, DONE]));
    assert_eq!(rig.count(), Some((4, CountSource::Tokenizer)), "the end-of-text token is a token");
    rig.round_trip(REQUEST, &stream(&["a b", " c d", " e"], &[END_OF_TEXT, DONE]));
    assert_eq!(rig.count(), Some((5, CountSource::Tokenizer)));
    assert_eq!(rig.uncounted(), BTreeMap::new());
}

#[test]
fn arguments_of_tool_calls_are_counted() {
    let call = |function: &str| {
        format!(r#"data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"function":{function}}}]}}}}]}}"#)
    };
    let [name, arguments] = [r#"{"name":"weather"}"#, r#"{"arguments":" in Berlin and \"in\" Paris"}"#].map(call);
    let rig = Rig::of(Words);
    rig.round_trip(REQUEST, &stream(&["a b c"], &[&name, &arguments, FINISH, DONE]));
    assert_eq!(rig.count(), Some((9, CountSource::Tokenizer)));
    assert_eq!(rig.uncounted(), BTreeMap::new());
}

#[test]
fn responses_with_more_than_plain_text_are_not_counted() {
    let rig = Rig::of(Words);
    let audio = r#"data: {"choices":[{"index":0,"delta":{"audio":{"transcript":"d e"}}}]}"#;
    rig.round_trip(REQUEST, &stream(&["a b c"], &[audio, FINISH, DONE]));
    assert_eq!(rig.count(), Some((2, CountSource::Deltas)));
    let asked = |body: &str| {
        format!("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    for body in [r#"{"stream":true,"n":2}"#, r#"{"stream":true,"echo":true}"#] {
        rig.round_trip(&asked(body), &stream(&["a b c", " d"], &[FINISH, DONE]));
        assert!(rig.count().is_some_and(|(_, source)| source == CountSource::Deltas), "{body}");
    }
    assert_eq!(rig.uncounted(), BTreeMap::from([("not_plain", 3)]));
}

#[test]
fn texts_over_size_or_memory_limit_are_tallied() {
    let text = observer::Text { response_bytes: 2000, memory_bytes: 1500 };
    let rig = Rig::with(Vocabularies::of_all(Arc::new(Words)), 8, text);
    let long = "a ".repeat(600);
    for (pieces, why) in [(vec![&long[..]; 2], "text_too_long"), (vec![&long[..1020], &long[..900]], "memory")] {
        let before = rig.uncounted().get(why).copied().unwrap_or(0);
        rig.says(&pieces);
        assert_eq!(rig.count(), Some((2, CountSource::Deltas)), "{why}");
        assert_eq!(rig.uncounted().get(why), Some(&(before + 1)), "{why}: {:?}", rig.uncounted());
    }
    rig.says(&["a b c"]);
    assert_eq!(rig.count(), Some((3, CountSource::Tokenizer)), "the memory of dropped texts is released");
}

#[test]
fn failing_tokenizer_loses_no_record() {
    let rig = Rig::of(FaultyTokenizer);
    rig.says(&["do panic now"]);
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)));
    rig.says(&["do refuse this"]);
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)));
    rig.says(&["go on as before"]);
    assert_eq!(rig.count(), Some((4, CountSource::Tokenizer)));
    assert_eq!(rig.uncounted(), BTreeMap::from([("failed", 2)]));
}

fn gate() -> (Gate, Receiver<()>, Sender<()>) {
    let (entered, has_entered) = channel();
    let (go, wait) = channel();
    (Gate { entered: Mutex::new(entered), go: Mutex::new(wait) }, has_entered, go)
}

#[test]
fn full_queue_forwards_records_uncounted_at_once() {
    let (gate, has_entered, go) = gate();
    let text = observer::Text { response_bytes: 10_000, memory_bytes: 1 << 20 };
    let rig = Rig::with(Vocabularies::of_all(Arc::new(gate)), 2, text);
    rig.says(&["one is at hand"]);
    has_entered.recv_timeout(PATIENCE).unwrap();
    rig.says(&["two waits"]);
    rig.says(&["three finds no room"]);
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)), "it did not wait for earlier records");
    assert_eq!(rig.uncounted(), BTreeMap::from([("queue_full", 1)]));
    drop(go);
    assert_eq!(rig.count(), Some((4, CountSource::Tokenizer)));
    assert_eq!(rig.count(), Some((2, CountSource::Tokenizer)));
}

#[test]
fn stop_forwards_waiting_records_if_tokenizer_is_stuck() {
    let (gate, has_entered, go) = gate();
    let rig = Rig::of(gate);
    for text in ["one is at hand", "two waits", "three waits"] {
        rig.says(&[text]);
    }
    has_entered.recv_timeout(PATIENCE).unwrap();
    rig.counting.stop(Duration::ZERO);
    let counts: Vec<_> = (0..3).map(|_| rig.count()).collect();
    assert_eq!(counts, [Some((1, CountSource::Deltas)); 3]);
    drop(go);
    rig.says(&["after the end"]);
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)), "no record is forwarded twice or held back");
    assert_eq!(rig.uncounted(), BTreeMap::from([("queue_full", 4)]));
}

#[test]
fn stop_counts_waiting_texts_within_the_timeout() {
    let rig = Rig::of(Words);
    rig.says(&["a b c"]);
    rig.says(&["a b c d"]);
    rig.counting.stop(PATIENCE);
    let now: Vec<_> = rig.out.try_iter().map(|record| record.tokens.output.unwrap().tokens).collect();
    assert_eq!((now, rig.counting.waiting()), (vec![3, 4], 0));
}

#[test]
fn models_are_counted_with_their_own_vocabulary() {
    let settings = Settings { models: BTreeMap::from([("m".to_owned(), vocabulary())]), ..Settings::default() };
    let rig = Rig::new(Vocabularies::read(&settings).unwrap());
    rig.says(&["Hello world"]);
    // In the recording of `/tokenize`, llama-server returned the tokens [45,450,400,341,3231] for this text.
    assert_eq!(rig.count(), Some((5, CountSource::Tokenizer)));
    let other = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 28\r\n\r\n{\"model\":\"o\",\"stream\":true }";
    rig.round_trip(other, &stream(&["Hello world"], &[FINISH, DONE]));
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)));
    assert_eq!(rig.uncounted(), BTreeMap::from([("no_vocabulary", 1)]));
}

#[test]
fn reload_adds_and_removes_vocabularies() {
    let rig = Rig::new(Vocabularies::default());
    rig.says(&["a b c"]);
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)));
    assert!(rig.counting.uncounted().is_empty(), "no metrics while disabled");
    rig.counting.reload(Vocabularies::of_all(Arc::new(Words)), 8).unwrap();
    rig.says(&["a b c"]);
    assert_eq!(rig.count(), Some((3, CountSource::Tokenizer)));
    rig.counting.reload(Vocabularies::default(), 8).unwrap();
    rig.says(&["a b c"]);
    assert_eq!(rig.count(), Some((1, CountSource::Deltas)));
}

#[test]
fn invalid_vocabulary_error_has_path_and_fix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for (written, why) in [(None, "No such file"), (Some("{}"), "cannot read the tokenizer"), (Some("x"), "expected")] {
        if let Some(text) = written {
            std::fs::write(&path, text).unwrap();
        }
        let settings = Settings { path: Some(path.clone()), ..Settings::default() };
        let error = Vocabularies::read(&settings).map(drop).unwrap_err().to_string();
        let reported = error.contains(why) && error.contains("tokenizer.json") && error.contains("set the path");
        assert!(reported, "{error}");
    }
}

/// Sends this response on each connection, and closes the connection.
fn serve(listener: TcpListener, response: Vec<u8>) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream: TcpStream = stream.expect("a client connects");
            let mut request = [0; 4096];
            let read = stream.read(&mut request).expect("the request is readable");
            if read > 0 {
                stream.write_all(&response).expect("the client is reading");
            }
        }
    });
}

#[test]
fn program_counts_tokens_without_exposing_text() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    serve(upstream, stream(&["Hello world", " hunter2", " hunter2"], &[FINISH, DONE]).concat());
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let mut settings = config::Settings::with_listener(listener_to(address));
    settings.admin.listen = "127.0.0.1:0".parse().unwrap();
    settings.observe.text = Some(observer::Text { response_bytes: 10_000, memory_bytes: 1 << 20 });
    settings.tokenizer = Settings { path: Some(vocabulary()), ..Settings::default() };
    settings.access_log = Some(app::access_log::Settings { path: Some(log.clone()), json: true, queue_lines: 64 });
    let (sender, out) = channel();
    let also = Some(Arc::new(Out(Mutex::new(sender))) as Arc<dyn Sink>);
    let instrument = Instrument::start(&settings, also, Arc::new(String::new)).unwrap();
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("a TCP listener") };
    let mut client = TcpStream::connect((host, port)).unwrap();
    client.write_all(REQUEST).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut response = Vec::new();
    client.read_to_end(&mut response).unwrap();
    assert!(String::from_utf8_lossy(&response).contains("hunter2"), "the client received the response");
    drop(client);
    let record = out.recv_timeout(PATIENCE).unwrap();
    let mut admin = TcpStream::connect(instrument.admin()).unwrap();
    admin.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    admin.read_to_string(&mut page).unwrap();
    let debug = format!("{instrument:?} {record:?} {settings:?}");
    instrument.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("\"output_tokens_source\":\"tokenizer\""), "{log}");
    assert!(page.contains("source=\"tokenizer\"") && page.contains("tokometer_tokenizer_uncounted"), "{page}");
    for reported in [log, page, debug] {
        assert!(!reported.contains("hunter") && !reported.contains("Hello"), "{reported}");
    }
}

#[test]
fn reload_with_an_unusable_part_changes_nothing() {
    let mut settings = config::Settings::with_listener(listener_to(crate::listener::reserved()));
    settings.admin.listen = "127.0.0.1:0".parse().unwrap();
    let instrument = Instrument::start(&settings, None, Arc::new(String::new)).unwrap();
    let counts = || crate::program::get(instrument.admin(), "/metrics").contains("tokometer_tokenizer_uncounted");
    let mut new = settings.clone();
    new.tokenizer = Settings { path: Some(vocabulary()), ..Settings::default() };
    let missing = Some("/nonexistent/key".into());
    new.accounting.tenants = Some(Tenants { hash_key_file: missing, ..Tenants::default() });
    let error = instrument.reload(&new).unwrap_err().to_string();
    assert!(error.contains("tenants.hash_key_file") && !counts(), "{error}");
    new.accounting = settings.accounting.clone();
    instrument.reload(&new).unwrap();
    assert!(counts());
    instrument.stop();
}

#[test]
fn every_reason_is_reported_once() {
    let rig = Rig::of(Words);
    let reasons: Vec<Uncounted> = rig.counting.uncounted().into_iter().map(|(why, _)| why).collect();
    assert_eq!(reasons, Uncounted::ALL);
}
