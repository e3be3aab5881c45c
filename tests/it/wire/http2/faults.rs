//! Parser faults: bytes that are not HTTP/2, undecodable header blocks, and limits.

use tokometer_wire::{Fault, Limits};

use crate::wire::http2::frames::*;
use crate::wire::http2::trace::{feed_every_split, read};
use crate::wire::traffic::{ask, reply};

/// Checks that these client frames cause this fault.
fn asking(frames: &[Vec<u8>], fault: Fault) {
    let outcome = read(&[ask([opening(), frames.concat()].concat())]);
    assert_eq!(outcome.fault, Some(fault), "{frames:x?}");
}

/// Checks that these server bytes, in response to a GET, cause this fault.
fn response_started(bytes: &[u8], fault: Fault) {
    let outcome = read(&[ask([opening(), get(1)].concat()), reply(bytes)]);
    assert_eq!(outcome.fault, Some(fault), "{}", bytes.escape_ascii());
    assert_eq!((outcome.open, outcome.line().as_str()), (Some(0), "0:+ 0:GET /x 0:. 0:?"));
}

#[test]
fn each_side_must_begin_with_its_preface() {
    assert_eq!(read(&[ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rx")]).fault, Some(Fault::MalformedRequest));
    assert_eq!(read(&[ask([PREFACE, &get(1)].concat())]).fault, Some(Fault::MalformedRequest));
    response_started(&ok(1, 0), Fault::MalformedResponse);
}

#[test]
fn frames_without_a_stream_are_malformed() {
    for frames in [vec![data(0, 0, b"a")], vec![headers(0, 0, &[])], vec![frame(CONTINUATION, END_HEADERS, 1, b"")]] {
        asking(&frames, Fault::MalformedRequest);
    }
    response_started(&[settings(), frame(PUSH_PROMISE, END_HEADERS, 0, &[0; 4])].concat(), Fault::MalformedResponse);
}

#[test]
fn padding_and_fields_must_fit_their_frame() {
    for frames in [
        frame(DATA, PADDED, 1, b""),
        frame(DATA, PADDED, 1, b"\x01"),
        frame(HEADERS, PADDED | END_HEADERS, 1, b"\x03ab"),
        frame(HEADERS, WITH_PRIORITY | END_HEADERS, 1, &[0; 4]),
        frame(HEADERS, WITH_PRIORITY | PADDED | END_HEADERS, 1, &[0; 5]),
        frame(HEADERS, WITH_PRIORITY | PADDED | END_HEADERS, 1, &[1, 0, 0, 0, 0, 0]),
        frame(PUSH_PROMISE, END_HEADERS, 1, &[0; 3]),
    ] {
        asking(&[frames, get(1)], Fault::MalformedRequest);
    }
}

#[test]
fn no_frame_may_interrupt_a_header_block() {
    let begun = frame(HEADERS, 0, 1, &block(&[(":method", "GET")]));
    for next in [
        get(3),
        get(1),
        data(1, 0, b"a"),
        frame(PING, 0, 0, &[0; 8]),
        settings(),
        frame(0xfa, 0, 1, b""),
        frame(CONTINUATION, END_HEADERS, 3, b""),
        frame(PUSH_PROMISE, END_HEADERS, 1, &[0; 4]),
    ] {
        asking(&[begun.clone(), next], Fault::MalformedRequest);
    }
}

#[test]
fn undecodable_header_block_is_a_connection_fault() {
    asking(&[frame(HEADERS, END_HEADERS, 1, &[0xbe])], Fault::HeaderCompression);
    response_started(&[settings(), frame(HEADERS, END_HEADERS, 1, &[0x80])].concat(), Fault::HeaderCompression);
    response_started(
        &[settings(), frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe2, 0xff, 0x03])].concat(),
        Fault::HeaderTableTooLarge,
    );
}

#[test]
fn requests_over_the_cap_are_unobserved_and_others_continue() {
    let limits = Limits { head_bytes: 100 };
    let request = |stream, length| headers(stream, END_STREAM, &[(":method", "GET"), (":path", &"x".repeat(length))]);
    // Header size: 7 and 5 bytes of names, 3 of `GET`, and 85 of the path are 100.
    let fits = feed_every_split(limits, &[ask([opening(), request(1, 85)].concat())]);
    assert_eq!((fits.fault, fits.open), (None, Some(1)));
    for length in [86, 150] {
        let steps =
            [ask([opening(), request(1, length), get(3)].concat()), reply([settings(), ok(3, END_STREAM)].concat())];
        let over = feed_every_split(limits, &steps);
        assert_eq!((over.fault, over.line().as_str()), (None, "0:+ 0:GET  0:? 1:+ 1:GET /x 1:. 1:200 1:!"), "{length}");
    }
    // An encoded block larger than four times the limit is not buffered.
    let endless: Vec<u8> = (0..90).flat_map(|_| frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b")).collect();
    let endless = [opening(), frame(HEADERS, 0, 1, b""), endless].concat();
    assert_eq!(feed_every_split(limits, &[ask(endless)]).fault, Some(Fault::HeadTooLarge));
}

#[test]
fn responses_over_the_cap_are_unobserved() {
    let limits = Limits { head_bytes: 100 };
    let large = headers(1, 0, &[(":status", "200"), ("x", &"y".repeat(150))]);
    let steps = [
        ask([opening(), get(1), get(3)].concat()),
        reply([settings(), large, data(1, END_STREAM, b"a"), ok(3, END_STREAM)].concat()),
    ];
    let over = feed_every_split(limits, &steps);
    assert_eq!(over.line(), "0:+ 0:GET /x 0:. 1:+ 1:GET /x 1:. 0:? 1:200 1:!");
}

#[test]
fn excessive_header_expansion_is_a_connection_fault() {
    // The first block adds a field of 4,000 bytes to the table. Each further block has 16 references to the field, so
    // 16 bytes decode to 64 KB.
    let field = [&b"\x40\x01a\x7f\xa0\x1e"[..], &[b'x'; 3999]].concat();
    let first = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[&block(&[(":method", "GET")])[..], &field].concat());
    let others: Vec<u8> =
        (1..40).flat_map(|n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &[0xbe; 16])).collect();
    let outcome = crate::wire::http2::trace::feed(Limits::default(), &[ask([opening(), first, others].concat())]);
    assert_eq!(outcome.fault, Some(Fault::HeaderExpansion));
}
