//! Valid streams, whole and split.

use proptest::prelude::*;
use tokometer_decode::{Framing, ResponseDecoder};

use super::encode::{ENCODINGS, encode, encoded_parts};
use super::{decode, decoded};
use crate::decode::recording::{Recording, recordings};

const ENGINES: [&str; 5] =
    ["vllm-0.32.0", "vllm-0.32.0-rustfe", "sglang-0.5.23", "llamacpp-0.5.0-dev", "ollama-0.17.4"];

fn all() -> impl Iterator<Item = Recording> {
    ENGINES.into_iter().flat_map(recordings)
}

/// The body in the pieces that a server would flush: the lines of an event stream, otherwise the whole body.
fn parts(recording: &Recording) -> Vec<&[u8]> {
    match recording.framing {
        Framing::Sse => recording.body.split_inclusive(|byte| *byte == b'\n').collect(),
        _ => vec![&recording.body],
    }
}

#[test]
fn every_recording_decodes_in_every_coding_at_any_split() {
    let mut random = fastrand::Rng::with_seed(11);
    for recording in all() {
        for (name, coding) in ENCODINGS {
            let body = encode(name, &parts(&recording));
            let why = || format!("{} in {name}", recording.name);
            assert_eq!(decoded(coding, [body.as_slice()]), recording.body, "{}", why());
            assert_eq!(decoded(coding, body.chunks(1)), recording.body, "{}, byte by byte", why());
            let most = random.usize(2..200);
            assert_eq!(decoded(coding, body.chunks(most)), recording.body, "{}, {most} bytes at a time", why());
        }
    }
}

/// Tests only short recordings, because each of them is decoded once per byte.
#[test]
fn body_decodes_the_same_for_every_split_in_two() {
    let mut streams = 0;
    for recording in all().filter(|recording| recording.body.len() < 3000) {
        for (name, coding) in ENCODINGS {
            let body = encode(name, &parts(&recording));
            for at in 0..=body.len() {
                let (before, after) = body.split_at(at);
                assert_eq!(
                    decoded(coding, [before, after]),
                    recording.body,
                    "{} in {name} split at {at}",
                    recording.name
                );
            }
        }
        streams += usize::from(recording.framing == Framing::Sse);
        if streams > 8 {
            break;
        }
    }
    assert!(streams > 3, "{streams} short streams");
}

/// Decoding adds no delay: an event is available as soon as the bytes of its flush have arrived, in every coding.
#[test]
fn event_is_available_after_the_flush_that_carries_it() {
    let recording = recordings("vllm-0.32.0").into_iter().find(|r| r.framing == Framing::Sse && r.body.len() > 1000);
    let recording = recording.unwrap();
    let events: Vec<&[u8]> = parts(&recording);
    for (name, coding) in ENCODINGS {
        let mut decoder = super::decoder(coding, Default::default());
        let mut given = Vec::new();
        let mut expected = 0;
        let pieces = encoded_parts(name, &events);
        for (piece, event) in pieces.iter().zip(&events) {
            decoder.feed(piece, &mut |slice| given.extend_from_slice(slice)).unwrap();
            expected += event.len();
            assert_eq!(given.len(), expected, "{name}");
        }
        assert_eq!(given, recording.body, "{name}");
    }
}

#[test]
fn compressed_body_yields_the_events_of_the_plain_body() {
    for recording in all() {
        let mut plain = Vec::new();
        let mut reader = ResponseDecoder::new(recording.route, recording.framing);
        reader.feed(&recording.body, &mut |event| plain.push(*event));
        reader.finish(&mut |event| plain.push(*event));
        for (name, coding) in ENCODINGS {
            let body = encode(name, &parts(&recording));
            let mut events = Vec::new();
            let mut reader = ResponseDecoder::new(recording.route, recording.framing);
            let mut decoder = super::decoder(coding, Default::default());
            for piece in body.chunks(61) {
                decoder.feed(piece, &mut |slice| reader.feed(slice, &mut |event| events.push(*event))).unwrap();
            }
            reader.finish(&mut |event| events.push(*event));
            assert_eq!(events, plain, "{} in {name}", recording.name);
        }
    }
}

#[test]
fn consecutive_gzip_members_and_zstd_frames_are_decoded() {
    for (name, coding) in [("gzip", "gzip"), ("zstd", "zstd")] {
        let body = [encode(name, &[b"one, "]), encode(name, &[b""]), encode(name, &[b"two, ", b"three"])].concat();
        assert_eq!(decoded(coding, [body.as_slice()]), b"one, two, three");
        assert_eq!(decoded(coding, body.chunks(1)), b"one, two, three");
    }
    let skippable = [b"\x5a\x2a\x4d\x18\x03\0\0\0abc".as_slice(), &encode("zstd", &[b"one"])].concat();
    assert_eq!(decoded("zstd", skippable.chunks(1)), b"one");
}

#[test]
fn bytes_after_the_end_are_ignored() {
    for (name, coding) in ENCODINGS {
        for garbage in
            [b"\0".as_slice(), b"\0\0\0\0", b"garbage \x1f\x8b", b"\x1f", b"\x1f\x00", b"\x28\xb5", b"\x28\xb5x"]
        {
            let body = [&encode(name, &[b"the body"]), garbage].concat();
            assert_eq!(decoded(coding, [body.as_slice()]), b"the body", "{name} and {garbage:?}");
            assert_eq!(decoded(coding, body.chunks(1)), b"the body", "{name} and {garbage:?}");
        }
    }
}

#[test]
fn optional_gzip_header_fields_are_skipped() {
    let plain = encode("gzip", &[b"the body"]);
    let (fixed, rest) = plain.split_at(10);
    for flags in 0..32u8 {
        let mut body = fixed.to_vec();
        body[3] = flags;
        if flags & 4 != 0 {
            body.extend(b"\x05\0extra");
        }
        for (flag, text) in [(8, b"a name\0".as_slice()), (16, b"a comment\0"), (2, b"cc")] {
            if flags & flag != 0 {
                body.extend(text);
            }
        }
        body.extend(rest);
        assert_eq!(decoded("gzip", [body.as_slice()]), b"the body", "flags {flags:05b}");
        assert_eq!(decoded("gzip", body.chunks(1)), b"the body", "flags {flags:05b}");
    }
    // An extra field may be empty or long.
    for length in [0u16, 1, 255, 256, 65_535] {
        let mut body = fixed.to_vec();
        body[3] = 4;
        body.extend(length.to_le_bytes());
        body.resize(body.len() + usize::from(length), 0x1f);
        body.extend(rest);
        assert_eq!(decoded("gzip", body.chunks(7)), b"the body", "{length}");
    }
}

#[test]
fn truncated_stream_yields_the_decoded_prefix() {
    let events: Vec<Vec<u8>> = (0..40).map(|n| format!("data: {{\"n\":{n}}}\n\n").into_bytes()).collect();
    let events: Vec<&[u8]> = events.iter().map(Vec::as_slice).collect();
    let whole = events.concat();
    for (name, coding) in ENCODINGS {
        let body = encode(name, &events);
        for end in 0..body.len() {
            let (given, why) = decode(coding, [&body[..end]]);
            assert_eq!(why, None, "{name} truncated at {end}");
            assert!(whole.starts_with(&given), "{name} truncated at {end}");
        }
    }
}

#[test]
fn identity_and_empty_bodies_need_no_decoding() {
    assert_eq!(decoded("identity", [b"as it is".as_slice()]), b"as it is");
    assert_eq!(decoded("gzip", [b"".as_slice(), b""]), b"");
}

fn text() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Repetitions, so that there are back references.
    let word = prop_oneof![Just(b"data: {\"choices\":[]}\n\n".to_vec()), prop::collection::vec(any::<u8>(), 0..40)];
    let part = prop::collection::vec(word, 0..200).prop_map(|words| words.concat());
    prop::collection::vec(part, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_body_decodes_from_one_or_two_codings_at_any_split(
        parts in text(),
        first in 0..ENCODINGS.len(),
        second in prop::option::of(0..ENCODINGS.len()),
        cuts in prop::collection::vec(1usize..3000, 1..20),
    ) {
        let whole = parts.concat();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let (name, coding) = ENCODINGS[first];
        let mut body = encode(name, &parts);
        let mut codings = coding.to_owned();
        if let Some((name, coding)) = second.map(|index| ENCODINGS[index]) {
            body = encode(name, &[&body]);
            codings = format!("{codings}, {coding}");
        }
        let mut pieces = Vec::new();
        let mut rest = body.as_slice();
        for length in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*length).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        prop_assert_eq!(decoded(&codings, pieces), whole);
    }
}
