//! Attacks on the accounting: requests that evade counting, and false counts.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::CHAT;
use super::memory::open_streams;
use crate::attack::{Attack, Hostile, Target};
use crate::options::REWRITES;
use crate::program::Metrics;
use crate::upstream::FAST;
use crate::{Outcome, wire};

/// Number of pipelined probes, above the default of `observe.pipeline_depth`.
const PROBES: usize = 70;

/// Number of chats that follow, and the tokens of each.
const CHATS: usize = 20;
const TOKENS: u64 = 10;

/// Requests of other clients on a shared HTTP/2 connection.
const SHARED: usize = 10;

/// Concurrent streams of the attacker, above the default of `observe.max_streams`.
const STREAMS: usize = 1_100;

/// Concurrent streams that pingora-core 0.9.1 accepts on a connection.
const ACCEPTED: usize = 100;

/// Size of a header block, above the maximum of 64 KiB.
const BLOCK: usize = 100_000;

/// Number of model names, above the cap on models in labels.
const NAMES: usize = 200;

/// Number of model names with tokens: the default of `telemetry.max_models`.
const ECHOED: usize = 64;

/// Maximum time until a request record is counted in the metrics.
const COUNTED: Duration = Duration::from_secs(3);

pub(super) fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("pipelined-probes", 1, pipelined_probes),
        Attack::new("pipelined-chats", 1, pipelined_chats),
        Attack::new("h2-many-streams", 1, many_streams),
        Attack::new("h2-oversized-headers", 1, oversized_headers),
        Attack::new("junk-models", 1, junk_models),
        Attack::new("echoed-models", 1, echoed_models),
        Attack::new("largest-usage", 1, largest_usage),
    ]
}

/// A chat to which the upstream responds with this model and token count.
pub(super) fn chat(model: &str, tokens: Option<u64>, status: u16) -> Vec<u8> {
    let tokens = tokens.map(|tokens| tokens.to_string()).unwrap_or_default();
    let fields = [("x-kind", "chat"), ("x-model", model), ("x-tokens", &tokens), ("x-status", &status.to_string())];
    wire::post(CHAT, &fields, format!("{{\"model\":\"{model}\"}}").as_bytes())
}

/// Waits for a metric to reach the expected value; records a fault on timeout.
pub(super) async fn counted(target: &Target, what: &str, expected: f64, read: impl Fn(&Metrics) -> f64) -> Outcome<()> {
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

/// Sends chats one after another on this connection and checks that all are counted.
async fn chats(target: &Target, stream: &mut Hostile, model: &str) -> Outcome<()> {
    for _ in 0..CHATS {
        stream.request(&chat(model, Some(TOKENS), 200)).await?;
    }
    let expected = (CHATS as u64 * TOKENS) as f64;
    counted(target, &format!("tokens of {CHATS} chats"), expected, |metrics| metrics.output_tokens(model)).await
}

/// More concurrent probes than are observed, and chats on the same connection.
async fn pipelined_probes(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let hold = b"GET /health HTTP/1.1\r\nhost: x\r\nx-kind: hold\r\n\r\n";
    let probes = [&hold[..], &b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(PROBES - 1)].concat();
    stream.ask(&probes, FAST.len() * PROBES).await?;
    chats(&target, &mut stream, "after-probes").await
}

/// More concurrent chats than are observed. All must be recorded as requests, and later chats with their tokens.
async fn pipelined_chats(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    let hold = wire::post(CHAT, &[("x-kind", "hold")], b"{}");
    let more = wire::post(CHAT, &[], b"{}").repeat(PROBES - 1);
    stream.ask(&[hold, more].concat(), FAST.len() * PROBES).await?;
    target.sent_requests(PROBES + CHATS);
    chats(&target, &mut stream, "after-chats").await
}

/// Opens requests whose responses last as long as the attack.
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

/// More streams than are observed, on a connection that other clients share.
async fn many_streams(target: Target) -> Outcome<()> {
    let mut stream = share(&target).await?;
    let mut bytes = Vec::new();
    for at in SHARED..SHARED + STREAMS {
        let block = wire::block(at, &[(":path", CHAT)]);
        bytes.extend(wire::frame(wire::HEADERS, wire::END_HEADERS, wire::stream(at), &block));
    }
    stream.write(&bytes).await?;
    stream.hold();
    // A second connection, with as many streams as are observed.
    open_streams(target.connect().await?, 1_000).await?;
    // In rewrite mode, streams above pingora's maximum are refused.
    let both = if REWRITES.load(Relaxed) { 2 * ACCEPTED - SHARED } else { STREAMS + 1_000 };
    target.sent_requests(both);
    Ok(())
}

/// An oversized header block, on a connection that other clients share.
async fn oversized_headers(target: Target) -> Outcome<()> {
    let mut stream = share(&target).await?;
    let mut block = wire::block(1, &[(":path", CHAT)]);
    block.extend((0..BLOCK / 1_000).flat_map(|_| wire::literal("x", &"x".repeat(1_000))));
    stream.write(&wire::split_block(wire::stream(SHARED), &block)).await?;
    // In rewrite mode, pingora refuses the header block.
    target.sent_requests(usize::from(!REWRITES.load(Relaxed)));
    stream.hold();
    Ok(())
}

/// Model names from responses without tokens, followed by a real model.
async fn junk_models(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    for at in 0..NAMES {
        let (tokens, status) = if at % 2 == 0 { (None, 200) } else { (Some(TOKENS), 404) };
        stream.request(&chat(&format!("junk-{at}"), tokens, status)).await?;
    }
    chats(&target, &mut stream, "real-model").await?;
    // Objectives have their own cap on models.
    let evaluated = |metrics: &Metrics| {
        metrics.sum("tokometer_slo_events_total", &["slo=\"availability\"", "model=\"real-model\""]).unwrap_or(0.0)
    };
    counted(&target, "chats of a real model that its objective counts", CHATS as f64, evaluated).await
}

/// A server that accepts any model name: junk names with tokens fill the table before a real model is used. The real
/// model gets a label once it has clearly more traffic, and no token is lost.
async fn echoed_models(target: Target) -> Outcome<()> {
    let mut stream = target.connect().await?;
    for at in 0..ECHOED {
        stream.request(&chat(&format!("junk-{at}"), Some(TOKENS), 200)).await?;
    }
    // The models of other clients take places too, so some junk names are counted as `other`.
    let tokens = |metrics: &Metrics| metrics.output_tokens("real-model") + metrics.output_tokens("other");
    let junk = |metrics: &Metrics| {
        tokens(metrics) + metrics.sum("tokometer_output_tokens_total", &["response_model=\"junk-"]).unwrap_or(0.0)
    };
    counted(&target, "tokens of junk names", (ECHOED as u64 * TOKENS) as f64, junk).await?;
    let before = tokens(&Metrics::read(target.admin).await?);
    let sent = |requests: usize| (requests as u64 * TOKENS) as f64;
    let expected = sent(2 * CHATS);
    for _ in 0..2 * CHATS {
        stream.request(&chat("real-model", Some(TOKENS), 200)).await?;
    }
    counted(&target, "tokens of a real model, with those before it got a label", before + expected, tokens).await?;
    let metrics = Metrics::read(target.admin).await?;
    let labelled = metrics.output_tokens("real-model");
    target.expect(labelled >= sent(CHATS), || format!("tokens of a real model: {labelled} of {expected}"));
    let labels = ["slo=\"availability\"", "model=\"real-model\""];
    let evaluated = metrics.sum("tokometer_slo_events_total", &labels).unwrap_or(0.0);
    target
        .expect(evaluated >= CHATS as f64, || format!("chats of a real model that its objective counts: {evaluated}"));
    Ok(())
}

/// A usage of 2^64 - 1 between regular ones: the counter never decreases.
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
