//! Bytes of both directions of a connection of HTTP/2: the parser tells the same however they are cut, within its caps.
//!
//! The input is frames in short: each begins with two bytes. The first tells the side (its highest bit), whether the read
//! ends behind the frame (the next), and the type (the rest, modulo 12); the second the flags. A third byte is the stream
//! and a fourth the length of the payload, which follows. The prefaces are put in front.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokometer_wire::Limits;
use tokometer_fuzz::work::Work;

use crate::wire::http2::frames::opening;
use crate::wire::http2::frames::settings;
use crate::wire::http2::trace::feed;
use crate::wire::traffic::Step;
use crate::wire::traffic::cut;

#[path = "../wire/mod.rs"]
mod wire;

/// The reads that the input tells.
fn reads(mut input: &[u8]) -> Vec<Step> {
    let mut steps = vec![Step::Request(opening()), Step::Response(settings())];
    let mut joins = false;
    while let [first, flags, stream, length, rest @ ..] = input {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        let frame = crate::wire::http2::frames::frame(first % 12, *flags, u32::from(*stream), payload);
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
    // Caps that an input of usual length reaches, and those that are the default.
    for limits in [Limits { head_bytes: 100 }, Limits::default()] {
        let outcome = feed(limits, &steps);
        assert_eq!(outcome, feed(limits, &cut(&steps, |_| true)), "bytewise reads");
        assert_eq!(outcome, feed(limits, &cut(&steps, |offset| offset % 7 == 3)), "short reads");
    }
});
