//! Streams that are wrong, or want to be expensive.

use proptest::prelude::*;
use tokometer::wire::coding::Limits;
use tokometer::wire::coding::Memory;
use tokometer::wire::coding::Unreadable;

use super::decode;
use super::decoder;
use super::encode::ENCODINGS;
use super::encode::encode;
use super::encode::encoded_parts;

const MIB: usize = 1 << 20;

/// What a body is shown to be before its ratio is judged, see `FREE_OUTPUT`.
const FREE: usize = MIB;

/// A stream of zeros without end, as a beginning and what may be repeated after it: 1 MiB each time.
fn zeros(name: &str) -> (Vec<u8>, Vec<u8>) {
    let mib = vec![0; MIB];
    match name {
        // Every frame and every member stands by itself.
        "zstd" | "gzip" => (Vec::new(), encode(name, &[&mib])),
        // Later flushes of the same zeros are the same bytes, once the window is full of them.
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
fn ten_gigabytes_of_zeros_are_left_after_the_first_ones() {
    for (name, coding) in ENCODINGS {
        let (beginning, repeated) = zeros(name);
        let limits = Limits::default();
        let mut decoder = decoder(coding, limits);
        let (mut taken, mut given) = (0, 0);
        let pieces = std::iter::once(&beginning).chain(std::iter::repeat_n(&repeated, 10 * 1024));
        let why = pieces.into_iter().find_map(|piece| {
            taken += piece.len();
            decoder.feed(piece, &mut |slice| given += slice.len()).err()
        });
        assert_eq!(why, Some(Unreadable::Ratio), "{name}");
        let most = FREE.max(taken * limits.ratio as usize);
        assert!(given <= most, "{name}: {given} bytes out of {taken}");
    }
}

#[test]
fn a_bomb_in_one_read_is_left_within_it() {
    for (name, coding) in [("br", "br"), ("zstd", "zstd")] {
        let body = encode(name, &[&vec![0; 64 * MIB]]);
        assert!(body.len() < 10_000, "{name}: {} bytes", body.len());
        let mut given = 0;
        let why = decoder(coding, Limits::default()).feed(&body, &mut |slice| given += slice.len());
        assert_eq!(why, Err(Unreadable::Ratio), "{name}");
        assert!(given <= FREE, "{name}: {given}");
    }
}

#[test]
fn a_bomb_in_a_bomb_is_one() {
    let inner = encode("gzip", &[&vec![0; 64 * MIB]]);
    let body = encode("gzip", &[&inner]);
    let mut given = 0;
    let why = decoder("gzip, gzip", Limits::default()).feed(&body, &mut |slice| given += slice.len());
    assert_eq!(why, Err(Unreadable::Ratio));
    assert!(given <= FREE.max(inner.len() * 100), "{given}");
}

#[test]
fn a_body_that_shrank_well_is_no_bomb() {
    for (name, coding) in ENCODINGS {
        let whole = vec![b' '; FREE];
        let (given, why) = decode(coding, [encode(name, &[&whole]).as_slice()]);
        assert_eq!((given.len(), why), (FREE, None), "{name}");
    }
}

#[test]
fn a_window_over_the_cap_is_refused_at_the_head_of_the_stream() {
    let limits = Limits { window_bytes: 128 * 1024, ..Limits::default() };
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
fn all_decoders_together_hold_no_more_than_they_may() {
    let limits = Limits { memory_bytes: 2 * 48 * 1024, ..Limits::default() };
    let codings = tokometer::wire::coding::Codings::of([b"gzip".as_slice()]).unwrap();
    let memory = Memory::default();
    let body = encode("gzip", &[b"x"]);
    let new = || tokometer::wire::coding::Decoder::new(codings, limits, memory.clone());
    let (mut one, mut two, mut three) = (new(), new(), new());
    assert_eq!(memory.held(), 0, "nothing is held before a body begins");
    assert_eq!(one.feed(&body, &mut |_| {}), Ok(()));
    assert_eq!(two.feed(&body, &mut |_| {}), Ok(()));
    assert_eq!(three.feed(&body, &mut |_| {}), Err(Unreadable::Memory));
    drop((one, three));
    assert_eq!(new().feed(&body, &mut |_| {}), Ok(()));
    drop(two);
    assert_eq!(memory.held(), 0);
}

/// A distance that reaches before the text's begin, in the step that gives what came before it (found by fuzzing).
#[test]
fn a_fault_behind_good_bytes_is_told_however_the_body_is_cut() {
    let body = [0x4a, 0x49, 0x2c, 0x3b, 0x49, 0xb4, 0x52];
    for size in 1..=body.len() {
        let (given, why) = decode("deflate", body.chunks(size));
        assert_eq!((given.as_slice(), why), (b"dav\xc9".as_slice(), Some(Unreadable::Corrupt)), "in pieces of {size}");
    }
}

/// A block that fills the decoder's slices to the last byte, and then a header that is none (found by fuzzing).
#[test]
fn a_block_is_given_whole_before_what_follows_it_fails() {
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
fn a_plain_body_under_the_name_of_a_coding_is_corrupt() {
    for (name, coding) in ENCODINGS {
        let (_, why) = decode(coding, [b"data: {\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n".as_slice()]);
        assert_eq!(why, Some(Unreadable::Corrupt), "{name}");
    }
}

/// zstd's library may be built with the formats that were before the standard; their memory has no cap.
#[test]
fn formats_from_before_the_standard_are_not_zstd() {
    for magic in [0x1eu8, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27] {
        let (_, why) = decode("zstd", [[magic, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0].as_slice()]);
        assert_eq!(why, Some(Unreadable::Corrupt), "{magic:x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_changed_byte_is_read_to_an_end(index in 0..ENCODINGS.len(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let (name, coding) = ENCODINGS[index];
        let event = b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n".as_slice();
        let mut body = encode(name, &[event, event, event, b"data: [DONE]\n\n"]);
        let at = at.index(body.len());
        body[at] = to;
        let (given, _) = decode(coding, body.chunks(5));
        prop_assert!(given.len() <= FREE + body.len() * 100);
    }

    #[test]
    fn random_bytes_are_read_to_an_end(index in 0..ENCODINGS.len(), body in prop::collection::vec(any::<u8>(), 0..600)) {
        let (_, coding) = ENCODINGS[index];
        let (given, _) = decode(coding, body.chunks(50));
        prop_assert!(given.len() <= FREE + body.len() * 100);
    }
}

/// A block of zstd is whole before the header of the next one is seen to be none (found by fuzzing).
#[test]
fn a_fault_after_a_block_keeps_the_block_however_it_is_cut() {
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
