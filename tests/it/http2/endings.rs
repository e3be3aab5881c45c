//! All ways in which an HTTP/2 stream can end. Tests pass frames and closes to the observer, and check the record.

use tokometer_observe::input::{Close, Direction, Side};
use tokometer_observe::measure::{Detach, Outcome};

use crate::endings::{DELTA, DONE, ERROR, FINISH, ROLE, Wire};
use crate::wire::http2::frames::*;

const CLIENT_CLOSES: Close = Close::Finished { first: Side::Client };
const SERVER_CLOSES: Close = Close::Finished { first: Side::Server };

/// A chat request on this stream.
fn chat(stream: u32) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/chat/completions"),
        (":authority", "x"),
        ("content-type", "application/json"),
    ];
    [headers(stream, 0, &fields), data(stream, END_STREAM, br#"{"model":"m","stream":true}"#)].concat()
}

/// A connection with requests on these streams.
fn asked(streams: &[u32]) -> Wire {
    let wire = Wire::open().client(&opening()).server(&settings());
    streams.iter().fold(wire, |wire, stream| wire.client(&chat(*stream)))
}

fn events(wire: Wire, stream: u32, events: &[&str]) -> Wire {
    events.iter().fold(wire, |wire, event| wire.server(&data(stream, 0, format!("{event}\n\n").as_bytes())))
}

/// A connection with one request, and with these events as its response so far.
fn response_complete(with: &[&str]) -> Wire {
    events(asked(&[1]).server(&ok(1, 0)), 1, with)
}

fn outcomes(wire: Wire, close: Close) -> Vec<Outcome> {
    let replayed = wire.close(close);
    assert_eq!((replayed.in_flight, replayed.detached.len()), (0, 0), "{replayed:?}");
    replayed.records.iter().map(|record| record.outcome).collect()
}

#[test]
fn complete_stream_is_ok_and_its_tokens_are_counted() {
    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#;
    let wire = response_complete(&[ROLE, DELTA, DELTA, FINISH, usage, DONE]).server(&data(1, END_STREAM, b""));
    let replayed = wire.close(CLIENT_CLOSES);
    let record = &replayed.records[0];
    assert_eq!((record.outcome, record.response.status, record.sequence), (Outcome::Ok, Some(200), 0));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source.is_exact())), Some((2, true)));
    assert_eq!(record.labels.request_model.as_deref(), Some("m"));
    assert!(record.times.first_token.is_some() && record.times.requested.is_some());
}

#[test]
fn stream_reset_by_the_client_is_an_abort() {
    assert_eq!(outcomes(asked(&[1]).client(&reset(1, 8)), CLIENT_CLOSES), [Outcome::ClientAbortBeforeFirstToken]);
    assert_eq!(
        outcomes(response_complete(&[ROLE]).client(&reset(1, 8)), CLIENT_CLOSES),
        [Outcome::ClientAbortBeforeFirstToken]
    );
    let begun = response_complete(&[ROLE, DELTA]).client(&reset(1, 8));
    assert_eq!(outcomes(begun, CLIENT_CLOSES), [Outcome::ClientAbortMidStream]);
    let done = response_complete(&[ROLE, DELTA, FINISH, DONE]).client(&reset(1, 8));
    assert_eq!(outcomes(done, CLIENT_CLOSES), [Outcome::Ok], "the client has the whole response");
}

#[test]
fn stream_reset_by_the_server_is_a_reset_or_rejection() {
    assert_eq!(outcomes(response_complete(&[DELTA]).server(&reset(1, 2)), CLIENT_CLOSES), [Outcome::UpstreamReset]);
    assert_eq!(outcomes(asked(&[1]).server(&reset(1, 0)), CLIENT_CLOSES), [Outcome::UpstreamReset]);
    for busy in [0x7, 0xb] {
        assert_eq!(outcomes(asked(&[1]).server(&reset(1, busy)), CLIENT_CLOSES), [Outcome::RejectedBusy]);
    }
    for busy in [0x7, 0xb] {
        let begun = response_complete(&[DELTA]).server(&reset(1, busy));
        assert_eq!(outcomes(begun, CLIENT_CLOSES), [Outcome::UpstreamReset], "a begun response is not rejected");
    }
    let stated = response_complete(&[DELTA, ERROR]).server(&reset(1, 2));
    assert_eq!(outcomes(stated, CLIENT_CLOSES), [Outcome::ErrorInStream], "the error event is the cause");
}

#[test]
fn streams_above_the_goaway_id_are_refused() {
    let wire = asked(&[1, 3, 5]).server(&go_away(1, 0)).server(&ok(1, 0));
    let wire = events(wire, 1, &[DELTA, FINISH, DONE]).server(&data(1, END_STREAM, b""));
    assert_eq!(
        outcomes(wire, SERVER_CLOSES),
        [Outcome::UpstreamRefused, Outcome::UpstreamRefused, Outcome::Ok],
        "in the order in which they end"
    );
}

#[test]
fn end_of_the_connection_ends_open_streams_as_in_http_1() {
    let open = || events(asked(&[1, 3]).server(&ok(3, 0)), 3, &[DELTA]);
    let both = |one, other| vec![one, other];
    assert_eq!(
        outcomes(open(), CLIENT_CLOSES),
        both(Outcome::ClientAbortBeforeFirstToken, Outcome::ClientAbortMidStream)
    );
    assert_eq!(outcomes(open(), SERVER_CLOSES), both(Outcome::Truncated, Outcome::Truncated));
    assert_eq!(outcomes(open(), Close::Reset(Side::Server)), both(Outcome::UpstreamReset, Outcome::UpstreamReset));
    assert_eq!(outcomes(open(), Close::Drained), both(Outcome::Drained, Outcome::Drained));
}

#[test]
fn stream_without_an_end_mark_is_truncated() {
    let cut = response_complete(&[ROLE, DELTA]).server(&data(1, END_STREAM, b""));
    assert_eq!(outcomes(cut, CLIENT_CLOSES), [Outcome::Truncated]);
}

#[test]
fn blocked_connection_blocks_every_open_stream() {
    let mut wire = events(asked(&[1, 3]).server(&ok(1, 0)).server(&ok(3, 0)), 1, &[DELTA]);
    let (since, until) = (wire.now, wire.now + std::time::Duration::from_millis(40));
    wire.now = until;
    wire.observer.blocked(Direction::Response, since, until);
    let replayed = wire.close(CLIENT_CLOSES);
    let blocked: Vec<u128> = replayed.records.iter().map(|record| record.blocked.total().as_millis()).collect();
    assert_eq!(blocked, [40, 40]);
}

#[test]
fn connection_is_idle_when_no_stream_is_open() {
    let wire = Wire::open().client(&opening()).server(&settings());
    assert!(wire.observer.idle());
    let wire = wire.client(&chat(1)).client(&chat(3));
    assert!(!wire.observer.idle());
    let wire = wire.server(&ok(1, END_STREAM));
    assert!(!wire.observer.idle());
    let wire = wire.client(&reset(3, 8)).client(&frame(PING, 0, 0, &[0; 8]));
    assert!(wire.observer.idle());
}

#[test]
fn upgraded_connection_has_one_record_per_request() {
    let asks = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n\
                http2-settings: AAMAAABk\r\ncontent-length: 27\r\n\r\n{\"model\":\"m\",\"stream\":true}";
    let switches = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n";
    let wire = Wire::open().client(asks.as_bytes()).server(switches.as_bytes()).server(&settings()).server(&ok(1, 0));
    let wire = events(wire.client(&opening()).client(&chat(3)), 1, &[ROLE, DELTA, FINISH, DONE]);
    let wire = wire.server(&data(1, END_STREAM, b"")).server(&ok(3, END_STREAM));
    let replayed = wire.close(CLIENT_CLOSES);
    let reported: Vec<_> = replayed
        .records
        .iter()
        .map(|r| (r.sequence, r.outcome, r.response.status, r.labels.route.operation()))
        .collect();
    assert_eq!(
        reported,
        [(0, Outcome::Ok, Some(200), "chat"), (1, Outcome::NoOutput, Some(200), "chat")],
        "{replayed:?}"
    );
}

#[test]
fn unreadable_connection_detaches_once_as_unobserved() {
    for (bytes, why) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], Detach::MalformedResponse),
        (&[settings(), frame(HEADERS, END_HEADERS, 1, &[0xbe])].concat(), Detach::HeaderCompression),
        (
            &[settings(), frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe2, 0xff, 0x03])].concat(),
            Detach::HeaderTableTooLarge,
        ),
    ] {
        let wire = Wire::open().client(&opening()).client(&chat(1)).client(&chat(3)).server(bytes).server(&ok(3, 0));
        assert!(!wire.observer.idle(), "an unreadable connection may have pending requests");
        let replayed = wire.close(SERVER_CLOSES);
        let outcomes: Vec<Outcome> = replayed.records.iter().map(|record| record.outcome).collect();
        assert_eq!((replayed.detached, outcomes, replayed.in_flight), (vec![why], vec![Outcome::Unobserved; 2], 0));
    }
}
