//! Connections after a fault: requests are found again, or at least counted.

use std::time::{Duration, Instant};

use tokometer_wire::budget::Account;
use tokometer_wire::{Fault, Limits, Reader};

use crate::wire::http2::frames::{END_HEADERS, END_STREAM, HEADERS, data, frame, get, ok, opening, settings};
use crate::wire::http2::trace::Trace;
use crate::wire::traffic::{Step, ask, reply, same_at_splits};

const GET: &str = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
/// The calls for the next GET and its response, with the number of the request.
fn exchange(number: u64) -> String {
    format!("{number}:+ {number}:GET /x {number}:. {number}:200 {number}:\"a\" {number}:!")
}

/// The calls and faults for all steps, split at any place.
fn all(limits: Limits, steps: &[Step]) -> (String, Vec<Fault>) {
    same_at_splits(steps, |_, _| true, |steps| feed(limits, steps))
}

fn feed(limits: Limits, steps: &[Step]) -> (String, Vec<Fault>) {
    let (mut reader, mut trace, mut faults) = (Reader::new(limits), Trace::default(), Vec::new());
    let mut at = Instant::now();
    for step in steps {
        at += Duration::from_millis(1);
        let result = match step {
            Step::Request(bytes) => reader.request(bytes, at, &mut trace),
            Step::Response(bytes) => match reader.response(bytes, at, &mut trace) {
                Err(Fault::WebSocket(extensions)) => {
                    reader.follow_websocket(extensions, &Account::unlimited(), bytes, at, &mut trace)
                }
                result => result,
            },
            Step::ServerFin => Ok(()),
        };
        faults.extend(result.err());
    }
    let line = trace.reported.iter().map(|(number, reported)| format!("{number}:{reported}")).collect::<Vec<_>>();
    (line.join(" "), faults)
}

/// Asserts the calls and faults for these steps, followed by two ordinary requests.
fn resumes(steps: &[Step], calls: &str, faults: &[Fault], next: u64) {
    let after = [ask(GET), reply(OK), ask(GET), reply(OK)];
    let found = all(Limits::default(), &[steps, &after].concat());
    let expected = format!("{calls} {} {}", exchange(next), exchange(next + 1));
    assert_eq!(found, (expected.trim_start().to_owned(), faults.to_vec()), "{steps:?}");
}

#[test]
fn requests_with_one_meaning_are_parsed() {
    for head in [
        "GET /y HTTP/1.1\r\na: b\r\n folded\r\n\r\n",
        "GET /y HTTP/1.1\r\na: b\x01c\0\r\n\r\n",
        "GET /y HTTP/1.1\r\na: b\rc\r\n\r\n",
        "GET /y HTTP/1.1\r\nx(y: 1\r\nno colon\r\n: 1\r\n\r\n",
        "GET /y HTTP/1.1\r\nspace : a\r\n leading: a\r\n\r\n",
        "GET  /y  HTTP/1.1\r\n\r\n",
        "GET /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n0\r\n\r\n",
        "GET /y HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "GET /y HTTP/1.1\r\nTransfer-Encoding: \r\n chunked\r\n\r\n0\n\r\n",
        "GET /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
    ] {
        resumes(&[ask(head), reply(OK)], "0:+ 0:GET /y 0:. 0:200 0:\"a\" 0:!", &[], 1);
    }
    let body = "POST /y HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\nhi\n0\r\n\r\n";
    resumes(&[ask(body), reply(OK)], "0:+ 0:POST /y 0:\"hi\" 0:. 0:200 0:\"a\" 0:!", &[], 1);
}

#[test]
fn requests_after_an_unclear_end_are_counted_by_their_responses() {
    let unclear = "POST /y HTTP/1.1\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let first = "0:+ 0:POST /y 0:. 0:200 0:\"a\" 0:!";
    // A server may read the second request as a part of the first.
    resumes(&[ask([unclear, GET].concat()), reply(OK)], first, &[], 1);
    let found = format!("{first} 1:* 1:200 1:\"a\" 1:!");
    resumes(&[ask([unclear, GET].concat()), reply([OK, OK].concat())], &found, &[Fault::UnexpectedResponse], 2);
}

#[test]
fn request_is_found_after_the_response_to_a_malformed_one() {
    let malformed = "POST /y HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    let lost = "0:+ 0:POST /y 0:? 0:200 0:\"a\" 0:!";
    resumes(&[ask(malformed), reply(OK)], lost, &[Fault::MalformedRequest], 1);
    // The client sends the rest of a body after the response.
    let late = format!("{lost} 1:* 1:200 1:\"a\" 1:!");
    resumes(&[ask(malformed), reply(OK), ask("{} rest"), ask(GET), reply(OK)], &late, &[Fault::MalformedRequest], 2);
    // Not a request: no method.
    let unread = "0:* 0:200 0:\"a\" 0:!";
    let first = [ask(format!("\0{GET}")), reply(OK)];
    resumes(&first, unread, &[Fault::NotHttp], 1);
}

#[test]
fn body_that_a_server_ignores_hides_one_request_at_most() {
    let asked = "POST /y HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n";
    let hidden = format!("0:+ 0:POST /y 0:200 0:\"a\" 0:! 0:\"{}\" 1:* 1:200 1:\"a\" 1:!", GET.escape_default());
    let steps = [ask(asked), reply(OK), ask(GET), reply(OK)];
    resumes(&steps, &hidden, &[Fault::UnexpectedResponse], 2);
}

#[test]
fn response_is_found_after_the_next_request() {
    let lost = "0:+ 0:GET /x 0:. 0:?";
    for malformed in ["nonsense", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"] {
        let steps = [ask(GET), reply(malformed), reply(OK)];
        resumes(&steps, lost, &[Fault::MalformedResponse], 1);
    }
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc";
    resumes(&[ask(GET), reply(chunks)], "0:+ 0:GET /x 0:. 0:200 0:\"a\" 0:?", &[Fault::MalformedResponse], 1);
}

#[test]
fn second_fault_after_responses_were_found_again_is_reported() {
    let steps = [ask(GET), reply("nonsense"), ask(GET), reply([OK, "00}"].concat())];
    let found = format!("0:+ 0:GET /x 0:. 0:? {}", exchange(1));
    resumes(&steps, &found, &[Fault::MalformedResponse, Fault::MalformedResponse], 2);
}

#[test]
fn connection_of_another_protocol_has_no_requests() {
    let tls = |content: u8| vec![content, 3, 3, 0, 2, 1, 0];
    let steps = [ask(tls(22)), reply(tls(22)), ask(tls(23)), reply(tls(23)), ask(tls(23))];
    assert_eq!(all(Limits::default(), &steps), (String::new(), vec![Fault::Tls]));
}

/// A masked text frame of a client, with the mask 0.
fn frame_of_client(text: &str) -> Vec<u8> {
    [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0], text.as_bytes()].concat()
}

#[test]
fn frames_before_the_switch_are_parsed_after_it() {
    let shake = "GET /y HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let switch = "HTTP/1.1 101 -\r\nUpgrade: websocket\r\n\r\n";
    let mut texts = Texts::default();
    let mut reader = Reader::new(Limits { head_bytes: 100 });
    let at = Instant::now();
    reader.request(&[shake.as_bytes(), &frame_of_client("a"), &[0x81]].concat(), at, &mut texts).unwrap();
    let bytes = [switch.as_bytes(), &[0x81, 1, b'b']].concat();
    let Err(Fault::WebSocket(extensions)) = reader.response(&bytes, at, &mut texts) else { panic!("not switched") };
    reader.follow_websocket(extensions, &Account::unlimited(), &bytes, at, &mut texts).unwrap();
    reader.request(frame_of_client("c").get(1..).unwrap(), at, &mut texts).unwrap();
    assert_eq!(texts.0, "abc");
    // More frames than fit: only the server is parsed.
    let (mut texts, mut reader) = (Texts::default(), Reader::new(Limits { head_bytes: 100 }));
    let early = frame_of_client(&"a".repeat(100));
    assert_eq!(reader.request(&[shake.as_bytes(), &early].concat(), at, &mut texts), Err(Fault::HeadTooLarge));
    let Err(Fault::WebSocket(extensions)) = reader.response(&bytes, at, &mut texts) else { panic!("not switched") };
    reader.follow_websocket(extensions, &Account::unlimited(), &bytes, at, &mut texts).unwrap();
    reader.request(&frame_of_client("c"), at, &mut texts).unwrap();
    assert_eq!(texts.0, "b");
}

#[derive(Default)]
struct Texts(String);

impl tokometer_wire::Visitor for Texts {
    fn websocket(&mut self, _: u64, _: tokometer_wire::websocket::Sender, event: &Frame<'_>, _: Instant) {
        if let Frame::Data(text) = event {
            self.0.push_str(std::str::from_utf8(text).unwrap());
        }
    }
}

use tokometer_wire::websocket::Event as Frame;

#[test]
fn requests_after_a_refused_switch_are_parsed() {
    let shake = "GET /y HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let found = format!("0:+ 0:GET /y 0:. 0:200 0:\"a\" 0:! {}", exchange(1));
    resumes(&[ask([shake, GET].concat()), reply([OK, OK].concat())], &found, &[], 2);
}

#[test]
fn streams_after_a_fault_are_counted() {
    let undecodable = frame(HEADERS, END_HEADERS | END_STREAM, 5, &[0xbe]);
    let expected = "0:+ 0:GET /x 0:. 0:? 2:* 3:* 4:*";
    let ask_all = |bad: Vec<u8>| ask([opening(), get(1), bad, get(7), data(7, 0, b"a"), get(7), get(9)].concat());
    let counted = all(Limits::default(), &[ask_all(undecodable)]);
    assert_eq!(counted, (expected.to_owned(), vec![Fault::HeaderCompression]));
    // Padding beyond the frame.
    let counted = all(Limits::default(), &[ask_all(frame(HEADERS, END_HEADERS | 8, 5, &[9, 0x82]))]);
    assert_eq!(counted, (expected.to_owned(), vec![Fault::MalformedRequest]));
    // A header block that another stream interrupts.
    let counted = all(Limits::default(), &[ask_all(frame(HEADERS, 0, 5, &[0x82]))]);
    assert_eq!(counted, (expected.to_owned(), vec![Fault::MalformedRequest]));
    let steps = [ask([opening(), get(1)].concat()), reply([settings(), frame(HEADERS, 4, 1, &[0xbe])].concat())];
    let counted = all(Limits::default(), &[&steps[..], &[ask(get(3)), reply(ok(3, END_STREAM))]].concat());
    assert_eq!(counted, ("0:+ 0:GET /x 0:. 0:? 1:*".to_owned(), vec![Fault::HeaderCompression]));
}
