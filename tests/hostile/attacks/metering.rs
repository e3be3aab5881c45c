//! Metering: requests that are to go uncounted, and counts that are to be wrong.

use std::time::Duration;

use super::CHAT;
use super::memory::open_streams;
use crate::Outcome;
use crate::attack::Attack;
use crate::attack::Hostile;
use crate::attack::Target;
use crate::program::Metrics;
use crate::upstream::FAST;
use crate::wire;

/// Probes that are pipelined, over the default of `observe.pipeline_depth`.
const PROBES: usize = 70;

/// Chats after them, and the tokens of each.
const CHATS: usize = 20;
const TOKENS: u64 = 10;

/// Requests of others on a shared connection of HTTP/2.
const SHARED: usize = 10;

/// Streams beside them, over the default of `observe.max_streams`.
const STREAMS: usize = 1_100;

/// A header block over the default of `observe.head_bytes`.
const BLOCK: usize = 100_000;

/// Model names over the cap of names.
const NAMES: usize = 200;

/// How long a record may take to be counted.
const COUNTED: Duration = Duration::from_secs(3);

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("pipelined-probes", 1, pipelined_probes),
        Attack::new("pipelined-chats", 1, pipelined_chats),
        Attack::new("h2-many-streams", 1, many_streams),
        Attack::new("h2-oversized-headers", 1, oversized_headers),
        Attack::new("junk-models", 1, junk_models),
        Attack::new("largest-usage", 1, largest_usage),
    ]
}

/// A chat that the upstream answers with this model and so many tokens.
fn chat(model: &str, tokens: Option<u64>, status: u16) -> Vec<u8> {
    let tokens = tokens.map(|tokens| tokens.to_string()).unwrap_or_default();
    let fields = [("x-kind", "chat"), ("x-model", model), ("x-tokens", &tokens), ("x-status", &status.to_string())];
    wire::post(CHAT, &fields, format!("{{\"model\":\"{model}\"}}").as_bytes())
}

/// Waits until the metrics are as they should be, and notes it when they never are.
async fn counted(target: &Target, what: &str, expected: f64, read: impl Fn(&Metrics) -> f64) -> Outcome<()> {
    let begun = std::time::Instant::now();
    loop {
        let metrics = Metrics::read(target.admin).await?;
        let value = read(&metrics);
        if value == expected {
            return Ok(());
        }
        if begun.elapsed() > COUNTED {
            target.expect(false, || format!("{what}: {value}, not {expected}"));
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Chats one after the other on this connection, and the check that all are counted.
async fn chats(target: &Target, stream: &mut Hostile, model: &str) -> Outcome<()> {
    for _ in 0..CHATS {
        stream.request(&chat(model, Some(TOKENS), 200)).await?;
    }
    let expected = (CHATS as u64 * TOKENS) as f64;
    counted(target, &format!("tokens of {CHATS} chats"), expected, |metrics| metrics.output_tokens(model)).await
}

/// More probes at once than are observed, and chats on the same connection.
async fn pipelined_probes(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let hold = b"GET /health HTTP/1.1\r\nhost: x\r\nx-kind: hold\r\n\r\n";
    let probes = [&hold[..], &b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(PROBES - 1)].concat();
    stream.ask(&probes, FAST.len() * PROBES).await?;
    chats(&target, &mut stream, "after-probes").await
}

/// More chats at once than are observed: those are recorded as requests, and later ones as always.
async fn pipelined_chats(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let hold = wire::post(CHAT, &[("x-kind", "hold")], b"{}");
    let more = wire::post(CHAT, &[], b"{}").repeat(PROBES - 1);
    stream.ask(&[hold, more].concat(), FAST.len() * PROBES).await?;
    target.sent_requests(PROBES + CHATS);
    chats(&target, &mut stream, "after-chats").await
}

/// Opens requests whose responses go on for as long as the attack does.
async fn share(target: &Target) -> Outcome<Hostile> {
    let mut stream = target.connect().await?;
    let mut bytes = wire::opening(&[]);
    for at in 0..SHARED {
        let mut block = wire::block(at, &[(":path", CHAT)]);
        block.extend(wire::literal("x-kind", "steady"));
        let flags = wire::END_HEADERS | wire::END_STREAM;
        bytes.extend(wire::frame(wire::HEADERS, flags, wire::stream(at), &block));
    }
    stream.ask_until(&bytes, b"\"content\":\"3 ").await?;
    target.sent_requests(SHARED);
    Ok(stream)
}

/// More streams than are observed, on a connection that others use too.
async fn many_streams(target: Target) -> Outcome<()> {
    let mut stream = share(&target).await?;
    let mut bytes = Vec::new();
    for at in SHARED..SHARED + STREAMS {
        let block = wire::block(at, &[(":path", CHAT)]);
        bytes.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block));
    }
    stream.write(&bytes).await?;
    target.sent_requests(STREAMS);
    stream.hold();
    // A connection of its own, with as many as are observed.
    open_streams(target.connect().await?, 1_000).await?;
    target.sent_requests(1_000);
    Ok(())
}

/// A header block that is too large, on a connection that others use too.
async fn oversized_headers(target: Target) -> Outcome<()> {
    let mut stream = share(&target).await?;
    let mut block = wire::block(1, &[(":path", CHAT)]);
    block.extend((0..BLOCK / 1_000).flat_map(|_| wire::literal("x", &"x".repeat(1_000))));
    let frames: Vec<&[u8]> = block.chunks(16_000).collect();
    for (at, part) in frames.iter().enumerate() {
        let kind = if at == 0 { wire::HEADERS } else { wire::CONTINUATION };
        let flags = if at + 1 == frames.len() { wire::END_HEADERS } else { 0 };
        stream.write(&wire::frame(kind, flags, wire::stream(SHARED), part)).await?;
    }
    target.sent_requests(1);
    stream.hold();
    Ok(())
}

/// Names from responses that carry no tokens, and then a real model.
async fn junk_models(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    for at in 0..NAMES {
        let (tokens, status) = if at % 2 == 0 { (None, 200) } else { (Some(TOKENS), 404) };
        stream.request(&chat(&format!("junk-{at}"), tokens, status)).await?;
    }
    chats(&target, &mut stream, "real-model").await?;
    // Objectives have a cap of their own on models.
    let judged = |metrics: &Metrics| {
        metrics.sum("tokometer_slo_events_total", &["slo=\"availability\"", "model=\"real-model\""]).unwrap_or(0.0)
    };
    counted(&target, "chats of a real model that its objective counts", CHATS as f64, judged).await
}

/// A usage of 2^64 - 1 before usual ones: the counter never goes back.
async fn largest_usage(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let mut before = 0.0;
    for (at, tokens) in [5, u64::MAX, 5, u64::MAX, 5].into_iter().enumerate() {
        stream.request(&chat("large", Some(tokens), 200)).await?;
        let requests = (at + 1) as f64;
        let label = ["gen_ai_response_model=\"large\""];
        counted(&target, "requests with a large usage", requests, |metrics| metrics.requests(&label)).await?;
        let tokens = Metrics::read(target.admin).await?.output_tokens("large");
        target.expect(tokens >= before, || format!("output tokens went from {before} to {tokens}"));
        before = tokens;
    }
    Ok(())
}
