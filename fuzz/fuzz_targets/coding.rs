//! Compressed bodies: a decoder returns the same bytes and the same fault at any split, and no more bytes than the
//! connection's budget allows. It restores exactly the input of a reference encoder.
//!
//! The first input byte selects the coding, the second the split. The rest is used twice: as a coded body, and, if an
//! encoder is available, as a plain body to encode.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use tokometer_wire::budget::Budget;
use tokometer_wire::websocket::Sender;
use tokometer_wire::coding::{Codings, Decoder, Limits, Unreadable};
use tokometer_fuzz::work::Work;

/// A limit that short inputs can exceed.
const LIMITS: Limits = Limits { window_bytes: 1 << 20 };

/// Decoded bytes that each received byte adds to the budget.
const RATIO: usize = 24;

/// Bytes that a connection may decode without credit, plus one slice: a cost is known only after decoding.
const INITIAL: usize = 72 * 1024;

fn decode<'a>(codings: Codings, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Unreadable>) {
    let account = Budget::new(8 << 20).account(None, RATIO as u64);
    let mut decoder = Decoder::new(codings, LIMITS, account.credit(Sender::Server));
    let mut given = Vec::new();
    let why = pieces.into_iter().find_map(|piece| {
        account.earn(Sender::Server, piece.len());
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

/// The body, encoded by a widely used library; `None` if there is no encoder.
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
        // The reads determine when a limit is reached, and when brotli's library detects a fault.
        let capped = why == Some(Unreadable::Ratio) || cut_why == Some(Unreadable::Ratio);
        let late = coding == 2 && (why.is_some() || cut_why.is_some());
        if !capped && !late {
            assert_eq!(cut_why, why, "split by {stride}");
        }
        // When a library detects a fault, it may withhold bytes that this read has decoded: brotli withholds all of
        // them; zstd withholds those of a raw block that exceeds the size of its frame.
        if capped || late || (coding >= 3 && why.is_some()) {
            assert!(whole.starts_with(&cut) || cut.starts_with(&whole), "split by {stride}");
        } else {
            assert!(cut == whole, "split by {stride}");
        }
    }

    if let Some(coded) = encoded(coding, body) {
        let (given, why) = decode(codings, coded.chunks(stride));
        assert!(why == Some(Unreadable::Ratio) || given == body, "decoding restores the encoder's input");
    }
});
