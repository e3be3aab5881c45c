//! Generated traffic on many streams: the parser compared with the naive model, and with itself at other splits.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tokometer_wire::Limits;

use crate::wire::http2::frames::*;
use crate::wire::http2::model;
use crate::wire::http2::trace::{feed, feed_random_splits};
use crate::wire::traffic::{ask, reply};

/// The frames of a stream, still without stream id. All frames of a header block are one item.
type Frames = Vec<Vec<u8>>;

/// Sets the stream id of these frames.
fn of_stream(stream: u32, frames: &[u8]) -> Vec<u8> {
    let mut frames = frames.to_vec();
    let mut start = 0;
    while start < frames.len() {
        frames[start + 5..start + 9].copy_from_slice(&stream.to_be_bytes());
        let length = frames[start..start + 3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        start += 9 + length;
    }
    frames
}

/// The layout of a header block.
#[derive(Clone, Debug)]
struct Layout {
    padding: Option<u8>,
    priority: bool,
    /// Where the block is split into CONTINUATION frames.
    cuts: Vec<Index>,
}

fn layout() -> impl Strategy<Value = Layout> {
    let padding = prop_oneof![2 => Just(None), 1 => any::<u8>().prop_map(Some)];
    (padding, any::<bool>(), vec(any::<Index>(), 0..3)).prop_map(|(padding, priority, cuts)| Layout {
        padding,
        priority,
        cuts,
    })
}

/// A header block as frames.
fn laid_out(flags: u8, fields: &[(&str, &str)], layout: &Layout) -> Vec<u8> {
    let block = block(fields);
    let mut cuts: Vec<usize> = layout.cuts.iter().map(|cut| cut.index(block.len() + 1)).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([block.len()]);
    let mut start = 0;
    let parts: Vec<&[u8]> = ends.map(|end| &block[std::mem::replace(&mut start, end)..end]).collect();
    let (first, rest) = parts.split_first().unwrap();
    let mut flags = flags | if rest.is_empty() { END_HEADERS } else { 0 };
    let mut payload = first.to_vec();
    if layout.priority {
        flags |= WITH_PRIORITY;
        payload = [&[0, 0, 0, 0, 16], *first].concat();
    }
    let mut bytes = match layout.padding {
        Some(padding) => padded(HEADERS, flags, 0, padding, &payload),
        None => frame(HEADERS, flags, 0, &payload),
    };
    for (index, part) in rest.iter().enumerate() {
        bytes.extend(frame(CONTINUATION, if index + 1 == rest.len() { END_HEADERS } else { 0 }, 0, part));
    }
    bytes
}

fn body() -> impl Strategy<Value = Vec<(Vec<u8>, Option<u8>)>> {
    vec((vec(any::<u8>(), 0..30), prop_oneof![3 => Just(None), 1 => any::<u8>().prop_map(Some)]), 0..5)
}

fn push_body(frames: &mut Frames, body: Vec<(Vec<u8>, Option<u8>)>, ends: bool) {
    let count = body.len();
    for (index, (bytes, padding)) in body.into_iter().enumerate() {
        let flags = if ends && index + 1 == count { END_STREAM } else { 0 };
        frames.push(match padding {
            Some(padding) => padded(DATA, flags, 0, padding, &bytes),
            None => data(0, flags, &bytes),
        });
    }
}

fn request() -> impl Strategy<Value = Frames> {
    let end = prop_oneof![5 => Just(0), 1 => Just(1u8), 1 => Just(2)];
    (layout(), "/[a-z]{0,100}", body(), end).prop_map(|(layout, path, body, end)| {
        let mut frames: Frames = Vec::new();
        let alone = body.is_empty() && end == 0;
        let flags = if alone { END_STREAM } else { 0 };
        frames.push(laid_out(flags, &[(":method", "POST"), (":path", &path), ("te", "trailers")], &layout));
        push_body(&mut frames, body, end == 0);
        match end {
            1 => frames.push(laid_out(END_STREAM, &[("x-end", "1")], &layout)),
            2 => frames.push(reset(0, 8)),
            _ => {}
        }
        frames
    })
}

fn response() -> impl Strategy<Value = Frames> {
    (layout(), 0..3usize, prop::sample::select(&["200", "404", "503"][..]), body(), 0..4u8).prop_map(
        |(layout, interims, status, body, end)| {
            let mut frames: Frames = Vec::new();
            for _ in 0..interims {
                frames.push(headers(0, 0, &[(":status", "103")]));
            }
            let flags = if body.is_empty() && end == 0 { END_STREAM } else { 0 };
            frames.push(laid_out(flags, &[(":status", status), ("server", "x")], &layout));
            push_body(&mut frames, body, end == 0);
            match end {
                1 => frames.push(laid_out(END_STREAM, &[("grpc-status", "0"), ("grpc-message", "")], &layout)),
                2 => frames.push(reset(0, 2)),
                // The end of the stream is never sent.
                _ => {}
            }
            frames
        },
    )
}

/// Frames that do not affect messages.
fn between() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => Just(Vec::new()),
        1 => Just(frame(PING, 0, 0, &[1; 8])),
        1 => Just(frame(WINDOW_UPDATE, 0, 3, &[0, 0, 1, 0])),
        1 => Just(frame(SETTINGS, 1, 0, &[])),
        1 => vec(any::<u8>(), 0..40).prop_map(|payload| frame(0xbe, 0xff, 5, &payload)),
    ]
}

/// The frames of all streams, interleaved in the order that `turns` determines. With `in_order`, streams begin in id
/// order.
fn mixed(streams: &[Frames], turns: &[(Index, Vec<u8>)], in_order: bool) -> Vec<u8> {
    let mut next = vec![0; streams.len()];
    let mut bytes = Vec::new();
    let mut turns = turns.iter().cycle();
    loop {
        let may: Vec<usize> = (0..streams.len())
            .filter(|stream| next[*stream] < streams[*stream].len())
            .filter(|stream| !in_order || next[..*stream].iter().all(|frames| *frames > 0))
            .collect();
        if may.is_empty() {
            return bytes;
        }
        let (turn, between) = turns.next().unwrap();
        let stream = may[turn.index(may.len())];
        bytes.extend(between);
        bytes.extend(of_stream(2 * stream as u32 + 1, &streams[stream][next[stream]]));
        next[stream] += 1;
    }
}

proptest! {
    #[test]
    fn mixed_streams_match_the_model(
        traffic in vec((request(), response()), 0..6),
        turns in vec((any::<Index>(), between()), 1..40),
        last in prop_oneof![3 => Just(None), 1 => (0..7u32).prop_map(Some)],
    ) {
        let (requests, responses): (Vec<Frames>, Vec<Frames>) = traffic.into_iter().unzip();
        let asked = [opening(), mixed(&requests, &turns, true)].concat();
        let goodbye = last.map(|last| go_away(2 * last + 1, 0)).unwrap_or_default();
        let response_complete = [settings(), mixed(&responses, &turns, false), goodbye].concat();
        let steps = [ask(&asked), reply(&response_complete)];
        let outcome = feed(Limits::default(), &steps);
        prop_assert_eq!(outcome.fault, None);
        prop_assert_eq!(&outcome.reported, &model::reported(&asked, &response_complete));
        feed_random_splits(Limits::default(), &steps, &outcome);
    }

    #[test]
    fn damaged_traffic_is_parsed_the_same_at_every_split(
        traffic in vec((request(), response()), 1..4),
        turns in vec((any::<Index>(), between()), 1..20),
        damage in vec((any::<bool>(), any::<Index>(), any::<u8>()), 0..4),
        keep in (0.0..1.5f64, 0.0..1.5f64),
    ) {
        let (requests, responses): (Vec<Frames>, Vec<Frames>) = traffic.into_iter().unzip();
        let mut asked = [opening(), mixed(&requests, &turns, true)].concat();
        let mut response_complete = [settings(), mixed(&responses, &turns, false)].concat();
        for (of_client, place, byte) in damage {
            let bytes = if of_client { &mut asked } else { &mut response_complete };
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        asked.truncate((asked.len() as f64 * keep.0) as usize);
        response_complete.truncate((response_complete.len() as f64 * keep.1) as usize);
        let steps = [ask(&asked), reply(&response_complete)];
        let limits = Limits { head_bytes: 200 };
        feed_random_splits(limits, &steps, &feed(limits, &steps));
    }
}
