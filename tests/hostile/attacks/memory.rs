//! Memory attacks: requests that make tokometer allocate memory, and are held open.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use super::CHAT;
use crate::attack::{Attack, Hostile, Target, connect};
use crate::bombs::{encode, open_zstd};
use crate::wire;

/// zstd window sizes, as exponents of two: the largest supported one, and one that a body of 38 bytes fills.
const LARGEST: u8 = 23;
const FILLED: u8 = 20;

/// Run-length blocks that fill a window.
const BLOCKS: usize = 8;

/// Number of bodies that only declare a window: 240 MiB in total.
const DECLARED: usize = 30;

/// Number of bodies that are held open.
const HELD: usize = 174;

/// Streams that each connection opens, below the default of `observe.max_streams`.
const STREAMS: usize = 1_000;

/// Size of a body that is announced but never sent.
const ANNOUNCED: usize = 1 << 20;

/// Decoded size of a body with many JSON members: below the default of `rewrite.max_body`.
const MEMBERS: usize = 15 << 20;

/// Number of clients that do not read their response.
const READERS: usize = 200;

/// How long the attackers hold their connections open.
const STAY: Duration = Duration::from_secs(1);

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("zstd-declared", DECLARED, |target| async move {
            bodies(target, DECLARED, || open_zstd(LARGEST, 1)).await
        }),
        Attack::new(
            "zstd-held",
            HELD,
            |target| async move { bodies(target, HELD, || open_zstd(FILLED, BLOCKS)).await },
        ),
        Attack::new("zstd-held-h2", 1, zstd_streams),
        Attack::new("h2-open-streams", 80, |target| async move {
            target.on_all(80, |stream, _| open_streams(stream, STREAMS)).await
        }),
        Attack::new("h1-slow-readers", READERS, slow_readers),
        Attack::new("h1-json-members", 1, |target| members(target, None)),
        Attack::new("h1-json-members-gzip", 1, |target| members(target, Some("gzip"))),
        Attack::new(
            "h1-open-headers",
            200,
            |target| async move { target.on_all(200, |stream, _| headers(stream)).await },
        ),
    ]
}

/// One open body per connection.
async fn bodies(target: Target, count: usize, body: fn() -> Vec<u8>) -> crate::Outcome<()> {
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-encoding: zstd\r\ncontent-length: {ANNOUNCED}\r\n\r\n");
    target
        .on_all(count, |mut stream, _| {
            let request = [head.as_bytes(), &body()].concat();
            async move {
                stream.write(&request).await?;
                stream.hold();
                tokio::time::sleep(STAY).await;
                Ok(())
            }
        })
        .await
}

/// Open compressed bodies on the streams of one connection.
async fn zstd_streams(target: Target) -> crate::Outcome<()> {
    let mut stream = target.connect().await?;
    stream.write(&wire::opening(&[])).await?;
    let body = open_zstd(FILLED, BLOCKS);
    for at in 0..HELD {
        let block = wire::block(at, &[(":path", CHAT), ("content-encoding", "zstd")]);
        stream.write(&wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block)).await?;
        stream.write(&wire::frame(wire::DATA, 0, wire::stream(at), &body)).await?;
    }
    stream.hold();
    tokio::time::sleep(STAY).await;
    Ok(())
}

/// Opens requests without an end on one connection.
pub(super) async fn open_streams(mut stream: Hostile, count: usize) -> crate::Outcome<()> {
    let mut bytes = wire::opening(&[]);
    for at in 0..count {
        let block = wire::block(at, &[(":path", CHAT)]);
        bytes.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block));
    }
    stream.write(&bytes).await?;
    stream.hold();
    Ok(())
}

/// Clients that request large responses and read nothing.
async fn slow_readers(target: Target) -> crate::Outcome<()> {
    for _ in 0..READERS {
        let mut stream = connect(target.listen, Some(4096)).await?;
        stream.write_all(&wire::post(CHAT, &[("x-kind", "large")], b"{}")).await?;
        target.hold(stream);
    }
    tokio::time::sleep(STAY).await;
    Ok(())
}

/// A body with millions of JSON members, which a parser must not collect. Incompressible members keep the compression
/// ratio below the limit.
async fn members(target: Target, coding: Option<&'static str>) -> crate::Outcome<()> {
    let mut random = 1_u32;
    let mut body = b"{".to_vec();
    while body.len() < MEMBERS {
        body.extend(b"\"\":1,".repeat(130));
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend(format!("\"{random:x}\":{},", random % 10).as_bytes());
    }
    body.extend(b"\"stream\":true}");
    let (body, headers) = match coding {
        Some(coding) => (encode(coding, &body)?, vec![("content-encoding", coding)]),
        None => (body, Vec::new()),
    };
    let mut stream = target.connect().await?;
    stream.write(&wire::post(CHAT, &headers, &body)).await?;
    stream.hold();
    tokio::time::sleep(STAY).await;
    Ok(())
}

/// Unterminated request headers just below the maximum of 64 KiB.
async fn headers(mut stream: Hostile) -> crate::Outcome<()> {
    let bytes = format!("POST {CHAT} HTTP/1.1\r\nx: {}", "x".repeat(65_000));
    stream.write(bytes.as_bytes()).await?;
    stream.hold();
    Ok(())
}
