//! Compressed bodies: a decoder gives the same bytes and the same fault however a body is cut, no more of them than
//! the bytes of its connection have earned, and it gives back what a reference encoder was given.
//!
//! The input's first byte names the coding, its second how the rest is cut. The rest is a coded body as it came, and then,
//! where an encoder is at hand, a plain body to be encoded.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use tokometer_wire::budget::Budget;
use tokometer_wire::coding::Codings;
use tokometer_wire::coding::Decoder;
use tokometer_wire::coding::Limits;
use tokometer_wire::coding::Unreadable;
use tokometer_fuzz::work::Work;

/// One with a window that short inputs ask more of.
const LIMITS: Limits = Limits { window_bytes: 1 << 20 };

/// Decoded bytes that a byte earns.
const RATIO: usize = 24;

/// What a connection may decode at first, and a slice more: costs are known when they have arisen.
const INITIAL: usize = 40 * 1024;

fn decode<'a>(codings: Codings, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Unreadable>) {
    let account = Budget::new(8 << 20).account(None, RATIO as u64);
    let mut decoder = Decoder::new(codings, LIMITS, account.clone());
    let mut given = Vec::new();
    let why = pieces.into_iter().find_map(|piece| {
        account.earn(piece.len());
        let why = decoder.feed(piece, &mut |slice| {
            assert!(!slice.is_empty());
            given.extend_from_slice(slice);
        });
        why.err()
    });
    drop(decoder);
    assert_eq!(account.held(), 0);
    (given, why)
}

/// The same body, encoded by the library that is most used for it.
fn encoded(coding: u8, plain: &[u8]) -> Option<Vec<u8>> {
    let level = flate2::Compression::fast();
    match coding {
        0 => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(plain).ok()?;
            encoder.finish().ok()
        }
        1 => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(plain).ok()?;
            encoder.finish().ok()
        }
        3 => {
            let mut coded = vec![0; zstd_safe::compress_bound(plain.len())];
            let length = zstd_safe::compress(coded.as_mut_slice(), plain, 1).ok()?;
            coded.truncate(length);
            Some(coded)
        }
        _ => None,
    }
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let [coding, stride, body @ ..] = input else { return };
    let (coding, stride) = (coding % 5, usize::from(*stride).max(1));
    let name: &[u8] = [b"gzip".as_slice(), b"deflate", b"br", b"zstd", b"gzip, zstd"][usize::from(coding)];
    let codings = Codings::of([name]).expect("known codings");

    let (whole, why) = decode(codings, std::iter::once(body));
    assert!(whole.len() <= INITIAL + body.len() * RATIO);
    for stride in [1, stride] {
        let (cut, cut_why) = decode(codings, body.chunks(stride));
        // When a cap is met depends on the reads, and so does when brotli's library meets a fault.
        let capped = why == Some(Unreadable::Ratio) || cut_why == Some(Unreadable::Ratio);
        let late = coding == 2 && (why.is_some() || cut_why.is_some());
        if !capped && !late {
            assert_eq!(cut_why, why, "cut by {stride}");
        }
        // At a fault a library keeps back what it had: brotli's all of it, zstd's as much of a raw block as came in the read in which
        // it became more than the frame was to hold.
        if capped || late || (coding >= 3 && why.is_some()) {
            assert!(whole.starts_with(&cut) || cut.starts_with(&whole), "cut by {stride}");
        } else {
            assert!(cut == whole, "cut by {stride}");
        }
    }

    if let Some(coded) = encoded(coding, body) {
        let (given, why) = decode(codings, coded.chunks(stride));
        assert!(why == Some(Unreadable::Ratio) || given == body, "what was encoded comes out");
    }
});
