//! Encoders of common libraries, flushed after each part as servers do.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

/// Names of the encoders, each with its `Content-Encoding` value.
pub(crate) const ENCODINGS: [(&str, &str); 5] =
    [("gzip", "gzip"), ("zlib", "deflate"), ("raw deflate", "deflate"), ("br", "br"), ("zstd", "zstd")];

/// Encodes the parts as one body. Each part is flushed, so that it is decodable as soon as its bytes have arrived.
pub(crate) fn encode(name: &str, parts: &[&[u8]]) -> Vec<u8> {
    let ends = encoded_parts(name, parts);
    ends.concat()
}

/// The compressed bytes of each part, and in a last element the bytes that end the stream.
pub(crate) fn encoded_parts(name: &str, parts: &[&[u8]]) -> Vec<Vec<u8>> {
    fn flushed<W: Write>(mut encoder: W, parts: &[&[u8]], taken: impl Fn(&mut W) -> &mut Vec<u8>) -> (Vec<Vec<u8>>, W) {
        let mut pieces = Vec::new();
        for part in parts {
            encoder.write_all(part).unwrap();
            encoder.flush().unwrap();
            pieces.push(std::mem::take(taken(&mut encoder)));
        }
        (pieces, encoder)
    }
    let level = Compression::default();
    let (mut pieces, last) = match name {
        "gzip" => {
            let (pieces, encoder) = flushed(GzEncoder::new(Vec::new(), level), parts, GzEncoder::get_mut);
            (pieces, encoder.finish().unwrap())
        }
        "zlib" => {
            let (pieces, encoder) = flushed(ZlibEncoder::new(Vec::new(), level), parts, ZlibEncoder::get_mut);
            (pieces, encoder.finish().unwrap())
        }
        "raw deflate" => {
            let (pieces, encoder) = flushed(DeflateEncoder::new(Vec::new(), level), parts, DeflateEncoder::get_mut);
            (pieces, encoder.finish().unwrap())
        }
        "br" => {
            let new = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 20);
            let (pieces, encoder) = flushed(new, parts, brotli::CompressorWriter::get_mut);
            (pieces, encoder.into_inner())
        }
        "zstd" => {
            let new = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
            let (pieces, encoder) = flushed(new, parts, zstd::stream::write::Encoder::get_mut);
            (pieces, encoder.finish().unwrap())
        }
        name => panic!("unknown encoding {name}"),
    };
    pieces.push(last);
    pieces
}
