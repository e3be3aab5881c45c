//! Decompression bombs: the smallest bodies that decode to a lot.

use std::io::Write as _;
use std::sync::OnceLock;

use crate::Outcome;

/// The codings that tokometer decodes, as `Content-Encoding` names them.
pub(crate) const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

/// Sizes that a bomb may decode to. The best one for a pair of codings depends on how well the inner result compresses.
const SIZES: [usize; 2] = [1 << 20, 4 << 20];

/// Assumed cost of a request beside its body, in bytes: HTTP/2 with a warm header table.
const FRAMING: usize = 40;

/// Decoded size of a dense body.
const DENSE: usize = 256 << 10;

/// One coded body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bomb {
    /// The value of `Content-Encoding`.
    pub(crate) encoding: String,
    pub(crate) body: Vec<u8>,
}

/// `data` in this coding; each coding is a complete stream.
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

/// Raw deflate without an end, as messages of permessage-deflate are sent.
pub(crate) fn message(data: &[u8]) -> Outcome<Vec<u8>> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(data)?;
    encoder.flush()?;
    let mut message = encoder.get_ref().clone();
    // A sender leaves the last four bytes of a flush out (RFC 7692, section 7.2.1).
    message.truncate(message.len().saturating_sub(4));
    Ok(message)
}

/// Every coding alone.
pub(crate) fn singles() -> Outcome<Vec<Bomb>> {
    CODINGS.iter().map(|coding| single(coding)).collect()
}

/// One coding alone: 1 MiB of spaces, which a JSON scanner has to read to the end.
pub(crate) fn single(coding: &str) -> Outcome<Bomb> {
    let text = texts().iter().find(|text| text.coding == coding).ok_or("unknown coding")?;
    Ok(Bomb { encoding: coding.to_owned(), body: text.coded.clone() })
}

/// Every ordered pair of codings.
pub(crate) fn pairs() -> Outcome<Vec<Bomb>> {
    CODINGS.iter().flat_map(|first| CODINGS.iter().map(|second| pair(first, second))).collect()
}

/// `first` is applied first, so decoded last.
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

/// Spaces in one coding.
#[derive(Debug)]
struct Text {
    coding: &'static str,
    size: usize,
    coded: Vec<u8>,
}

/// All sizes in all codings, the smallest first.
fn texts() -> &'static [Text] {
    static DONE: OnceLock<Vec<Text>> = OnceLock::new();
    DONE.get_or_init(|| {
        let of = |coding: &'static str, size| {
            let coded = encode(coding, &vec![b' '; size]).expect("every one of CODINGS is known");
            Text { coding, size, coded }
        };
        CODINGS.iter().flat_map(|coding| SIZES.map(|size| of(coding, size))).collect()
    })
}

/// A body of some MB that is `ratio` times as large decoded as coded, or a little less: nothing that a limit on the ratio finds.
pub(crate) fn dense(coding: &str, ratio: usize) -> Outcome<Bomb> {
    const NOISE: usize = 16;
    let mut random = fastrand::Rng::with_seed(7);
    let mut best = Vec::new();
    // A longer run of tokens after each piece of noise costs next to nothing.
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

/// A zstd frame that declares a window of `1 << window` bytes and holds `blocks` run-length blocks of 128 KiB, without the last
/// one: the decoder has to keep its window.
pub(crate) fn open_zstd(window: u8, blocks: usize) -> Vec<u8> {
    const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const RUN: u32 = (128 << 10) << 3 | 1 << 1;
    // Frame header descriptor: no content size, no checksum. Window descriptor: the exponent above ten.
    let mut body = [&MAGIC[..], &[0, (window - 10) << 3]].concat();
    for _ in 0..blocks {
        body.extend_from_slice(&RUN.to_le_bytes()[..3]);
        body.push(b' ');
    }
    body
}
