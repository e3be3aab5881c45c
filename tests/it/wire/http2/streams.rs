//! Messages parsed from the frames of streams.

use std::time::{Duration, Instant};

use tokometer_wire::{Http2, Limits};

use crate::wire::http2::frames::*;
use crate::wire::http2::trace::{Trace, read};
use crate::wire::traffic::{Reported, ask, reply};

/// The visitor calls for these client frames, followed by these server frames, in one line.
fn line(asked: &[Vec<u8>], response_complete: &[Vec<u8>]) -> String {
    let outcome =
        read(&[ask([opening(), asked.concat()].concat()), reply([settings(), response_complete.concat()].concat())]);
    assert_eq!(outcome.fault, None);
    outcome.line()
}

#[test]
fn request_and_response_are_reported_as_in_http_1() {
    let reported = line(
        &[post(1, 0), data(1, 0, b"bo"), data(1, END_STREAM, b"dy")],
        &[ok(1, 0), data(1, 0, b"data: 1\n\n"), data(1, END_STREAM, b"")],
    );
    assert_eq!(reported, r#"0:+ 0:POST /x 0:"body" 0:. 0:200 0:"data: 1\n\n" 0:!"#);
}

#[test]
fn streams_are_separated_and_numbered_in_order() {
    let reported = line(
        &[post(1, 0), get(3), data(1, END_STREAM, b"a"), get(9)],
        &[
            ok(9, 0),
            ok(1, 0),
            data(9, 0, b"x"),
            data(1, END_STREAM, b"y"),
            data(9, END_STREAM, b"z"),
            ok(3, END_STREAM),
        ],
    );
    assert_eq!(
        reported,
        r#"0:+ 0:POST /x 1:+ 1:GET /x 1:. 0:"a" 0:. 4:+ 4:GET /x 4:. "#.to_owned()
            + r#"4:200 0:200 4:"x" 0:"y" 0:! 4:"z" 4:! 1:200 1:!"#
    );
}

#[test]
fn headers_contain_method_target_status_and_fields() {
    let connect = headers(3, 0, &[(":method", "CONNECT"), (":authority", "a:443")]);
    let outcome = read(&[ask([opening(), get(1), connect].concat()), reply([settings(), ok(1, END_STREAM)].concat())]);
    let Reported::RequestHead { method, target, minor, fields } = &outcome.reported[1].1 else { panic!("{outcome:?}") };
    assert_eq!((method.as_str(), target.as_str(), *minor, fields.len()), ("GET", "/x", 0, 4));
    assert_eq!(fields[3], (":authority".to_owned(), b"a".to_vec()));
    let Reported::RequestHead { method, target, .. } = &outcome.reported[4].1 else { panic!("{outcome:?}") };
    assert_eq!((method.as_str(), target.as_str()), ("CONNECT", "a:443"));
    let Reported::ResponseHead { status, fields, .. } = &outcome.reported[5].1 else { panic!("{outcome:?}") };
    assert_eq!((*status, &fields[1]), (200, &("content-type".to_owned(), b"text/event-stream".to_vec())));
}

#[test]
fn interim_responses_and_trailers_are_reported_separately() {
    let reported = line(
        &[post(1, 0), data(1, 0, b"a"), headers(1, END_STREAM, &[("x-check", "1")])],
        &[
            headers(1, 0, &[(":status", "100")]),
            headers(1, 0, &[(":status", "103"), ("link", "</a>")]),
            ok(1, 0),
            data(1, 0, b"b"),
            headers(1, END_STREAM, &[("grpc-status", "0"), ("grpc-message", "")]),
        ],
    );
    assert_eq!(reported, r#"0:+ 0:POST /x 0:"a" 0:. 0:100 0:103 0:200 0:"b" 0:trailers(2) 0:!"#);
}

#[test]
fn response_may_consist_of_headers_only() {
    let reported = line(&[get(1)], &[headers(1, END_STREAM, &[(":status", "200"), ("grpc-status", "14")])]);
    assert_eq!(reported, "0:+ 0:GET /x 0:. 0:200 0:!");
}

#[test]
fn padding_and_priority_fields_are_not_content() {
    let block = block(&[(":method", "POST"), (":path", "/p")]);
    let priority = [&[0x80, 0, 0, 3, 255][..], &block].concat();
    let reported = line(
        &[
            padded(HEADERS, END_HEADERS | WITH_PRIORITY, 1, 7, &priority),
            padded(DATA, 0, 1, 255, b"body"),
            padded(DATA, 0, 1, 0, b"+"),
            padded(DATA, END_STREAM, 1, 3, b""),
            frame(HEADERS, END_HEADERS | END_STREAM | WITH_PRIORITY, 3, &priority),
        ],
        &[],
    );
    assert_eq!(reported, r#"0:+ 0:POST /p 0:"body+" 0:. 1:+ 1:POST /p 1:."#);
}

#[test]
fn header_block_may_span_many_frames() {
    let block = block(&[(":method", "GET"), (":path", "/many"), ("x", "y")]);
    let mut frames = vec![padded(HEADERS, END_STREAM, 1, 2, &block[..3]), frame(CONTINUATION, 0, 1, b"")];
    frames.extend(block[3..].chunks(4).map(|part| frame(CONTINUATION, 0, 1, part)));
    frames.push(frame(CONTINUATION, END_HEADERS, 1, b""));
    assert_eq!(line(&frames, &[]), "0:+ 0:GET /many 0:.");
}

#[test]
fn frames_without_effect_on_messages_are_skipped() {
    let between = [
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 15]),
        frame(PING, 0, 0, b"12345678"),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 1, 0]),
        frame(SETTINGS, 1, 0, b""),
        frame(0xfa, 0xff, 1, b"an extension's frame"),
    ]
    .concat();
    let reported = line(
        &[post(1, 0), between.clone(), data(1, END_STREAM, b"a"), between.clone()],
        &[between.clone(), ok(1, 0), between.clone(), data(1, END_STREAM, b"b"), between],
    );
    assert_eq!(reported, r#"0:+ 0:POST /x 0:"a" 0:. 0:200 0:"b" 0:!"#);
}

#[test]
fn push_promise_only_updates_the_table() {
    // PUSH_PROMISE adds `a: b` to the server's table; the response refers to it by index.
    let promise = [&[0, 0, 0, 2][..], b"\x40\x01a\x01b"].concat();
    let reported = line(
        &[get(1)],
        &[
            padded(PUSH_PROMISE, END_HEADERS, 1, 1, &promise),
            headers(2, 0, &[(":status", "200")]),
            data(2, END_STREAM, b"pushed"),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x88, 0xbe]),
        ],
    );
    assert_eq!(reported, "0:+ 0:GET /x 0:. 0:200 0:!");
}

#[test]
fn reset_ends_only_its_stream() {
    let reported = line(
        &[post(1, 0), post(3, 0), data(3, 0, b"a"), reset(1, 8), data(1, 0, b"late"), data(3, END_STREAM, b"b")],
        &[ok(1, END_STREAM), ok(3, 0), reset(3, 2), data(3, END_STREAM, b"late")],
    );
    assert_eq!(reported, r#"0:+ 0:POST /x 1:+ 1:POST /x 1:"a" 0:ByClient(8) 1:"b" 1:. 1:200 1:ByServer(2)"#);
}

#[test]
fn reset_after_the_end_is_ignored() {
    // A server that has sent its complete response may cancel the rest of the request with this reset (RFC 9113,
    // section 8.1).
    let reported = line(&[post(1, 0)], &[ok(1, END_STREAM), reset(1, 0)]);
    assert_eq!(reported, "0:+ 0:POST /x 0:200 0:!");
}

#[test]
fn streams_above_the_goaway_id_are_not_taken() {
    let reported =
        line(&[get(1), get(3), get(5)], &[go_away(0x7fff_ffff, 0), ok(1, 0), go_away(1, 0), data(1, 1, b"a")]);
    assert_eq!(
        reported,
        "0:+ 0:GET /x 0:. 1:+ 1:GET /x 1:. 2:+ 2:GET /x 2:. ".to_owned() + r#"0:200 1:NotTaken 2:NotTaken 0:"a" 0:!"#
    );
}

#[test]
fn violation_within_a_stream_leaves_others_readable() {
    let reported = line(
        &[
            headers(1, END_STREAM, &[(":path", "/no-method")]),
            data(7, 0, b"a stream that was never opened"),
            headers(4, 0, &[(":method", "GET")]),
            get(3),
            get(3),
            get(1),
        ],
        &[reset(1, 1), headers(3, 0, &[(":status", "abc")]), ok(3, END_STREAM), ok(99, 0)],
    );
    assert_eq!(reported, "0:+ 0:. 1:+ 1:GET /x 1:. 0:ByServer(1) 1:trailers(2) 1:!");
}

#[test]
fn request_begins_with_the_first_byte_of_its_frame() {
    let mut http2 = Http2::new(Limits::default());
    let mut trace = Trace::default();
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    http2.request(&opening(), at(0), &mut trace).unwrap();
    let block = block(&[(":method", "POST"), (":path", "/x")]);
    let (first, second) = block.split_at(5);
    let frames = [frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, second)].concat();
    http2.request(&frames[..4], at(1), &mut trace).unwrap();
    http2.request(&frames[4..20], at(2), &mut trace).unwrap();
    assert!(trace.reported.is_empty());
    http2.request(&frames[20..], at(3), &mut trace).unwrap();
    http2.request(&data(1, END_STREAM, b"a"), at(4), &mut trace).unwrap();
    http2.response(&settings(), at(5), &mut trace).unwrap();
    let reply = [ok(1, 0), data(1, END_STREAM, b"bc")].concat();
    let end = reply.len() - 1;
    http2.response(&reply[..end], at(6), &mut trace).unwrap();
    assert_eq!(http2.open(), 1);
    http2.response(&reply[end..], at(7), &mut trace).unwrap();
    assert_eq!(http2.open(), 0);
    assert_eq!(trace.times, [1, 3, 4, 4, 6, 6, 7, 7].map(at));
}
