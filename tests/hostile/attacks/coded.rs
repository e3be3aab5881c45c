//! CPU attacks by decoding: bodies and messages that decode to many times their size.

use std::sync::{Arc, OnceLock};

use super::{CHAT, MANY, MB};
use crate::attack::{Attack, Flood};
use crate::bombs::Bomb;
use crate::upstream::FAST;
use crate::{Outcome, bombs, wire};

/// Streams or messages per write.
const BATCH: usize = 20;

/// Bytes that are enough for one client to block a thread for seconds if decoding is unbounded.
const BURST: usize = 128_000;

/// Bytes sent for a single pair of codings.
const PAIR: usize = 256_000;

/// Compression ratios that a ratio limit may allow.
const RATIOS: [usize; 2] = [25, 90];

/// `content-encoding` in HPACK's static table, as a literal without indexing (RFC 7541, section 6.2.2).
pub(super) const CONTENT_ENCODING: [u8; 2] = [0x0f, 26 - 15];

/// CANCEL (RFC 9113, section 7).
pub(super) const CANCEL: [u8; 4] = 8_u32.to_be_bytes();

/// A gRPC method whose messages tokometer parses.
const GENERATE: &str = "/vllm.Inference/GenerateStream";

/// First bytes of WebSocket frames: a compressed text, and its first and later fragments.
const TEXT: u8 = 0xc1;
const FIRST: u8 = 0x41;
const MIDDLE: u8 = 0x00;

/// The WebSocket handshake for the one route that is parsed.
pub(super) const HANDSHAKE: &[u8] =
    b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\
    sec-websocket-extensions: permessage-deflate\r\n\r\n";

pub(super) fn attacks() -> Outcome<Vec<Attack>> {
    let (singles, pairs) = (bombs::singles()?, bombs::pairs()?);
    let mut all = Vec::new();
    for connections in [1, MANY] {
        let bytes = MB / connections;
        for bomb in &singles {
            let one = Arc::new(vec![bomb.clone()]);
            all.push(Attack::flood(&format!("h2-{}", bomb.encoding), connections, http2(&one, bytes, false)));
            all.push(Attack::flood(&format!("h1-{}", bomb.encoding), connections, http1(&one, bytes)));
        }
        let pairs = Arc::new(pairs.clone());
        all.push(Attack::flood("h1-pairs", connections, http1(&pairs, bytes)));
        let br = Arc::new(vec![bombs::single("br")?]);
        all.push(Attack::flood("h2-br-refused", connections, http2(&br, bytes, true)));
        all.push(Attack::flood(
            "ws-bombs",
            connections,
            websocket(bytes, TEXT, &bombs::message(&vec![b' '; 1 << 20])?),
        ));
    }
    for bomb in &pairs {
        let name = format!("h2-{}", bomb.encoding.replace(", ", "+"));
        all.push(Attack::flood(&name, 1, http2(&Arc::new(vec![bomb.clone()]), PAIR, false)));
    }
    all.push(Attack::flood("h2-pairs", MANY, http2(&Arc::new(pairs), MB / MANY, false)));
    all.push(Attack::flood("h2-br-burst", 1, worst(BURST)?));
    for bomb in singles {
        all.push(Attack::flood(&format!("grpc-{}", bomb.encoding), 1, grpc(&bomb, MB)));
    }
    all.push(Attack::flood("grpc-gzip", MANY, grpc(&bombs::single("gzip")?, MB / MANY)));
    for coding in bombs::CODINGS {
        for ratio in RATIOS {
            all.push(Attack::flood(&format!("h1-{coding}-by-{ratio}"), 1, dense(coding, ratio)));
        }
    }
    all.push(Attack::flood("ws-messages", 1, websocket(MB, TEXT, &bombs::message(b"a")?)));
    all.push(Attack::flood("ws-empty-messages", 1, websocket(MB, TEXT, b"")));
    all.push(Attack::flood("ws-fragments", 1, websocket(MB, MIDDLE, b"\0")));
    Ok(all)
}

/// The flood with the highest cost per byte if decoding is unbounded.
pub(super) fn worst(bytes: usize) -> Outcome<Flood> {
    Ok(http2(&Arc::new(vec![bombs::single("br")?]), bytes, false))
}

/// Streams that each carry a tiny compressed body and are then reset.
fn http2(bombs: &Arc<Vec<Bomb>>, bytes: usize, refused: bool) -> Flood {
    let bombs = Arc::clone(bombs);
    let batch = move |connection: usize, number: usize| {
        let mut out = Vec::new();
        for at in number * BATCH..(number + 1) * BATCH {
            let bomb = &bombs[(connection + at) % bombs.len()];
            let mut block = wire::block(at, &[(":path", CHAT)]);
            block.extend(CONTENT_ENCODING);
            block.push(bomb.encoding.len() as u8);
            block.extend(bomb.encoding.as_bytes());
            let stream = wire::stream(at);
            out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, stream, &block));
            out.extend(wire::frame(wire::DATA, 0, stream, &bomb.body));
            out.extend(wire::frame(wire::RST_STREAM, 0, stream, &CANCEL));
        }
        out
    };
    let settings: &[u8] = if refused { &wire::UNSUPPORTED_SETTING } else { &[] };
    Flood { opening: wire::opening(settings), opened: b"", batch: Box::new(batch), response: 0, bytes, refused }
}

/// Requests on a persistent connection, pipelined in batches small enough that every request is observed.
fn http1(bombs: &Arc<Vec<Bomb>>, bytes: usize) -> Flood {
    let bombs = Arc::clone(bombs);
    let batch = move |connection: usize, number: usize| {
        let requests = (number * BATCH..(number + 1) * BATCH).map(|at| {
            let bomb = &bombs[(connection + at) % bombs.len()];
            wire::post(CHAT, &[("content-encoding", &bomb.encoding)], &bomb.body)
        });
        requests.flatten().collect()
    };
    let response = FAST.len() * BATCH;
    Flood { opening: Vec::new(), opened: b"", batch: Box::new(batch), response, bytes, refused: false }
}

/// Complete bodies with this compression ratio, one after another.
fn dense(coding: &'static str, ratio: usize) -> Flood {
    let request = OnceLock::new();
    let made = move || {
        let bomb = bombs::dense(coding, ratio).unwrap_or_default();
        wire::post(CHAT, &[("content-encoding", coding)], &bomb.body)
    };
    let batch = move |_, _| request.get_or_init(&made).clone();
    Flood { opening: Vec::new(), opened: b"", batch: Box::new(batch), response: FAST.len(), bytes: MB, refused: false }
}

/// gRPC calls with one compressed message each.
fn grpc(bomb: &Bomb, bytes: usize) -> Flood {
    let message = wire::grpc(&bomb.body);
    let encoding = bomb.encoding.clone();
    let batch = move |_, number: usize| {
        let fields = [(":path", GENERATE), ("content-type", "application/grpc"), ("grpc-encoding", encoding.as_str())];
        let mut out = Vec::new();
        for at in number * BATCH..(number + 1) * BATCH {
            let stream = wire::stream(at);
            out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, stream, &wire::block(at, &fields)));
            out.extend(wire::frame(wire::DATA, 0, stream, &message));
            out.extend(wire::frame(wire::RST_STREAM, 0, stream, &CANCEL));
        }
        out
    };
    Flood { opening: wire::opening(&[]), opened: b"", batch: Box::new(batch), response: 0, bytes, refused: false }
}

/// Frames on a WebSocket with compressed messages.
fn websocket(bytes: usize, first: u8, payload: &[u8]) -> Flood {
    let frames = wire::websocket(first, payload).repeat(BATCH);
    // Continuation fragments need a first one.
    let begun = if first == MIDDLE { wire::websocket(FIRST, b"\0") } else { Vec::new() };
    let batch = move |_, number: usize| if number == 0 { [&begun[..], &frames].concat() } else { frames.clone() };
    Flood {
        opening: HANDSHAKE.to_vec(),
        opened: b"\r\n\r\n",
        batch: Box::new(batch),
        response: 0,
        bytes,
        refused: false,
    }
}
