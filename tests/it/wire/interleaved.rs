//! Requests and responses that overlap: pipelining, early responses, reused connections.

use std::time::Instant;

use tokometer_wire::{Fault, Http1, Limits};

use crate::wire::traffic::{Trace, ask, read, reply};

const NO_CONTENT: &str = "HTTP/1.1 204 -\r\n\r\n";

#[test]
fn pipelined_requests_match_responses_in_order() {
    let outcome = read(&[
        ask("GET /1 HTTP/1.1\r\n\r\nHEAD /2 HTTP/1.1\r\n\r\nPOST /3 HTTP/1.1\r\nContent-Length: 2\r\n\r\nabGET /4 HT"),
        reply(
            "HTTP/1.1 200 1\r\nContent-Length: 1\r\n\r\nx\
             HTTP/1.1 200 2\r\nContent-Length: 1\r\n\r\n\
             HTTP/1.1 200 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nyz\r\n0\r\n\r\n",
        ),
    ]);
    assert_eq!(outcome.line(), r#"+ GET /1 . + HEAD /2 . + POST /3 "ab" . + 200 "x" ! 200 ! 200 "yz" !"#);
    assert_eq!((outcome.fault, outcome.open, outcome.request_open), (None, 1, true));
}

#[test]
fn connection_is_reused() {
    let whole = [ask("GET / HTTP/1.1\r\n\r\n"), reply("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")];
    let outcome = read(&[whole.clone(), whole.clone(), whole].concat());
    assert_eq!(outcome.line(), [r#"+ GET / . 200 "x" !"#; 3].join(" "));
    assert_eq!((outcome.fault, outcome.open), (None, 0));
}

#[test]
fn response_may_begin_while_the_body_is_being_sent() {
    let outcome = read(&[
        ask("POST /1 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 6\r\n\r\n"),
        reply("HTTP/1.1 100 Continue\r\n\r\n"),
        ask("ab"),
        reply("HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nno"),
        ask("cd"),
        reply("pe"),
        ask("efGET /2 HTTP/1.1\r\n\r\n"),
        reply(NO_CONTENT),
    ]);
    assert_eq!(outcome.line(), r#"+ POST /1 100 "ab" 413 "no" "cd" "pe" ! "ef" . + GET /2 . 204 !"#);
    assert_eq!((outcome.fault, outcome.open), (None, 0));
}

#[test]
fn response_may_end_before_the_request_headers() {
    let outcome = read(&[
        ask("POST /1 HTTP/1.1\r\nContent-Length: 2\r\n"),
        reply(NO_CONTENT),
        ask("\r\nabHEAD /2 HTTP/1.1\r\n\r\n"),
        reply("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"),
    ]);
    assert_eq!(outcome.line(), r#"+ 204 ! POST /1 "ab" . + HEAD /2 . 200 !"#);
    assert_eq!((outcome.fault, outcome.open, outcome.request_open), (None, 0, false));
}

#[test]
fn second_response_to_an_unfinished_request_is_unexpected() {
    let outcome =
        read(&[ask("POST /1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n"), reply([NO_CONTENT, NO_CONTENT].concat())]);
    assert_eq!(outcome.line(), "+ POST /1 204 ! * 204 !");
    assert_eq!((outcome.fault, outcome.request_open), (Some(Fault::UnexpectedResponse), false));
}

#[test]
fn request_truncated_by_the_client_stays_open() {
    let mut http1 = Http1::new(Limits::default());
    let mut trace = Trace::default();
    let at = Instant::now();
    http1.request(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", at, &mut trace).unwrap();
    assert!(http1.request_open());
    assert_eq!(http1.open(), 1);
    http1.response(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", at, &mut trace).unwrap();
    assert_eq!(http1.open(), 0);
}
