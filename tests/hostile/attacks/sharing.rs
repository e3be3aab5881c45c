//! Attacks on what clients share: the memory budget, and the decoding credit of a connection.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::CHAT;
use super::coded::{CANCEL, CONTENT_ENCODING, HANDSHAKE};
use super::metering::{chat, counted};
use crate::attack::{Attack, Target, connect_from};
use crate::bombs::{self, open_zstd};
use crate::options::REWRITES;
use crate::program::Launch;
use crate::{Outcome, wire};

/// A budget that hundreds of connections fill, and that has room for the decoders of the other streams.
const MEMORY: &str = "--set=observe.memory=16MiB";

/// The other clients, and the requests of each.
const CLIENTS: u8 = 5;
const CHATS: u64 = 20;
const TOKENS: u64 = 10;

/// Compressed responses on a shared connection.
const RESPONSES: usize = 20;

pub(super) fn attacks() -> Vec<Attack> {
    let one = |_| Ipv4Addr::new(127, 0, 0, 2);
    let many = |at: usize| Ipv4Addr::new(127, 1, (at / 200) as u8, (at % 200) as u8 + 1);
    let mut all = vec![
        starve("memory-h1-headers", 400, one, || headers(60_000)),
        starve("memory-zstd-many-addresses", 200, many, || {
            let head =
                format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-encoding: zstd\r\ncontent-length: 99999\r\n\r\n");
            [head.as_bytes(), &open_zstd(17, 1)].concat()
        }),
    ];
    // In rewrite mode, pingora needs more memory for these streams than the observer, and the server's responses are not
    // compressed.
    if !REWRITES.load(Relaxed) {
        all.push(starve("memory-h2-streams", 200, one, || streams(30)));
        all.push(starve("memory-h1-headers-many-addresses", 600, many, || headers(20_000)));
        all.push(starve("memory-websockets-many-addresses", 400, many, || HANDSHAKE.to_vec()));
        // These fill most of the budget: clients with complete requests get equal shares of it.
        let held = || wire::post(CHAT, &[("x-kind", "hold")], b"{}");
        all.push(starve("memory-h1-requests-many-addresses", 1200, many, held));
        all.push(starve("memory-h2-streams-many-addresses", 300, many, || streams(10)));
        all.push(Attack::new("shared-bombs", 1, |target| async move { shared_bombs(target, "br").await }));
        all.push(Attack::new("shared-bombs-gzip", 1, |target| async move { shared_bombs(target, "gzip").await }));
    }
    all
}

/// Connections from these addresses hold as much memory as they can, all at the same moment, and are then idle. The
/// requests of other clients must be counted all the same.
fn starve(name: &str, count: usize, source: fn(usize) -> Ipv4Addr, opening: fn() -> Vec<u8>) -> Attack {
    let attack = Attack::new(name, count, move |target| async move {
        let mut open = Vec::new();
        for at in 0..count {
            open.push(connect_from(target.listen, IpAddr::V4(source(at)), None).await?);
        }
        let opening = opening();
        for stream in &mut open {
            stream.write_all(&opening).await?;
        }
        if opening == HANDSHAKE {
            let message = wire::websocket(0xc1, &bombs::message(b"a")?);
            for stream in &mut open {
                stream.read_buf(&mut Vec::with_capacity(1024)).await?;
            }
            for stream in &mut open {
                stream.write_all(&message).await?;
            }
        }
        open.into_iter().for_each(|stream| target.hold(stream));
        chats(&target).await
    });
    Attack { launch: Launch { arguments: vec![MEMORY.to_owned()], ..Launch::default() }, ..attack }
}

/// An HTTP/2 connection with this many requests that do not end.
fn streams(count: usize) -> Vec<u8> {
    let mut bytes = wire::opening(&[]);
    for at in 0..count {
        let block = wire::block(at, &[(":path", CHAT)]);
        bytes.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block));
    }
    bytes
}

/// Unterminated headers.
fn headers(bytes: usize) -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\nx: {}", "x".repeat(bytes)).into_bytes()
}

/// Chats of other clients, all of which must be counted.
async fn chats(target: &Target) -> Outcome<()> {
    let request = chat("other-clients", Some(TOKENS), 200);
    for client in 0..CLIENTS {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 9, client + 1));
        // All connections are open at the same time.
        let mut open = Vec::new();
        for _ in 0..CHATS {
            open.push(connect_from(target.listen, source, None).await?);
        }
        for stream in &mut open {
            stream.write_all(&request).await?;
        }
        for stream in &mut open {
            let mut response = Vec::new();
            while memchr::memmem::find(&response, b"usage").is_none() {
                if stream.read_buf(&mut response).await? == 0 {
                    return Err("closed instead of a response".into());
                }
            }
        }
    }
    let expected = (u64::from(CLIENTS) * CHATS * TOKENS) as f64;
    counted(target, "tokens of other clients", expected, |metrics| metrics.output_tokens("other-clients")).await
}

/// A few kB of bombs on a connection that other clients share: their compressed responses must be counted.
async fn shared_bombs(target: Target, coding: &'static str) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let bomb = bombs::single(coding)?;
    let mut bytes = wire::opening(&[]);
    let mut at = 0;
    while bytes.len() < 6_000 || at < 10 {
        let mut block = wire::block(at, &[(":path", CHAT)]);
        block.extend(CONTENT_ENCODING);
        block.push(bomb.encoding.len() as u8);
        block.extend(bomb.encoding.as_bytes());
        bytes.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block));
        bytes.extend(wire::frame(wire::DATA, 0, wire::stream(at), &bomb.body));
        bytes.extend(wire::frame(wire::RST_STREAM, 0, wire::stream(at), &CANCEL));
        at += 1;
    }
    stream.write(&bytes).await?;
    for at in at..at + RESPONSES {
        let mut block = wire::block(at, &[(":path", CHAT)]);
        block.extend(wire::literal("x-kind", "zipped"));
        let flags = wire::END_HEADERS | wire::END_STREAM;
        stream.write(&wire::frame(wire::HEADERS, flags, wire::stream(at), &block)).await?;
    }
    let expected = RESPONSES as f64 * TOKENS as f64;
    let counted =
        counted(&target, "tokens of compressed responses", expected, |metrics| metrics.output_tokens("h2-zipped"));
    counted.await?;
    stream.hold();
    Ok(())
}
