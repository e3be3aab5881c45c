//! Bytes of both directions of an HTTP/2 connection: the parser makes the same calls at any split, within its limits.
//!
//! The input is frames in short form: each begins with two bytes. The first contains the side (highest bit), whether
//! the read ends after the frame (next bit), and the type (the rest, modulo 12); the second contains the flags. A third
//! byte is the stream, and a fourth the length of the payload, which follows. The prefaces are prepended.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_wire::Limits;
use tokometer_fuzz::work::Work;

use tokometer_models::wire::http2::frames::{opening, settings};
use tokometer_models::wire::http2::trace::feed;
use tokometer_models::wire::traffic::{Step, cut};

/// The reads in the input.
fn reads(mut input: &[u8]) -> Vec<Step> {
    let mut steps = vec![Step::Request(opening()), Step::Response(settings())];
    let mut joins = false;
    while let [first, flags, stream, length, rest @ ..] = input {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        let frame = tokometer_models::wire::http2::frames::frame(first % 12, *flags, u32::from(*stream), payload);
        match (steps.last_mut(), first & 0x80 == 0) {
            (Some(Step::Request(read)), true) if joins => read.extend(frame),
            (Some(Step::Response(read)), false) if joins => read.extend(frame),
            (_, true) => steps.push(Step::Request(frame)),
            (_, false) => steps.push(Step::Response(frame)),
        }
        joins = first & 0x40 == 0;
    }
    steps
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let steps = reads(input);
    // Limits that inputs of usual length reach, and the default limits.
    for limits in [Limits { head_bytes: 100 }, Limits::default()] {
        let outcome = feed(limits, &steps);
        assert_eq!(outcome, feed(limits, &cut(&steps, |_| true)), "bytewise reads");
        assert_eq!(outcome, feed(limits, &cut(&steps, |offset| offset % 7 == 3)), "short reads");
    }
});
