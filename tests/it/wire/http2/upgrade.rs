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
