//! Frames of one sender, parsed at every split.

use proptest::prelude::*;
use tokometer_wire::Fault;
use tokometer_wire::budget::Budget;
use tokometer_wire::coding::Unreadable;
use tokometer_wire::websocket::Sender;

use super::model::{Deflater, FIN, RSV1, frame, naive};
use super::{Reported, read, read_by, read_every_split};

const MASK: Option<[u8; 4]> = Some([0x37, 0xfa, 0x21, 0x3d]);
const DEFLATE: &str = "permessage-deflate";

fn data(text: &str) -> Reported {
    Reported::Data(text.as_bytes().to_vec())
}

const TEXT_END: Reported = Reported::End { text: true };

/// The examples are in RFC 6455, section 5.7.
#[test]
fn rfc_6455_examples_are_parsed() {
    let hello = [data("Hello"), TEXT_END];
    assert_eq!(read_every_split(Sender::Server, "", b"\x81\x05Hello"), hello);
    assert_eq!(read_every_split(Sender::Client, "", b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), hello);
    assert_eq!(read_every_split(Sender::Server, "", b"\x01\x03Hel\x80\x02lo"), hello);
    assert_eq!(read_every_split(Sender::Server, "", b"\x89\x05Hello\x8a\x05Hello"), []);
}

/// The examples are in RFC 7692, section 7.2.3.
#[test]
fn rfc_7692_examples_are_parsed() {
    let hello = [data("Hello"), TEXT_END];
    let one = b"\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00";
    assert_eq!(read_every_split(Sender::Server, DEFLATE, one), hello);
    assert_eq!(read_every_split(Sender::Server, DEFLATE, b"\x41\x03\xf2\x48\xcd\x80\x04\xc9\xc9\x07\x00"), hello);
    // The second message refers back to the first.
    let two = [one.as_slice(), b"\xc1\x05\xf2\x00\x11\x00\x00"].concat();
    assert_eq!(read_every_split(Sender::Server, DEFLATE, &two), [hello.clone(), hello.clone()].concat());
    // A stored block, and then a block that is marked as the last of its stream.
    assert_eq!(read_every_split(Sender::Server, DEFLATE, b"\xc1\x0b\x00\x05\x00\xfa\xffHello\x00"), hello);
    let last = b"\xc1\x08\xf3\x48\xcd\xc9\xc9\x07\x00\x00";
    assert_eq!(read_every_split(Sender::Server, DEFLATE, last), hello);
    assert_eq!(
        read_every_split(Sender::Server, DEFLATE, &[last.as_slice(), one].concat()),
        [hello.clone(), hello].concat()
    );
}

#[test]
fn payload_lengths_of_every_size_are_parsed() {
    for length in [0usize, 1, 125, 126, 127, 255, 256, 65_535, 65_536, 70_000] {
        let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
        for (sender, mask) in [(Sender::Server, None), (Sender::Client, MASK)] {
            let bytes = frame(FIN | 2, mask, &payload);
            let mut expected = vec![Reported::Data(payload.clone()), Reported::End { text: false }];
            if length == 0 {
                expected.remove(0);
            }
            for pieces in [bytes.len().max(1), 1, 4096] {
                assert_eq!(read(sender, "", bytes.chunks(pieces)), (expected.clone(), Ok(())), "{length}");
            }
        }
    }
}

#[test]
fn control_frames_may_occur_between_message_fragments() {
    let bytes = [
        frame(1, MASK, b"a"),
        frame(FIN | 9, MASK, b"ping"),
        frame(0, MASK, b""),
        frame(FIN | 10, MASK, b"pong"),
        frame(FIN, MASK, b"b"),
        frame(FIN | 8, MASK, &[0x03, 0xe8, b'b', b'y', b'e']),
    ];
    let reported = read_every_split(Sender::Client, "", &bytes.concat());
    assert_eq!(reported, [data("ab"), TEXT_END, Reported::Close(Some(1000))]);
    assert_eq!(read_every_split(Sender::Server, "", &frame(FIN | 8, None, b"")), [Reported::Close(None)]);
    assert_eq!(read_every_split(Sender::Server, "", &frame(FIN | 8, None, b"\x03")), [Reported::Close(None)]);
}

/// After violations that endpoints reject (Autobahn's test cases 3 to 5), the next frame must still be found.
#[test]
fn frames_rejected_by_endpoints_are_skipped() {
    let after = frame(FIN | 1, None, b"after");
    let expected = [data("after"), TEXT_END];
    for refused in [
        frame(FIN | 0x20 | 1, None, b"reserved bit"),
        frame(FIN | 0x10 | 1, None, b"reserved bit"),
        frame(FIN | RSV1 | 1, None, b"compressed, not negotiated"),
        frame(FIN | 3, None, b"reserved opcode"),
        frame(FIN | 11, None, b"reserved control opcode"),
        frame(9, None, b"fragmented ping"),
        frame(FIN | 9, None, &[0; 200]),
        frame(FIN, None, b"nothing to continue"),
        frame(0, None, b"nothing to continue"),
        frame(1, None, b""),
    ] {
        let reported = read_every_split(Sender::Server, "", &[refused.clone(), after.clone()].concat());
        assert_eq!(reported, expected, "{refused:?}");
    }
    // An unexpected mask is removed; a missing one is not needed.
    assert_eq!(read_every_split(Sender::Server, "", &frame(FIN | 1, MASK, b"after")), expected);
    assert_eq!(read_every_split(Sender::Client, "", &after), expected);
    // RSV1 on a continuation frame is also a violation.
    let bytes = [frame(RSV1 | 1, None, b"\xf2\x48\xcd"), frame(FIN | RSV1, None, b"\xc9\xc9\x07\x00"), after].concat();
    assert_eq!(read_every_split(Sender::Server, DEFLATE, &bytes).last(), Some(&TEXT_END));
}

#[test]
fn only_an_invalid_length_is_a_fault() {
    let bytes = b"\x81\x7f\x80\0\0\0\0\0\0\x01x";
    assert_eq!(read(Sender::Server, "", [bytes.as_slice()]), (vec![], Err(Fault::MalformedFrame)));
    assert_eq!(read(Sender::Server, "", bytes.chunks(1)), (vec![], Err(Fault::MalformedFrame)));
}

#[test]
fn corrupt_message_stops_only_compressed_messages() {
    let bytes = [
        frame(FIN | RSV1 | 1, None, &[0xff; 20]),
        frame(FIN | RSV1 | 1, None, b"\xf2\x48\xcd\xc9\xc9\x07\x00"),
        frame(FIN | 8, None, &[0x03, 0xe8]),
    ];
    let reported = read_every_split(Sender::Server, DEFLATE, &bytes.concat());
    assert_eq!(reported, [Reported::Unreadable(Unreadable::Corrupt), Reported::Close(Some(1000))]);
}

#[test]
fn decompression_bomb_in_a_message_is_abandoned() {
    let bomb = Deflater::new(true).message(&vec![0; 8 << 20]);
    let account = Budget::new(usize::MAX).account(None, 24);
    let (reported, result) =
        read_by(Sender::Client, DEFLATE, &account, [frame(FIN | RSV1 | 2, MASK, &bomb).as_slice()]);
    assert_eq!(result, Ok(()));
    assert_eq!(reported.last(), Some(&Reported::Unreadable(Unreadable::Ratio)));
    let Some(Reported::Data(data)) = reported.first() else { panic!("{reported:?}") };
    assert!(data.len() <= 72 * 1024, "{}", data.len());
}

#[test]
fn data_with_an_unknown_extension_is_not_reported() {
    let bytes = [frame(FIN | 1, None, b"whatever"), frame(FIN | 8, None, &[0x03, 0xe9])].concat();
    assert_eq!(read_every_split(Sender::Server, "x-encrypt", &bytes), [Reported::Close(Some(1001))]);
}

#[derive(Clone, Debug)]
struct Sent {
    text: bool,
    compressed: bool,
    data: Vec<u8>,
    /// Where the data is split into frames.
    cuts: Vec<prop::sample::Index>,
    /// A control frame that is sent after each of the frames.
    control: Option<(u8, Vec<u8>)>,
    mask: [u8; 4],
}

fn sent() -> impl Strategy<Value = Sent> {
    let word = prop_oneof![Just(b"{\"type\":\"response.delta\"}".to_vec()), prop::collection::vec(any::<u8>(), 0..30)];
    let data = prop::collection::vec(word, 0..30).prop_map(|words| words.concat());
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let control = prop::option::of((prop_oneof![Just(9u8), Just(10)], prop::collection::vec(any::<u8>(), 0..125)));
    (any::<bool>(), any::<bool>(), data, cuts, control, any::<[u8; 4]>())
        .prop_map(|(text, compressed, data, cuts, control, mask)| Sent { text, compressed, data, cuts, control, mask })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_frames_match_the_naive_model(
        messages in prop::collection::vec(sent(), 0..8),
        of_client in any::<bool>(),
        takeover in any::<bool>(),
        cuts in prop::collection::vec(1usize..300, 1..20),
    ) {
        let mut deflater = Deflater::new(takeover);
        let mut bytes = Vec::new();
        for sent in &messages {
            let mask = of_client.then_some(sent.mask);
            let payload = if sent.compressed { deflater.message(&sent.data) } else { sent.data.clone() };
            let mut places: Vec<usize> = sent.cuts.iter().map(|cut| cut.index(payload.len() + 1)).collect();
            places.sort_unstable();
            places.push(payload.len());
            let mut first = (if sent.text { 1 } else { 2 }) | if sent.compressed { RSV1 } else { 0 };
            let mut start = 0;
            for (index, place) in places.iter().enumerate() {
                let fin = if index + 1 == places.len() { FIN } else { 0 };
                bytes.extend(frame(first | fin, mask, &payload[start..*place]));
                if let Some((opcode, payload)) = &sent.control {
                    bytes.extend(frame(FIN | opcode, mask, payload));
                }
                (first, start) = (0, *place);
            }
        }
        let expected: Vec<Reported> = messages.iter().flat_map(|sent| {
            let data = (!sent.data.is_empty()).then(|| Reported::Data(sent.data.clone()));
            data.into_iter().chain([Reported::End { text: sent.text }])
        }).collect();
        prop_assert_eq!(&naive(&bytes, Some(takeover)), &expected);
        let sender = if of_client { Sender::Client } else { Sender::Server };
        let extensions = match (takeover, of_client) {
            (true, _) => DEFLATE.to_owned(),
            (false, true) => format!("{DEFLATE}; client_no_context_takeover"),
            (false, false) => format!("{DEFLATE}; server_no_context_takeover"),
        };
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        for length in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*length).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        prop_assert_eq!(read(sender, &extensions, pieces), (expected.clone(), Ok(())));
        prop_assert_eq!(read(sender, &extensions, bytes.chunks(1)), (expected, Ok(())));
    }

    #[test]
    fn any_bytes_are_parsed_the_same_at_any_split(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (whole, fault) = read(Sender::Server, "", [bytes.as_slice()]);
        prop_assert_eq!(read(Sender::Server, "", bytes.chunks(1)), (whole, fault));
    }
}
