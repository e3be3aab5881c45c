//! All ways in which a request can end. Tests pass bytes and connection closes to the observer, and check the record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::input::{Close, Connection, Direction, Observe, Observer, Side};
use tokometer_observe::measure::{Detach, Outcome};
use tokometer_observe::observer::{Observers, Settings};

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

/// An observed connection. Each call passes bytes to the observer, one millisecond after the previous call.
pub(crate) struct Wire {
    pub(crate) observer: Box<dyn Observer>,
    notebook: Notebook,
    pub(crate) now: Instant,
}

impl Wire {
    pub(crate) fn open() -> Wire {
        Wire::open_by(Settings::default())
    }

    /// A connection observed with these settings.
    pub(crate) fn open_by(settings: Settings) -> Wire {
        let notebook = Notebook::default();
        let observers = Observers::new(settings, 1, Arc::new(notebook.clone()));
        let now = Instant::now();
        let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("sim"), accepted: now };
        Wire { observer: observers.accepted(&connection).expect("observing is enabled"), notebook, now }
    }

    /// A connection on which the default request was sent.
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

    /// The outcome of the only record, after the client closed.
    fn outcome(self) -> Outcome {
        self.outcome_of(Close::Finished { first: Side::Client })
    }

    fn outcome_of(self, close: Close) -> Outcome {
        let replayed = self.close(close);
        assert_eq!(replayed.records.len(), 1, "not exactly one record: {replayed:?}");
        assert_eq!(replayed.in_flight, 0, "in-flight count is not zero");
        replayed.records[0].outcome
    }
}

#[test]
fn complete_stream_is_ok() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH, DONE]).server(LAST).outcome(), Outcome::Ok);
}

#[test]
fn complete_stream_without_done_marker_is_ok() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH]).server(LAST).outcome(), Outcome::Ok);
}

#[test]
fn requested_choices_that_the_engine_ignores_are_not_missing() {
    const SECOND: &str = r#"data: {"id":"c","choices":[{"index":1,"delta":{"content":"a"}}]}"#;
    for members in [r#""n":5"#, r#""n_cmpl":5"#, r#""prompt":["a","b"]"#] {
        let body = format!(r#"{{"model":"m","stream":true,{members}}}"#);
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        let outcome = |events: &[&str]| {
            let wire = Wire::open().client((head.clone() + &body).as_bytes()).server(HEAD);
            wire.events(events).server(LAST).outcome()
        };
        assert_eq!(outcome(&[ROLE, DELTA, FINISH]), Outcome::Ok, "{members}");
        assert_eq!(outcome(&[ROLE, DELTA]), Outcome::Truncated, "{members}");
        assert_eq!(outcome(&[ROLE, DELTA, SECOND, FINISH]), Outcome::Truncated, "{members}");
    }
}

#[test]
fn client_close_at_end_marker_is_ok() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH, DONE]).outcome(), Outcome::Ok);
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, FINISH]).outcome(), Outcome::Ok);
}

impl Wire {
    /// The client closes its side of the connection.
    fn half_closed(mut self) -> Wire {
        let at = self.tick();
        self.observer.finished(Direction::Request, at);
        self
    }
}

#[test]
fn error_after_client_half_close_is_error_in_stream() {
    let wire = |events: &[&str]| Wire::asked().server(HEAD).events(events).half_closed();
    assert_eq!(wire(&[ROLE, DELTA]).events(&[ERROR]).server(LAST).outcome(), Outcome::ErrorInStream);
    assert_eq!(wire(&[]).events(&[ERROR, DONE]).server(LAST).outcome(), Outcome::ErrorInStream);
    assert_eq!(wire(&[ROLE, DELTA]).events(&[DELTA, FINISH, DONE]).server(LAST).outcome(), Outcome::Ok);
    assert_eq!(wire(&[ROLE, DELTA]).outcome(), Outcome::ClientAbortMidStream);
}

#[test]
fn ollama_error_after_client_half_close_is_client_abort() {
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
    assert_eq!(left(&[TOKEN, CANCELLED]), Outcome::ErrorInStream, "the error came before the client left");
    // Other servers with Ollama's API are treated as Ollama, unless they are recognised as another engine (here
    // SGLang).
    let unknown = wire(ndjson, &[TOKEN]).half_closed().events(&[CANCELLED]).server(LAST);
    assert_eq!(unknown.outcome(), Outcome::ClientAbortMidStream);
    let sglang = r#"{"model":"m","message":{"role":"assistant","content":"a","images":null},"done":false}"#;
    let sglang = wire(ndjson, &[sglang]).half_closed().events(&[CANCELLED]).server(LAST);
    assert_eq!(sglang.outcome(), Outcome::ErrorInStream);
}

#[test]
fn client_close_before_first_token_is_abort_before_it() {
    let before = Outcome::ClientAbortBeforeFirstToken;
    assert_eq!(Wire::asked().outcome(), before);
    assert_eq!(Wire::asked().server(HEAD).outcome(), before);
    assert_eq!(Wire::asked().server(HEAD).events(&[": keep-alive", ROLE]).outcome(), before);
    assert_eq!(Wire::asked().server(HEAD).outcome_of(Close::Reset(Side::Client)), before);
    assert_eq!(Wire::open().client(&REQUEST[..40]).outcome(), before);
}

/// The server notices the cancellation 200 ms later; the request ends before that.
#[test]
fn cancelled_request_ends_when_the_client_left() {
    let cancelled = |before: &[&str], after: &[&str]| {
        let mut wire = Wire::asked().server(HEAD).events(before).half_closed();
        wire.now += Duration::from_millis(200);
        let mut replayed = wire.events(after).close(Close::Finished { first: Side::Client });
        replayed.records.pop().expect("one record")
    };
    let ms = |n| Some(Duration::from_millis(n));
    let waiting = cancelled(&[ROLE], &[]);
    assert_eq!((waiting.outcome, Some(waiting.times.ended)), (Outcome::ClientAbortBeforeFirstToken, ms(3)));
    assert_eq!(Some(waiting.times.closed), ms(204));
    let late = cancelled(&[ROLE], &[DELTA, DELTA]);
    assert_eq!((late.outcome, Some(late.times.ended)), (Outcome::ClientAbortBeforeFirstToken, ms(3)));
    assert_eq!(
        (late.times.first_event, late.times.first_token, late.times.last_token),
        (ms(2), None, None),
        "{late:?}"
    );
    assert_eq!(late.tokens.output, None, "they were not delivered");
    let midway = cancelled(&[ROLE, DELTA], &[DELTA]);
    assert_eq!((midway.outcome, Some(midway.times.ended)), (Outcome::ClientAbortMidStream, ms(4)));
    assert_eq!((midway.times.first_token, midway.times.last_token), (ms(3), ms(205)));
    let whole = cancelled(&[ROLE, DELTA], &[DELTA, FINISH, DONE]);
    assert_eq!((whole.outcome, Some(whole.times.ended)), (Outcome::Ok, ms(208)), "a half-closed client still reads");
}

#[test]
fn aborted_stream_keeps_partial_tokens() {
    let replayed = Wire::asked().server(HEAD).events(&[ROLE, DELTA, DELTA]).close(Close::Reset(Side::Client));
    let record = &replayed.records[0];
    assert_eq!(record.outcome, Outcome::ClientAbortMidStream);
    let count = record.tokens.output.expect("two tokens were seen");
    assert_eq!((count.tokens, count.source.is_exact()), (2, false));
    assert_eq!(record.rate.exact, None, "the count is a lower bound");
}

#[test]
fn unreachable_server_is_refused_or_timeout() {
    assert_eq!(Wire::asked().outcome_of(Close::Refused), Outcome::UpstreamRefused);
    assert_eq!(Wire::asked().outcome_of(Close::ConnectTimeout), Outcome::UpstreamTimeout);
}

#[test]
fn server_reset_is_upstream_reset() {
    assert_eq!(
        Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(Close::Reset(Side::Server)),
        Outcome::UpstreamReset
    );
    assert_eq!(Wire::asked().outcome_of(Close::Reset(Side::Server)), Outcome::UpstreamReset);
}

#[test]
fn stream_closed_before_terminator_is_truncated() {
    let server_closed = Close::Finished { first: Side::Server };
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(server_closed), Outcome::Truncated);
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA, FINISH, DONE]).outcome_of(server_closed), Outcome::Truncated);
    assert_eq!(Wire::asked().outcome_of(server_closed), Outcome::Truncated);
}

#[test]
fn message_end_before_stream_end_is_truncated() {
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA]).server(LAST).outcome(), Outcome::Truncated);
}

#[test]
fn error_event_is_error_in_stream_whatever_follows() {
    let error = Outcome::ErrorInStream;
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, DELTA, ERROR, DONE]).server(LAST).outcome(), error);
    let cut = Wire::asked().server(HEAD).events(&[ROLE, ERROR]);
    assert_eq!(cut.outcome_of(Close::Finished { first: Side::Server }), error);
}

#[test]
fn error_statuses_determine_the_outcome() {
    let response = |status: u16| {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}");
        Wire::asked().server(head.as_bytes()).outcome()
    };
    assert_eq!(response(400), Outcome::Http4xx);
    assert_eq!(response(404), Outcome::Http4xx);
    assert_eq!(response(500), Outcome::Http5xx);
    assert_eq!(response(502), Outcome::Http5xx);
    assert_eq!(response(307), Outcome::Ok, "the client follows the redirect with another request");
    for busy in [429, 503, 529] {
        assert_eq!(response(busy), Outcome::RejectedBusy, "{busy}");
    }
}

#[test]
fn complete_response_without_tokens_has_outcome_no_output() {
    assert_eq!(Wire::asked().server(HEAD).server(LAST).outcome(), Outcome::NoOutput);
    assert_eq!(Wire::asked().server(HEAD).events(&[ROLE, FINISH, DONE]).server(LAST).outcome(), Outcome::NoOutput);
}

#[test]
fn empty_response_is_ok_if_no_tokens_were_requested() {
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
fn tokens_reported_only_in_usage_are_output() {
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":42,"total_tokens":45}}"#;
    let wire = Wire::asked().server(HEAD).events(&[ROLE, FINISH, usage, DONE]).server(LAST);
    assert_eq!(wire.outcome(), Outcome::Ok);
}

#[test]
fn expired_drain_is_drained() {
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(Close::Drained), Outcome::Drained);
}

#[test]
fn idle_timeout_is_upstream_timeout() {
    assert_eq!(Wire::asked().outcome_of(Close::IdleTimeout), Outcome::UpstreamTimeout);
    assert_eq!(Wire::asked().server(HEAD).events(&[DELTA]).outcome_of(Close::IdleTimeout), Outcome::UpstreamTimeout);
}

#[test]
fn protocol_switch_ends_the_request_and_detaches() {
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x-other\r\nconnection: upgrade\r\n\r\n\x81\x01a";
    let replayed = Wire::open()
        .client(b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: x-other\r\nConnection: Upgrade\r\n\r\n")
        .server(switch)
        .close(Close::Finished { first: Side::Client });
    assert_eq!(replayed.detached, [Detach::Upgraded]);
    assert_eq!(replayed.records.len(), 1);
    assert_eq!((replayed.records[0].outcome, replayed.records[0].response.status), (Outcome::Ok, Some(101)));
}

#[test]
fn malformed_response_detaches_once_and_is_unobserved() {
    let replayed = Wire::asked()
        .server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n")
        .server(b"more")
        .close(Close::Finished { first: Side::Server });
    assert_eq!(replayed.detached, [Detach::MalformedResponse]);
    assert_eq!((replayed.records[0].outcome, replayed.records.len(), replayed.in_flight), (Outcome::Unobserved, 1, 0));
}

#[test]
fn requests_of_one_connection_are_recorded_separately() {
    let ok = |wire: Wire| wire.server(HEAD).events(&[DELTA, FINISH, DONE]).server(LAST);
    let replayed = ok(ok(Wire::asked()).client(REQUEST).client(b"GET /v1/files HTTP/1.1\r\nHost: x\r\n\r\n"))
        .server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .close(Close::Finished { first: Side::Client });
    let seen: Vec<_> = replayed.records.iter().map(|r| (r.sequence, r.labels.route.operation(), r.outcome)).collect();
    assert_eq!(seen, [(0, "chat", Outcome::Ok), (1, "chat", Outcome::Ok), (2, "other", Outcome::Ok)]);
}

#[test]
fn probes_are_recorded_only_if_enabled() {
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
fn custom_path_is_parsed_as_its_route() {
    let request = String::from_utf8_lossy(REQUEST).replace("/v1/chat/completions", "/llm");
    let routes = BTreeMap::from([("/llm".to_owned(), "chat".to_owned())]).into();
    let wire = Wire::open_by(Settings { routes, ..Settings::default() }).client(request.as_bytes());
    assert_eq!(wire.server(HEAD).events(&[DELTA, FINISH, DONE]).server(LAST).outcome(), Outcome::Ok);
}

#[test]
fn response_before_request_end_is_recorded_and_rest_ignored() {
    let replayed = Wire::open()
        .client(&REQUEST[..80])
        .server(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        .client(&REQUEST[80..])
        .client(REQUEST)
        .server(HEAD)
        .events(&[DELTA, FINISH, DONE])
        .server(LAST)
        .close(Close::Finished { first: Side::Client });
    let seen: Vec<_> = replayed.records.iter().map(|r| (r.outcome, r.times.requested.is_some())).collect();
    assert_eq!(seen, [(Outcome::Http4xx, false), (Outcome::Ok, true)]);
}

#[test]
fn dropped_observer_records_stream_as_unobserved() {
    let wire = Wire::asked().server(HEAD).events(&[DELTA]);
    let notebook = wire.notebook.clone();
    drop(wire.observer);
    let replayed = notebook.take();
    assert_eq!(replayed.detached, [Detach::Panic]);
    assert_eq!((replayed.records[0].outcome, replayed.records.len(), replayed.in_flight), (Outcome::Unobserved, 1, 0));
}
