//! Observer records of WebSocket sessions.

use std::time::Duration;

use tokometer::replay::Replayed;
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::{CountSource, Detach, Message, Outcome, Unread};

use super::model::{Deflater, FIN, RSV1, frame};
use crate::endings::Wire;

pub(crate) const HANDSHAKE: &[u8] =
    b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
pub(crate) const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const DEFLATED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=12\r\n\r\n";

const CREATED: &str = r#"{"type":"session.created","id":"sess-1","created":1,"session":{"model":"voxtral"}}"#;
const APPEND: &str = r#"{"type":"input_audio_buffer.append","audio":"UklG"}"#;
pub(crate) const COMMIT: &str = r#"{"type":"input_audio_buffer.commit","final":true}"#;
pub(crate) const DELTA: &str = r#"{"type":"transcription.delta","delta":"a"}"#;
pub(crate) const DONE: &str = r#"{"type":"transcription.done","text":"aaa","usage":{"prompt_tokens":38,"total_tokens":41,"completion_tokens":3}}"#;
const ERROR: &str = r#"{"type":"error","error":"broken","code":"x"}"#;

const SERVER_LEFT: Close = Close::Finished { first: Side::Server };
const CLIENT_LEFT: Close = Close::Finished { first: Side::Client };

pub(crate) fn of_client(message: &str) -> Vec<u8> {
    frame(FIN | 1, Some([1, 2, 3, 4]), message.as_bytes())
}

pub(crate) fn of_server(message: &str) -> Vec<u8> {
    frame(FIN | 1, None, message.as_bytes())
}

fn session() -> Wire {
    Wire::open().client(HANDSHAKE).server(SWITCHED).server(&of_server(CREATED))
}

fn close_frame(code: u16) -> Vec<u8> {
    frame(FIN | 8, None, &code.to_be_bytes())
}

fn outcomes(replayed: &Replayed) -> Vec<Outcome> {
    assert_eq!((replayed.in_flight, replayed.detached.as_slice()), (0, [].as_slice()));
    replayed.records.iter().map(|record| record.outcome).collect()
}

#[test]
fn response_is_timed_from_the_commit_and_counted_by_usage() {
    // The first token arrives 1 ms after the commit; the two others follow 1 ms apart.
    let wire = session().client(&of_client(APPEND)).client(&of_client(COMMIT));
    let wire = wire.server(&of_server(DELTA)).server(&of_server(DELTA)).server(&of_server(DELTA));
    let replayed = wire.server(&of_server(DONE)).close(CLIENT_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok, Outcome::Ok]);
    let [handshake, response] = replayed.records.as_slice() else { panic!("{replayed:?}") };
    assert_eq!((handshake.labels.route.operation(), handshake.response.status), ("other", Some(101)));
    assert_eq!((response.labels.route.operation(), response.sequence), ("realtime", 1));
    assert_eq!(response.labels.response_model.as_deref(), Some("voxtral"));
    assert_eq!(response.since_requested(response.times.first_token), Some(Duration::from_millis(1)));
    assert_eq!(response.times.last_token, Some(Duration::from_millis(3)));
    assert_eq!(response.times.headers, None, "a response on a WebSocket has no headers");
    assert_eq!(response.tokens.output.map(|n| (n.tokens, n.source)), Some((3, CountSource::Usage)));
    assert_eq!(response.tokens.input.map(|n| n.tokens), Some(38));
    assert_eq!((response.tokens.chunks, response.rate.exact), (3, Some(1000.0)));
    assert_eq!(replayed.live_tokens, 3);
}

#[test]
fn each_response_of_a_session_is_a_request_record() {
    let mut wire = session();
    for _ in 0..3 {
        wire = wire.client(&of_client(COMMIT)).client(&of_client(COMMIT)).server(&of_server(DELTA));
        wire = wire.server(&of_server(DONE)).client(&of_client(APPEND));
    }
    let replayed = wire.close(SERVER_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok; 4]);
    let sequences: Vec<u64> = replayed.records.iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, [0, 1, 2, 3]);
    assert!(replayed.records[1..].iter().all(|record| record.tokens.output.map(|n| n.tokens) == Some(3)));
}

#[test]
fn unrequested_response_has_no_wait() {
    let wire = session().client(&of_client(APPEND)).server(&of_server(DELTA)).server(&of_server(DONE));
    let replayed = wire.close(CLIENT_LEFT);
    let response = &replayed.records[1];
    assert_eq!((response.outcome, response.times.requested), (Outcome::Ok, None));
    assert_eq!(response.since_requested(response.times.first_token), None);
}

#[test]
fn outcome_of_a_truncated_response_follows_its_close() {
    let cut = |code: Option<u16>, of_server: bool, close| {
        let wire = session().client(&of_client(COMMIT)).server(&super::observed::of_server(DELTA));
        let wire = match code {
            Some(code) if of_server => wire.server(&close_frame(code)),
            Some(code) => wire.client(&frame(FIN | 8, Some([9; 4]), &code.to_be_bytes())),
            None => wire,
        };
        let replayed = wire.close(close);
        outcomes(&replayed)[1]
    };
    assert_eq!(cut(None, false, CLIENT_LEFT), Outcome::ClientAbortMidStream);
    assert_eq!(cut(None, false, SERVER_LEFT), Outcome::Truncated);
    assert_eq!(cut(None, false, Close::Reset(Side::Server)), Outcome::UpstreamReset);
    assert_eq!(cut(None, false, Close::Drained), Outcome::Drained);
    // The server responds to the client's close frame, and closes the connection first (RFC 6455, section 7.1.1).
    assert_eq!(cut(Some(1000), false, SERVER_LEFT), Outcome::ClientAbortMidStream);
    assert_eq!(cut(Some(1001), true, SERVER_LEFT), Outcome::Truncated);
    assert_eq!(cut(Some(1011), true, SERVER_LEFT), Outcome::ErrorInStream);
    assert_eq!(cut(Some(1011), true, CLIENT_LEFT), Outcome::ErrorInStream);
}

#[test]
fn error_in_a_response_is_its_outcome() {
    let replayed = session().client(&of_client(COMMIT)).server(&of_server(ERROR)).close(SERVER_LEFT);
    assert_eq!(outcomes(&replayed)[1], Outcome::ErrorInStream);
}

#[test]
fn session_without_a_response_records_only_the_handshake() {
    let replayed = session().client(&of_client(APPEND)).server(&close_frame(1000)).close(SERVER_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok]);
}

#[test]
fn client_leaving_before_the_first_token_is_an_early_abort() {
    let replayed = session().client(&of_client(COMMIT)).close(CLIENT_LEFT);
    assert_eq!(outcomes(&replayed)[1], Outcome::ClientAbortBeforeFirstToken);
}

#[test]
fn compressed_messages_are_parsed_like_plain_ones() {
    let (mut client, mut server) = (Deflater::new(true), Deflater::new(true));
    let mut wire = Wire::open().client(HANDSHAKE).server(DEFLATED);
    wire = wire.client(&frame(FIN | RSV1 | 1, Some([1, 2, 3, 4]), &client.message(COMMIT.as_bytes())));
    for message in [DELTA, DELTA, DELTA, DONE] {
        wire = wire.server(&frame(FIN | RSV1 | 1, None, &server.message(message.as_bytes())));
    }
    let replayed = wire.close(CLIENT_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok, Outcome::Ok]);
    assert_eq!(replayed.records[1].tokens.output.map(|n| (n.tokens, n.source)), Some((3, CountSource::Usage)));
    assert_eq!(
        replayed.records[1].since_requested(replayed.records[1].times.first_token),
        Some(Duration::from_millis(1))
    );
}

#[test]
fn corrupt_compressed_message_is_counted_as_unread() {
    let wire = Wire::open().client(HANDSHAKE).server(DEFLATED).client(&of_client(COMMIT)).server(&of_server(DELTA));
    let replayed = wire.server(&frame(FIN | RSV1 | 1, None, &[0xff; 9])).close(CLIENT_LEFT);
    assert_eq!(replayed.unread, [(Message::Response, Unread::Corrupt)]);
    let response = &replayed.records[1];
    assert_eq!((response.unread, response.tokens.output.map(|n| n.source.is_exact())), (true, Some(false)));
}

/// The first frames often arrive in the same read as the headers.
#[test]
fn frames_in_the_same_read_as_the_headers_are_parsed() {
    let first = [SWITCHED, &of_server(CREATED), &of_server(DELTA), &of_server(DONE)].concat();
    let replayed = Wire::open().client(HANDSHAKE).server(&first).close(CLIENT_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok, Outcome::Ok]);
    assert_eq!(replayed.records[1].tokens.chunks, 1);
}

/// Clients must not send frames before the server switches, but some do.
#[test]
fn frames_before_the_switch_request_a_response() {
    let early = [HANDSHAKE, &of_client(COMMIT)].concat();
    let wire = Wire::open().client(&early).server(SWITCHED).server(&of_server(DELTA)).server(&of_server(DONE));
    let replayed = wire.close(CLIENT_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok, Outcome::Ok]);
    assert!(replayed.records[1].times.requested.is_some());
}

#[test]
fn session_is_not_idle_between_responses() {
    let wire = session().client(&of_client(COMMIT)).server(&of_server(DELTA)).server(&of_server(DONE));
    assert!(!wire.observer.idle());
    assert_eq!(wire.close(CLIENT_LEFT).in_flight, 0);
}

#[test]
fn invalid_length_detaches_the_observer() {
    let replayed = session().client(&of_client(COMMIT)).server(b"\x81\x7f\xff\0\0\0\0\0\0\x01").close(CLIENT_LEFT);
    assert_eq!(replayed.detached, [Detach::MalformedFrame]);
    let outcomes: Vec<Outcome> = replayed.records.iter().map(|record| record.outcome).collect();
    assert_eq!((outcomes, replayed.in_flight), (vec![Outcome::Ok, Outcome::Unobserved], 0));
}

#[test]
fn websocket_on_another_path_is_one_request() {
    let handshake = String::from_utf8(HANDSHAKE.to_vec()).unwrap().replace("/v1/realtime", "/queue/join");
    let wire = Wire::open().client(handshake.as_bytes()).server(SWITCHED).client(&of_client(COMMIT));
    let wire = wire.server(&of_server(DELTA));
    assert!(!wire.observer.idle(), "a drain must not end a connection that is not known to be idle");
    let replayed = wire.close(CLIENT_LEFT);
    assert_eq!(outcomes(&replayed), [Outcome::Ok]);
}

#[test]
fn responses_over_a_websocket_are_requests_of_their_own() {
    let handshake = String::from_utf8_lossy(HANDSHAKE).replace("/v1/realtime", "/v1/responses");
    let create = of_client(r#"{"type":"response.create","model":"m","input":[],"store":false}"#);
    let created = of_server(
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress"}}"#,
    );
    let delta = of_server(r#"{"type":"response.output_text.delta","sequence_number":1,"delta":"a"}"#);
    let completed = of_server(
        r#"{"type":"response.completed","sequence_number":2,"response":{"id":"resp_1","model":"m","status":"completed","usage":{"input_tokens":7,"output_tokens":3}}}"#,
    );
    let failed = of_server(r#"{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"x"}}"#);
    let wire = Wire::open().client(handshake.as_bytes()).server(SWITCHED);
    // The second response is requested during the first.
    let wire = wire.client(&create).server(&created).server(&delta).client(&create).server(&delta).server(&completed);
    let wire = wire.server(&created).server(&delta).server(&completed);
    let replayed = wire.client(&create).server(&failed).client(&create).server(&created).close(CLIENT_LEFT);
    let (ok, error, left) = (Outcome::Ok, Outcome::ErrorInStream, Outcome::ClientAbortBeforeFirstToken);
    assert_eq!(outcomes(&replayed), [ok, ok, ok, error, left]);
    for (place, (chunks, wait)) in [(1, (2, 2)), (2, (1, 4))] {
        let record = &replayed.records[place];
        assert_eq!((record.labels.route.operation(), record.labels.streaming), ("chat", Some(true)), "{place}");
        assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((3, CountSource::Usage)), "{place}");
        assert_eq!((record.tokens.input.map(|n| n.tokens), record.tokens.chunks), (Some(7), chunks), "{place}");
        assert_eq!(record.since_requested(record.times.first_token), Some(Duration::from_millis(wait)), "{place}");
    }
    assert_eq!(replayed.records[3].response.error_type.as_deref(), Some("invalid_request_error"));
}

/// OpenAI rejects a client event with an `error`, and the open response continues.
#[test]
fn error_of_a_realtime_session_is_not_final() {
    const ASKED: &str = r#"{"type":"response.create"}"#;
    const PIECE: &str = r#"{"type":"response.output_text.delta","delta":"a"}"#;
    const BUSY: &str = r#"{"type":"error","error":{"type":"invalid_request_error","code":"conversation_already_has_active_response"}}"#;
    let end = |status: &str| format!(r#"{{"type":"response.done","response":{{"id":"resp_1","status":"{status}"}}}}"#);
    for (status, outcome) in [("completed", Outcome::Ok), ("failed", Outcome::ErrorInStream)] {
        let wire = session().client(&of_client(ASKED)).server(&of_server(PIECE)).server(&of_server(BUSY));
        let replayed = wire.server(&of_server(PIECE)).server(&of_server(&end(status))).close(CLIENT_LEFT);
        assert_eq!(outcomes(&replayed), [Outcome::Ok, outcome], "{status}");
        assert_eq!(replayed.records[1].tokens.chunks, 2, "{status}");
        assert_eq!(replayed.records[1].response.error_type.is_some(), outcome != Outcome::Ok, "{status}");
    }
}
