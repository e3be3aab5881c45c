//! The upstream's HTTP/2 server. It works at frame level and ignores most frames.
//!
//! Header fields that select a response are plain literals, so that no header table is needed to find them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use memchr::memmem::find;
use tokio::io::AsyncWriteExt as _;
use tokio::time::MissedTickBehavior;

use crate::upstream::{CADENCE, Client, Shared};
use crate::{attacks, bombs, texts, wire};

/// Response of a server without HTTP/2 to a preface.
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Largest window (RFC 9113, section 6.9.1).
const WINDOW: [u8; 4] = 0x7fff_ffff_u32.to_be_bytes();

/// The headers of a response, none of which enter the dynamic table.
fn response(kind: &str) -> Vec<u8> {
    [&[wire::STATUS_200][..], &wire::literal("content-type", kind)].concat()
}

pub(crate) async fn serve(mut client: Client, shared: Arc<Shared>) -> io::Result<()> {
    while client.buffer.len() < wire::PREFACE.len() + 9 + wire::UNSUPPORTED_SETTING.len() {
        client.more().await?;
    }
    if find(&client.buffer, &wire::UNSUPPORTED_SETTING).is_some_and(|at| at == wire::PREFACE.len() + 9) {
        return client.stream.write_all(BAD_REQUEST).await;
    }
    client.buffer.drain(..wire::PREFACE.len());
    // The largest window: for streams (SETTINGS_INITIAL_WINDOW_SIZE), and for the connection.
    let window = [&[0, 4][..], &WINDOW].concat();
    let more = (0x7fff_ffff_u32 - 65_535).to_be_bytes();
    let opening = [wire::frame(wire::SETTINGS, 0, 0, &window), wire::frame(wire::WINDOW_UPDATE, 0, 0, &more)].concat();
    client.stream.write_all(&opening).await?;
    // Steady streams, and the number of events sent on each.
    let mut steady: HashMap<u32, u64> = HashMap::new();
    let mut ticks = tokio::time::interval(CADENCE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut out = Vec::new();
        let used = frames(&client.buffer, &mut steady, &mut out);
        client.buffer.drain(..used);
        client.stream.write_all(&out).await?;
        tokio::select! {
            more = client.more() => more?,
            _ = ticks.tick(), if !steady.is_empty() => {
                let events = events(&mut steady, &shared);
                client.stream.write_all(&events).await?;
            }
        }
    }
}

/// Handles the complete frames in `bytes` and returns their total size.
fn frames(bytes: &[u8], steady: &mut HashMap<u32, u64>, out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some([a, b, c, kind, flags, w, x, y, z]) = bytes.get(at..at + 9) {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(payload) = bytes.get(at + 9..at + 9 + length) else { break };
        let stream = u32::from_be_bytes([*w, *x, *y, *z]);
        match *kind {
            wire::SETTINGS if flags & wire::ACK == 0 => out.extend(wire::frame(wire::SETTINGS, wire::ACK, 0, &[])),
            wire::PING if flags & wire::ACK == 0 => out.extend(wire::frame(wire::PING, wire::ACK, 0, payload)),
            wire::HEADERS if find(payload, b"bomb").is_some() => out.extend(attacks::hostile_response(stream)),
            wire::HEADERS if find(payload, b"steady").is_some() => {
                out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, stream, &response("text/event-stream")));
                steady.insert(stream, 0);
            }
            wire::HEADERS if find(payload, b"chat").is_some_and(|_| find(payload, b"x-kind").is_some()) => {
                out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, stream, &response("application/json")));
                let body = texts::whole("h2-chat", Some(10));
                out.extend(wire::frame(wire::DATA, wire::END_STREAM, stream, body.as_bytes()));
            }
            wire::HEADERS if find(payload, b"zipped").is_some() => {
                let head = [response("application/json"), wire::literal("content-encoding", "br")].concat();
                out.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, stream, &head));
                let body = bombs::encode("br", texts::whole("h2-zipped", Some(10)).as_bytes()).unwrap_or_default();
                out.extend(wire::frame(wire::DATA, wire::END_STREAM, stream, &body));
            }
            wire::RST_STREAM => drop(steady.remove(&stream)),
            _ => {}
        }
        at += 9 + length;
    }
    at
}

/// The next event of every steady stream, and its end if the streams are to finish.
fn events(steady: &mut HashMap<u32, u64>, shared: &Shared) -> Vec<u8> {
    let mut out = Vec::new();
    let finish = shared.finish.load(Relaxed);
    for (stream, number) in steady.iter_mut() {
        *number += 1;
        let event = texts::event("steady", &texts::stamp(*number, shared.started.elapsed()));
        out.extend(wire::frame(wire::DATA, 0, *stream, event.as_bytes()));
        if finish {
            let end = texts::end("steady", *number);
            out.extend(wire::frame(wire::DATA, wire::END_STREAM, *stream, end.as_bytes()));
        }
    }
    if finish {
        steady.clear();
    }
    out
}
