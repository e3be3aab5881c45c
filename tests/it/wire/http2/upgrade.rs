//! The two ways to HTTP/2 on a connection that may use HTTP/1: prior knowledge, and `Upgrade: h2c`.

use tokometer_wire::Fault;
use tokometer_wire::websocket::Extensions;

use crate::wire::http2::frames::*;
use crate::wire::http2::trace::read;
use crate::wire::traffic::{ask, reply};

const ASKS: &str = "GET /x HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n";
const SWITCHES: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n";

#[test]
fn client_with_prior_knowledge_begins_with_the_preface() {
    let outcome = read(&[ask([opening(), get(1)].concat()), reply([settings(), ok(1, END_STREAM)].concat())]);
    assert_eq!((outcome.line().as_str(), outcome.fault), ("0:+ 0:GET /x 0:. 0:200 0:!", None));
}

#[test]
fn server_preface_may_precede_the_client_preface() {
    for seen in [0, 1, 5, 17, 20] {
        let asked = [opening(), get(1)].concat();
        let outcome = read(&[ask(&asked[..seen]), reply(settings()), ask(&asked[seen..]), reply(ok(1, END_STREAM))]);
        assert_eq!((outcome.line().as_str(), outcome.fault), ("0:+ 0:GET /x 0:. 0:200 0:!", None), "{seen}");
    }
    let outcome = read(&[reply(settings()), ask("GET / HTTP/1.1\r\n\r\n")]);
    assert_eq!((outcome.line().as_str(), outcome.fault), ("", Some(Fault::MalformedRequest)));
}

#[test]
fn server_that_responds_to_the_preface_in_http1_is_followed() {
    // The response of uvicorn, which does not support HTTP/2, to a preface.
    const REFUSES: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno";
    const ASKS: &str = "GET /x HTTP/1.1\r\nhost: a\r\n\r\n";
    const ANSWERS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    for (first, refused) in [
        (PREFACE.to_vec(), ""),
        (opening(), ""),
        ([opening(), get(1), get(3)].concat(), "0:+ 0:GET /x 0:. 1:+ 1:GET /x 1:. 0:? 1:? "),
    ] {
        let next = if refused.is_empty() { 1 } else { 2 };
        let answered = format!("{}:400 {0}:\"no\" {0}:! ", next - 1);
        let outcome = read(&[ask(&first), reply(REFUSES), ask(ASKS), reply(ANSWERS)]);
        let followed = format!("{refused}{answered}{next}:+ {next}:GET /x {next}:. {next}:200 {next}:!");
        assert_eq!((outcome.line(), outcome.open), (followed, None), "{}", first.escape_ascii());
        assert!(matches!(outcome.fault, Some(Fault::MalformedResponse | Fault::MalformedRequest)));
    }
}

#[test]
fn requests_after_a_part_of_the_preface_are_counted() {
    // h11 reads two requests, and responds to both.
    const ASKS: &str = "PRI * HTTP/2.0\r\n\r\nSEARCH /x HTTP/1.1\r\nhost: a\r\n\r\n";
    const ANSWERS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let outcome = read(&[ask(ASKS), reply([ANSWERS, ANSWERS].concat())]);
    let counted = "0:+ 0:? 0:200 0:! 1:* 1:200 1:!";
    let fault = Some(Fault::MalformedRequest);
    assert_eq!((outcome.line().as_str(), outcome.fault, outcome.open), (counted, fault, None));
}

#[test]
fn upgrade_response_is_on_stream_1() {
    let outcome = read(&[
        ask(ASKS),
        reply([SWITCHES.as_bytes(), &settings(), &ok(1, 0), &data(1, 0, b"a")].concat()),
        ask([opening(), get(3)].concat()),
        reply([data(1, END_STREAM, b"b"), ok(3, END_STREAM)].concat()),
    ]);
    let reported = r#"0:+ 0:GET /x 0:. 0:101 0:200 0:"a" 1:+ 1:GET /x 1:. 0:"b" 0:! 1:200 1:!"#;
    assert_eq!((outcome.line().as_str(), outcome.fault), (reported, None));
}

#[test]
fn upgrade_after_other_requests_continues_their_numbering() {
    let outcome = read(&[
        ask("GET /1 HTTP/1.1\r\nhost: a\r\n\r\n"),
        reply("HTTP/1.1 204 -\r\n\r\n"),
        ask(ASKS),
        reply([SWITCHES.as_bytes(), &settings(), &ok(1, END_STREAM)].concat()),
        ask([opening(), get(3)].concat()),
        reply(ok(3, END_STREAM)),
    ]);
    let reported = "0:+ 0:GET /1 0:. 0:204 0:! 1:+ 1:GET /x 1:. 1:101 1:200 1:! 2:+ 2:GET /x 2:. 2:200 2:!";
    assert_eq!((outcome.line().as_str(), outcome.fault), (reported, None));
}

#[test]
fn refused_upgrade_continues_as_http_1() {
    let outcome = read(&[ask(ASKS), reply("HTTP/1.1 204 -\r\n\r\n"), ask("GET /2 HTTP/1.1\r\nhost: a\r\n\r\n")]);
    assert_eq!((outcome.line().as_str(), outcome.open), ("0:+ 0:GET /x 0:. 0:204 0:! 1:+ 1:GET /2 1:.", None));
}

#[test]
fn ambiguous_upgrade_is_not_followed() {
    let posts = "POST /x HTTP/1.1\r\nupgrade: h2c\r\ncontent-length: 9\r\n\r\nhalf";
    assert_eq!(read(&[ask(posts), reply(SWITCHES)]).fault, Some(Fault::Upgraded));
    assert_eq!(read(&[ask(ASKS.repeat(2)), reply(SWITCHES)]).fault, Some(Fault::Upgraded));
    let websocket = SWITCHES.replace("upgrade: h2c", "upgrade: websocket");
    assert_eq!(read(&[ask(ASKS), reply(websocket)]).fault, Some(Fault::WebSocket(Extensions::default())));
}
