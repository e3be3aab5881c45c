//! Invalid streams and decompression bombs.

use proptest::prelude::*;
use tokometer_wire::budget::{Account, Budget};
use tokometer_wire::coding::{Codings, Decoder, Limits, Unreadable};
use tokometer_wire::websocket::Sender;

use super::encode::{ENCODINGS, encode, encoded_parts};
use super::{decode, decoder};

const MIB: usize = 1 << 20;

/// Decoded bytes that one received byte allows, see `observe.coding_ratio`.
const RATIO: u64 = 24;

/// Bytes that a connection may decode without credit, plus one slice, because a slice is charged only after decoding.
const INITIAL: usize = 64 * 1024 + 8 * 1024;

/// A decoder for a separate connection, and the account of this connection.
fn metered(coding: &str, memory: usize) -> (Decoder, Account) {
    let account = Budget::new(memory).account(None, RATIO);
    let codings = Codings::of([coding.as_bytes()]).unwrap();
    (Decoder::new(codings, Limits::default(), account.credit(Sender::Server)), account)
}

/// An endless stream of zeros: its first bytes, and bytes to repeat, each repetition decoding to 1 MiB.
fn zeros(name: &str) -> (Vec<u8>, Vec<u8>) {
    let mib = vec![0; MIB];
    match name {
        // Each zstd frame or gzip member is independent of those before it, so it can be repeated.
        "zstd" | "gzip" => (Vec::new(), encode(name, &[&mib])),
        // Once the window is full of zeros, every further flush of zeros produces the same bytes.
        name => {
            let mut pieces = encoded_parts(name, &[&mib, &mib, &mib]);
            pieces.pop();
            let repeated = pieces.pop().unwrap();
            assert_eq!(pieces.pop().as_ref(), Some(&repeated), "{name}");
            (pieces.concat(), repeated)
        }
    }
}

#[test]
fn ten_gigabytes_of_zeros_stop_at_the_earned_credit() {
    for (name, coding) in ENCODINGS {
        let (beginning, repeated) = zeros(name);
        let (mut decoder, account) = metered(coding, usize::MAX);
        let (mut taken, mut given) = (0, 0);
        let pieces = std::iter::once(&beginning).chain(std::iter::repeat_n(&repeated, 10 * 1024));
        let why = pieces.into_iter().find_map(|piece| {
            taken += piece.len();
            account.earn(Sender::Server, piece.len());
            decoder.feed(piece, &mut |slice| given += slice.len()).err()
        });
        assert_eq!(why, Some(Unreadable::Ratio), "{name}");
        assert!(given <= INITIAL + taken * RATIO as usize, "{name}: {given} bytes out of {taken}");
    }
}

/// A connection that sends the smallest bombs one after the other, each as a separate body.
#[test]
fn many_bombs_on_one_connection_stay_within_earned_credit() {
    for (name, coding) in
        ENCODINGS.into_iter().chain([("gzip", "gzip, gzip"), ("br", "br, br"), ("zstd", "zstd, gzip")])
    {
        let mut body = vec![0; MIB];
        for coding in coding.split(", ") {
            body = encode(if coding == "deflate" { name } else { coding }, &[&body]);
        }
        let account = Budget::new(usize::MAX).account(None, RATIO);
        let (mut taken, mut given) = (0, 0);
        for _ in 0..1000 {
            let codings = Codings::of([coding.as_bytes()]).unwrap();
            let mut decoder = Decoder::new(codings, Limits::default(), account.credit(Sender::Server));
            account.earn(Sender::Server, body.len());
            taken += body.len();
            decoder.feed(&body, &mut |slice| given += slice.len()).ok();
        }
        assert!(given <= INITIAL + taken * RATIO as usize, "{coding}: {given} bytes out of {taken}");
    }
}

/// The limit per read holds regardless of the credit earned before.
#[test]
fn one_read_decodes_at_most_half_a_mebibyte() {
    for (name, coding) in ENCODINGS {
        let body = encode(name, &[&vec![0; 64 * MIB]]);
        let (mut decoder, account) = metered(coding, usize::MAX);
        account.earn(Sender::Server, 1 << 40);
        let mut given = 0;
        let why = decoder.feed(&body, &mut |slice| given += slice.len());
        assert_eq!(why, Err(Unreadable::Ratio), "{name}");
        assert!(given <= 512 * 1024 + INITIAL, "{name}: {given}");
    }
}

#[test]
fn brotli_bomb_holds_no_more_memory_than_it_decoded() {
    let body = encode("br", &[&vec![0; 64 * MIB]]);
    let (mut decoder, account) = metered("br", usize::MAX);
    assert_eq!(decoder.feed(&body, &mut |_| {}), Err(Unreadable::Ratio));
    assert!(account.held() <= 256 * 1024, "{} bytes", account.held());
}

#[test]
fn streams_flushed_per_event_earn_enough_credit() {
    let event = |n: usize| {
        let text =
            r#"{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795208785,"model":"m","#;
        format!("data: {text}\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" {}\"}}}}]}}\n\n", n * 7919 % 1000)
    };
    let events: Vec<String> = (0..20_000).map(event).collect();
    let parts: Vec<&[u8]> = events.iter().map(|event| event.as_bytes()).collect();
    for (name, coding) in ENCODINGS {
        let (mut decoder, account) = metered(coding, 64 * MIB);
        let mut given = 0;
        for part in encoded_parts(name, &parts) {
            account.earn(Sender::Server, part.len());
            assert_eq!(decoder.feed(&part, &mut |slice| given += slice.len()), Ok(()), "{name} after {given} bytes");
        }
        assert_eq!(given, events.concat().len(), "{name}");
    }
}

#[test]
fn short_body_is_decoded_at_any_compression_ratio() {
    for (name, coding) in ENCODINGS {
        let whole = vec![b' '; 16 * 1024];
        let body = encode(name, &[&whole]);
        let (mut decoder, _) = metered(coding, 64 * MIB);
        let mut given = 0;
        assert_eq!(decoder.feed(&body, &mut |slice| given += slice.len()), Ok(()), "{name}");
        assert_eq!(given, whole.len(), "{name}");
    }
}

#[test]
fn window_over_the_cap_is_refused_at_the_start_of_the_stream() {
    let limits = Limits { window_bytes: 128 * 1024 };
    let noise: Vec<u8> = {
        let mut random = fastrand::Rng::with_seed(3);
        std::iter::repeat_with(|| random.u8(..)).take(3 * MIB).collect()
    };
    for (name, coding) in [("br", "br"), ("zstd", "zstd")] {
        let body = encode(name, &[&noise]);
        let mut given = 0;
        let why = decoder(coding, limits).feed(&body, &mut |slice| given += slice.len());
        assert_eq!((why, given), (Err(Unreadable::Window), 0), "{name}");
        assert_eq!(decoder(coding, Limits::default()).feed(&body, &mut |slice| given += slice.len()), Ok(()));
        assert_eq!(given, noise.len(), "{name}");
    }
}

#[test]
fn decoders_stay_within_the_budget_and_leave_room_for_others() {
    let budget = Budget::new(4 * 48 * 1024);
    let (one, other) = (budget.account(None, RATIO), budget.account(None, RATIO));
    let codings = Codings::of([b"gzip".as_slice()]).unwrap();
    let body = encode("gzip", &[b"x"]);
    let new = |account: &Account| Decoder::new(codings, Limits::default(), account.credit(Sender::Server));
    let mut decoders: Vec<Decoder> = (0..3).map(|_| new(&one)).collect();
    assert_eq!(budget.held(), 0, "nothing is held before a body begins");
    let fed: Vec<_> = decoders.iter_mut().map(|decoder| decoder.feed(&body, &mut |_| {})).collect();
    assert_eq!(fed, [Ok(()), Ok(()), Err(Unreadable::Memory)], "half of the budget for one connection");
    assert_eq!(new(&other).feed(&body, &mut |_| {}), Ok(()));
    drop(decoders);
    assert_eq!(budget.held(), 0);
}

/// A frame that declares the maximum window and ends after its header.
#[test]
fn declared_but_unused_window_is_not_charged() {
    let budget = Budget::new(64 * MIB);
    let declared = [&[0x28, 0xb5, 0x2f, 0xfd, 0x00][..], &[(23 - 10) << 3], &[0x01]].concat();
    let codings = Codings::of([b"zstd".as_slice()]).unwrap();
    let decoders: Vec<Decoder> = (0..30)
        .map(|_| {
            let mut decoder = Decoder::new(codings, Limits::default(), budget.account(None, 0).credit(Sender::Server));
            assert_eq!(decoder.feed(&declared, &mut |_| {}), Ok(()));
            decoder
        })
        .collect();
    assert!(budget.held() <= 30 * 400 * 1024, "{} bytes", budget.held());
    drop(decoders);
}

/// Regression test (found by fuzzing): a back reference before the start of the text, in the same step as valid bytes.
#[test]
fn fault_after_valid_bytes_is_reported_at_any_split() {
    let body = [0x4a, 0x49, 0x2c, 0x3b, 0x49, 0xb4, 0x52];
    for size in 1..=body.len() {
        let (given, why) = decode("deflate", body.chunks(size));
        assert_eq!((given.as_slice(), why), (b"dav\xc9".as_slice(), Some(Unreadable::Corrupt)), "in pieces of {size}");
    }
}

/// Regression test (found by fuzzing): a block that fills the decoder's slices exactly, followed by an invalid header.
#[test]
fn block_is_complete_before_the_next_header_fails() {
    const BLOCK: u32 = 128 * 1024;
    let repeated = (BLOCK << 3 | 1 << 1).to_le_bytes();
    let body = [b"\x28\xb5\x2f\xfd\x00\x38", &repeated[..3], b"z", b"\xff\xff\xff", b"and more"].concat();
    for size in 1..=body.len() {
        let (given, why) = decode("zstd", body.chunks(size));
        assert_eq!((given.len(), why), (BLOCK as usize, Some(Unreadable::Corrupt)), "in pieces of {size}");
        assert!(given.iter().all(|byte| *byte == b'z'));
    }
}

#[test]
fn plain_body_labeled_with_a_coding_is_corrupt() {
    for (name, coding) in ENCODINGS {
        let (_, why) = decode(coding, [b"data: {\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n".as_slice()]);
        assert_eq!(why, Some(Unreadable::Corrupt), "{name}");
    }
}

/// The zstd library may be built with support for pre-standard formats, whose memory use has no limit.
#[test]
fn pre_standard_zstd_formats_are_rejected() {
    for magic in [0x1eu8, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27] {
        let (_, why) = decode("zstd", [[magic, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0].as_slice()]);
        assert_eq!(why, Some(Unreadable::Corrupt), "{magic:x}");
    }
}

/// The bytes that a separate connection decodes from these reads.
fn read_metered<'a>(coding: &str, reads: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut decoder, account) = metered(coding, usize::MAX);
    let mut given = Vec::new();
    for read in reads {
        account.earn(Sender::Server, read.len());
        if decoder.feed(read, &mut |slice| given.extend_from_slice(slice)).is_err() {
            break;
        }
    }
    given
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_byte_never_exceeds_the_credit(index in 0..ENCODINGS.len(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let (name, coding) = ENCODINGS[index];
        let event = b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".as_slice();
        let mut body = encode(name, &[event, event, event, b"data: [DONE]\n\n"]);
        let at = at.index(body.len());
        body[at] = to;
        let given = read_metered(coding, body.chunks(5));
        prop_assert!(given.len() <= INITIAL + body.len() * RATIO as usize);
    }

    #[test]
    fn random_bytes_never_exceed_the_credit(index in 0..ENCODINGS.len(), body in prop::collection::vec(any::<u8>(), 0..600)) {
        let (_, coding) = ENCODINGS[index];
        let given = read_metered(coding, body.chunks(50));
        prop_assert!(given.len() <= INITIAL + body.len() * RATIO as usize);
    }
}

/// Regression test (found by fuzzing): a zstd block is returned whole before the next header is found invalid.
#[test]
fn fault_after_a_block_keeps_the_block_at_any_split() {
    let frame = b"\x28\xb5\x2f\xfd\x10\x00";
    let (raw, no_block) = (b"\x20\x00\x00abcd", b"\xff\xff\xff");
    let body = [frame.as_slice(), raw, raw, no_block].concat();
    for stride in 1..=body.len() {
        assert_eq!(
            decode("zstd", body.chunks(stride)),
            (b"abcdabcd".to_vec(), Some(Unreadable::Corrupt)),
            "by {stride}"
        );
    }
}
