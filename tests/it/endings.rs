//! Every way an exchange can end: bytes and closes in, one record with one outcome out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::input::{Close, Connection, Direction, Observe, Observer, Side};
use tokometer_observe::measure::{Detach, Outcome};
use tokometer_observe::observer::{Observatory, OwnPath, Settings};

pub(crate) const REQUEST: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 28\r\n\r\n{\"model\":\"m\",\"stream\":true }";
pub(crate) const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
pub(crate) const ROLE: &str = r#"data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
pub(crate) const DELTA: &str = r#"data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
pub(crate) const FINISH: &str = r#"data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
pub(crate) const ERROR: &str = r#"data: {"error": {"message": "m", "type": "InternalServerError", "code": 500}}"#;
pub(crate) const DONE: &str = "data: [DONE]";
pub(crate) const LAST: &[u8] = b"0\r\n\r\n";

pub(crate) fn chunk(event: &str) -> Vec<u8> {
    format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2).into_bytes()
}

/// A connection whose observer is told what the test says, one millisecond apart.
pub(crate) struct Wire {
    pub(crate) observer: Box<dyn Observer>,
    notebook: Notebook,
    pub(crate) now: Instant,
}

impl Wire {
    pub(crate) fn open() -> Wire {
        Wire::open_by(Settings::default())
    }

    /// A connection that is observed by these settings.
    pub(crate) fn open_by(settings: Settings) -> Wire {
        let notebook = Notebook::default();
        let observatory = Observatory::new(settings, 1, Arc::new(notebook.clone()));
        let now = Instant::now();
        let connection = Connection { id: 1, peer: None, pair: 0, upstream: Arc::from("sim"), accepted: now };
        Wire { observer: observatory.accepted(&connection).expect("observing is on"), notebook, now }
    }

    /// A connection on which the usual request was sent.
    pub(crate) fn asked() -> Wire {
        Wire::open().client(REQUEST)
    }

    fn tick(&mut self) -> Instant {
        self.now += Duration::from_millis(1);
        self.now
    }

    pub(crate) fn client(mut self, bytes: &[u8]) -> Wire {
        let at = self.tick();
        self.observer.seen(Direction::Request, bytes, at);
        self
    }

    pub(crate) fn server(mut self, bytes: &[u8]) -> Wire {
        let at = self.tick();
        self.observer.seen(Direction::Response, bytes, at);
        self
    }

    pub(crate) fn events(mut self, events: &[&str]) -> Wire {
        for event in events {
            self = self.server(&chunk(event));
        }
        self
    }

    pub(crate) fn close(mut self, close: Close) -> Replayed {
        let at = self.tick();
        if close == (Close::Finished { first: Side::Server }) {
            self.observer.finished(Direction::Response, at);
        }
        self.observer.closed(close, at);
        drop(self.observer);
        self.notebook.take()
    }

    /// The one outcome, after the client closed.
    fn outcome(self) -> Outcome {
        self.outcome_of(Close::Finished { first: Side::Client })
    }

    fn outcome_of(self, close: Close) -> Outcome {
        let replayed = self.close(close);
        assert_eq!(replayed.records.len(), 1, "one exchange, one record: {replayed:?}");
        assert_eq!(replayed.in_flight, 0, "what entered a phase left it");
        replayed.records[0].outcome
    }
}

#[test]
fn a_whole_stream_is_ok() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH, DONE]).server(LAST).outcome(), Outcome::Ok);
}

#[test]
fn a_whole_stream_without_the_done_marker_is_ok() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH]).server(LAST).outcome(), Outcome::Ok);
}

#[test]
fn a_client_that_hangs_up_at_the_end_mark_got_its_answer() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH, DONE]).outcome(), Outcome::Ok);
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH]).outcome(), Outcome::Ok);
}

impl Wire {
    /// The client ends its side of the connection.
    fn half_closed(mut self) -> Wire {
        let at = self.tick();
        self.observer.finished(Direction::Request, at);
        self
    }
}

#[test]
fn an_error_after_the_client_ended_its_side_is_an_error() {
    let wire = |events: &[&str]| Wire::asked().server(HEAD).events(events).half_closed();
    assert_eq!(wire(&[ROLE, DELTA]).events(&[ERROR]).server(LAST).outcome(), Outcome::ErrorInStream);
    assert_eq!(wire(&[]).events(&[ERROR, DONE]).server(LAST).outcome(), Outcome::ErrorInStream);
    assert_eq!(wire(&[ROLE, DELTA]).events(&[DELTA, FINISH, DONE]).server(LAST).outcome(), Outcome::Ok);
    assert_eq!(wire(&[ROLE, DELTA]).outcome(), Outcome::ClientAbortMidStream);
}

#[test]
fn ollamas_error_that_answers_a_client_that_left_is_its_abort() {
    const TOKEN: &str = r#"{"model":"m","message":{"role":"assistant","content":"a"},"done":false}"#;
    const CANCELLED: &str = r#"{"error":"context canceled"}"#;
    let wire = |fields: &str, events: &[&str]| {
        let request = "POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
        let head = format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n");
        Wire::open().client(request.as_bytes()).server(head.as_bytes()).events(events)
    };
    let ndjson = "Content-Type: application/x-ndjson\r\n";
    let ollama = format!("{ndjson}Date: x\r\n");
    let left = |events: &[&str]| wire(&ollama, events).half_closed().events(&[CANCELLED]).server(LAST).outcome();
    assert_eq!(left(&[TOKEN]), Outcome::ClientAbortMidStream);
    assert_eq!(left(&[]), Outcome::ClientAbortBeforeFirstToken);
    assert_eq!(left(&[TOKEN, CANCELLED]), Outcome::ErrorInStream, "it came before the client left");
    // Who else has its API is not known, unless it is (SGLang).
    let unknown = wire(ndjson, &[TOKEN]).half_closed().events(&[CANCELLED]).server(LAST);
    assert_eq!(unknown.outcome(), Outcome::ClientAbortMidStream);
    let sglang = r#"{"model":"m","message":{"role":"assistant","content":"a","images":null},"done":false}"#;
    let sglang = wire(ndjson, &[sglang]).half_closed().events(&[CANCELLED]).server(LAST);
    assert_eq!(sglang.outcome(), Outcome::ErrorInStream);
}

#[test]
fn a_client_that_leaves_before_the_first_token_aborted_before_it() {
    let before = Outcome::ClientAbortBeforeFirstToken;
    assert_eq!(Wire::asked().outcome(), before);
    assert_eq!(Wire::asked().server(HEAD).outcome(), before);
    assert_eq!(Wire::asked().server(HEAD).events(&[": keep-alive", ROLE]).outcome(), before);
    assert_eq!(Wire::asked().server(HEAD).outcome_of(Close::Reset(Side::Client)), before);
    assert_eq!(Wire::open().client(&REQUEST[..40]).outcome(), before);
}

#[test]
fn a_client_that_leaves_mid_stream_keeps_its_partial_tokens() {
    let replayed = Wire::asked().server(HEAD).events(&[ROLE, DELTA, DELTA]).close(Close::Reset(Side::Client));
    let record = &replayed.records[0];
    assert_eq!(record.outcome, Outcome::ClientAbortMidStream);
    let count = record.output_tokens.expect("two tokens were seen");
    assert_eq!((count.tokens, count.source.is_exact()), (2, false));
    assert_eq!(record.decode_rate, None, "the count is a lower bound");
}

#[test]
fn a_server_that_cannot_be_reached_refused() {
    assert_eq!(Wire::asked().outcome_of(Close::Refused), Outcome::UpstreamRefused);
    assert_eq!(Wire::asked().outcome_of(Close::ConnectTimeout), Outcome::UpstreamTimeout);
}

#[test]
fn a_server_that_resets_is_a_reset() {
    assert_eq!(
        Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(Close::Reset(Side::Server)),
        Outcome::UpstreamReset
    );
    assert_eq!(Wire::asked().outcome_of(Close::Reset(Side::Server)), Outcome::UpstreamReset);
}

#[test]
fn a_stream_cut_before_its_terminator_is_truncated() {
    let server_closed = Close::Finished { first: Side::Server };
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(server_closed), Outcome::Truncated);
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA, FINISH, DONE]).outcome_of(server_closed), Outcome::Truncated);
    assert_eq!(Wire::asked().outcome_of(server_closed), Outcome::Truncated);
}

#[test]
fn a_message_that_ends_before_its_stream_does_is_truncated() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA]).server(LAST).outcome(), Outcome::Truncated);
}

#[test]
fn an_error_event_is_an_error_in_the_stream_whatever_follows() {
    let error = Outcome::ErrorInStream;
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, ERROR, DONE]).server(LAST).outcome(), error);
    let cut = Wire::asked().server(HEAD).events(&[ROLE, ERROR]);
    assert_eq!(cut.outcome_of(Close::Finished { first: Side::Server }), error);
}

#[test]
fn statuses_decide_failed_requests() {
    let answer = |status: u16| {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}");
        Wire::asked().server(head.as_bytes()).outcome()
    };
    assert_eq!(answer(400), Outcome::Http4xx);
    assert_eq!(answer(404), Outcome::Http4xx);
    assert_eq!(answer(500), Outcome::Http5xx);
    assert_eq!(answer(502), Outcome::Http5xx);
    for busy in [429, 503, 529] {
        assert_eq!(answer(busy), Outcome::RejectedBusy, "{busy}");
    }
}

#[test]
fn a_whole_answer_without_a_token_is_no_output() {
    assert_eq!(Wire::asked().server(HEAD).server(LAST).outcome(), Outcome::NoOutput);
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, FINISH, DONE]).server(LAST).outcome(), Outcome::NoOutput);
}

#[test]
fn an_answer_of_no_tokens_is_well_where_none_were_asked_for() {
    let ask = |more: &str| {
        let body = format!(r#"{{"model":"m","stream":true,{more}}}"#);
        let head = format!("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        Wire::open().client((head + &body).as_bytes()).server(HEAD)
    };
    let event = |text: &str, finish: &str| {
        format!(r#"data: {{"id":"c","choices":[{{"index":0,"text":"{text}","finish_reason":{finish}}}]}}"#)
    };
    let (echo, finish) = (event("the prompt", "null"), event("", "\"length\""));
    assert_eq!(ask(r#""max_tokens":0"#).events(&[&finish, DONE]).server(LAST).outcome(), Outcome::Ok);
    assert_eq!(ask(r#""echo":true"#).events(&[&echo, &finish, DONE]).server(LAST).outcome(), Outcome::Ok);
    assert_eq!(ask(r#""echo":true"#).events(&[&finish, DONE]).server(LAST).outcome(), Outcome::NoOutput);
}

#[test]
fn tokens_that_only_usage_tells_of_are_output() {
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":42,"total_tokens":45}}"#;
    let wire = Wire::asked().server(HEAD).events(&[ROLE, FINISH, usage, DONE]).server(LAST);
    assert_eq!(wire.outcome(), Outcome::Ok);
}

#[test]
fn a_drain_that_runs_out_of_patience_is_drained() {
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(Close::Drained), Outcome::Drained);
}

#[test]
fn an_answer_that_nothing_follows_for_the_idle_timeout_timed_out() {
    assert_eq!(Wire::asked().outcome_of(Close::IdleTimeout), Outcome::UpstreamTimeout);
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(Close::IdleTimeout), Outcome::UpstreamTimeout);
}

#[test]
fn a_switch_of_protocol_ends_its_exchange_and_detaches() {
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x-other\r\nconnection: upgrade\r\n\r\n\x81\x01a";
    let replayed = Wire::open()
        .client(b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: x-other\r\nConnection: Upgrade\r\n\r\n")
        .server(switch)
        .close(Close::Finished { first: Side::Client });
    assert_eq!(replayed.detached, [Detach::Upgraded]);
    assert_eq!(replayed.records.len(), 1);
    assert_eq!((replayed.records[0].outcome, replayed.records[0].status), (Outcome::Ok, Some(101)));
}

#[test]
fn what_cannot_be_followed_detaches_once_and_is_recorded_as_unobserved() {
    let replayed = Wire::asked()
        .server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n")
        .server(b"more")
        .close(Close::Finished { first: Side::Server });
    assert_eq!(replayed.detached, [Detach::MalformedResponse]);
    assert_eq!((replayed.records[0].outcome, replayed.records.len(), replayed.in_flight), (Outcome::Unobserved, 1, 0));
}

#[test]
fn exchanges_of_one_connection_are_recorded_apart() {
    let ok = |wire: Wire| wire.server(HEAD).events(&[DELTA, FINISH, DONE]).server(LAST);
    let replayed = ok(ok(Wire::asked()).client(REQUEST).client(b"GET /v1/files HTTP/1.1\r\nHost: x\r\n\r\n"))
        .server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .close(Close::Finished { first: Side::Client });
    let seen: Vec<_> = replayed.records.iter().map(|r| (r.sequence, r.labels.route.operation(), r.outcome)).collect();
    assert_eq!(seen, [(0, "chat", Outcome::Ok), (1, "chat", Outcome::Ok), (2, "other", Outcome::Ok)]);
}

#[test]
fn probes_pass_unrecorded_unless_they_are_asked_for() {
    const PROBE: &[u8] = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    for probes in [false, true] {
        let wire = Wire::open_by(Settings { probes, ..Settings::default() }).client(PROBE);
        let replayed = wire
            .server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .client(REQUEST)
            .server(HEAD)
            .events(&[DELTA, FINISH, DONE])
            .server(LAST)
            .client(PROBE)
            .close(Close::Refused);
        let seen: Vec<_> = replayed.records.iter().map(|r| (r.labels.route.operation(), r.outcome)).collect();
        let chat = ("chat", Outcome::Ok);
        let refused = ("other", Outcome::UpstreamRefused);
        assert_eq!(seen, if probes { vec![("other", Outcome::Ok), chat, refused] } else { vec![chat] });
        assert_eq!((replayed.in_flight, replayed.detached), (0, vec![]));
    }
}

#[test]
fn a_path_of_ones_own_is_read_as_its_route() {
    let request = String::from_utf8_lossy(REQUEST).replace("/v1/chat/completions", "/llm");
    let own_paths = vec![OwnPath::new("/llm", "chat").expect("a path and a route")];
    let wire = Wire::open_by(Settings { own_paths, ..Settings::default() }).client(request.as_bytes());
    assert_eq!(wire.server(HEAD).events(&[DELTA, FINISH, DONE]).server(LAST).outcome(), Outcome::Ok);
}

#[test]
fn an_answer_before_the_end_of_its_request_is_recorded_and_the_rest_belongs_to_nobody() {
    let replayed = Wire::open()
        .client(&REQUEST[..80])
        .server(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        .client(&REQUEST[80..])
        .client(REQUEST)
        .server(HEAD)
        .events(&[DELTA, FINISH, DONE])
        .server(LAST)
        .close(Close::Finished { first: Side::Client });
    let seen: Vec<_> = replayed.records.iter().map(|r| (r.outcome, r.requested.is_some())).collect();
    assert_eq!(seen, [(Outcome::Http4xx, false), (Outcome::Ok, true)]);
}

#[test]
fn an_observer_that_is_dropped_in_mid_stream_records_it_as_unobserved() {
    let wire = Wire::asked().server(HEAD).events(&[DELTA]);
    let notebook = wire.notebook.clone();
    drop(wire.observer);
    let replayed = notebook.take();
    assert_eq!(replayed.detached, [Detach::Panic]);
    assert_eq!((replayed.records[0].outcome, replayed.records.len(), replayed.in_flight), (Outcome::Unobserved, 1, 0));
}
