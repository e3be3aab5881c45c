//! CPU attacks by framing: the smallest messages, frames and chunks. Only headers are compressed.

use super::{CHAT, MANY, MB};
use crate::attack::{Attack, Flood};
use crate::upstream::FAST;
use crate::wire;

/// Requests or frames per write.
const BATCH: usize = 100;

pub(super) fn attacks() -> Vec<Attack> {
    let mut all = Vec::new();
    for connections in [1, MANY] {
        let bytes = MB / connections;
        all.push(Attack::flood("h2-resets", connections, resets(bytes)));
    }
    all.push(Attack::flood("h2-empty-frames", 1, empty_frames()));
    all.push(Attack::flood("h1-chunks", 1, chunks()));
    all.push(Attack::flood("h1-requests", 1, requests()));
    all
}

fn http2(bytes: usize, batch: impl Fn(usize, usize) -> Vec<u8> + Send + Sync + 'static) -> Flood {
    Flood { opening: wire::opening(&[]), opened: b"", batch: Box::new(batch), response: 0, bytes, refused: false }
}

/// Streams that are reset immediately.
fn resets(bytes: usize) -> Flood {
    http2(bytes, |_, number| {
        let mut out = Vec::new();
        for at in number * BATCH..(number + 1) * BATCH {
            let stream = wire::stream(at);
            out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, stream, &wire::block(at, &[(":path", CHAT)])));
            out.extend(wire::frame(wire::RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        out
    })
}

/// Small uncompressed requests with responses: the cost of forwarding and recording them.
fn requests() -> Flood {
    let batch = |_, _| wire::post(CHAT, &[], b"{}").repeat(BATCH);
    Flood {
        opening: Vec::new(),
        opened: b"",
        batch: Box::new(batch),
        response: FAST.len() * BATCH,
        bytes: MB,
        refused: false,
    }
}

/// Empty DATA frames.
fn empty_frames() -> Flood {
    http2(MB, |_, number| {
        let mut out = Vec::new();
        if number == 0 {
            out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, 1, &wire::block(0, &[(":path", CHAT)])));
        }
        out.extend(wire::frame(wire::DATA, 0, 1, &[]).repeat(BATCH));
        out
    })
}

/// A body of one-byte chunks.
fn chunks() -> Flood {
    let opening = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    let batch = |_, _| b"1\r\n \r\n".repeat(BATCH);
    Flood { opening: opening.into_bytes(), opened: b"", batch: Box::new(batch), response: 0, bytes: MB, refused: false }
}
