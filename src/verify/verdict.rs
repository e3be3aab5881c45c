//! Evaluates the checks.

use std::time::Duration;

use crate::verify::canary::Canary;
use crate::verify::compare::Outcome;
use crate::verify::counted::{Counted, QUEUE, REQUESTS};
use crate::verify::difference::{CanaryPair, difference};
use crate::verify::report::{Check, Grade, Row};
use crate::verify::settings::CheckName;
use tokometer_decode::engine::Advice;

/// Times of both sides: median and 99th percentile.
pub(super) fn rows(direct: &[Canary], proxied: &[Canary]) -> Vec<Row> {
    let pairs = |times: fn(&Canary) -> Vec<Duration>| -> Vec<CanaryPair> {
        direct.iter().zip(proxied).map(|(direct, proxied)| CanaryPair::of(&times(direct), &times(proxied))).collect()
    };
    let measured = [
        ("first_byte", pairs(|canary| vec![canary.first_byte])),
        ("first_token", pairs(|canary| canary.first_token.into_iter().collect())),
        ("between_tokens", pairs(|canary| canary.gaps.clone())),
    ];
    let row = |time, pairs: &[CanaryPair], percentile: u8| {
        Some(Row { time, percentile, difference: difference(pairs, f64::from(percentile) / 100.0)? })
    };
    measured
        .iter()
        .flat_map(|(time, pairs)| [50, 99].map(|percentile| row(time, pairs, percentile)))
        .flatten()
        .collect()
}

/// Whether the proxy adds more than `most` to a median.
pub(super) fn latency(rows: &[Row], most: Duration) -> Check {
    let most = most.as_secs_f64() * 1e3;
    let made = |grade, detail: String| Check::new(CheckName::Latency, grade, detail);
    let medians = rows.iter().filter(|row| row.percentile == 50);
    let slow = medians.filter_map(|row| Some((row.time, row.difference.added_ms.filter(|added| *added > most)?)));
    let slow: Vec<String> = slow.map(|(time, added)| format!("{added:.3} ms to {}", words(time))).collect();
    if rows.is_empty() {
        return made(Grade::Unknown, "no times to compare".to_owned());
    }
    if slow.is_empty() {
        return made(Grade::Pass, format!("the proxy adds at most {most} ms to any median"));
    }
    made(Grade::Fail, format!("the proxy adds {} at the median; {most} ms are allowed", slow.join(" and ")))
        .fix("check for other hops (a mesh, a remote host) and check tokometer_event_loop_lag_seconds; --max-added sets the limit")
}

fn words(time: &str) -> &'static str {
    match time {
        "first_byte" => "the first byte",
        "first_token" => "the first token",
        _ => "the gap between tokens",
    }
}

/// Whether responses are identical.
pub(super) fn bytes(outcomes: &[Outcome]) -> Check {
    let (mut same, mut unsure, mut differing) = (Vec::new(), Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Same(words) => same.push(words.as_str()),
            Outcome::Unsure(words) => unsure.push(words.as_str()),
            Outcome::Differs(words) => differing.push(words.as_str()),
        }
    }
    let made = |grade, detail: String| Check::new(CheckName::Bytes, grade, detail);
    if !differing.is_empty() {
        return made(Grade::Fail, format!("proxied responses differ: {}", differing.join("; ")))
            .fix("tokometer changes no byte: look for another proxy, mesh or gateway in between, and check that both addresses lead to the same server");
    }
    let detail = if same.is_empty() { String::new() } else { format!("identical: {}", same.join("; ")) };
    match unsure.is_empty() {
        true => made(Grade::Pass, detail),
        false => {
            let and = if detail.is_empty() { "" } else { ". " };
            made(Grade::Unknown, format!("{detail}{and}Not compared: {}", unsure.join("; ")))
                .fix("repeat with more --requests")
        }
    }
}

/// Whether a stream reports its token count to a client that did not ask for it (`unasked`). `asked`: whether a stream
/// reported it to a client that did ask.
pub(super) fn usage(advice: Advice, asked: bool, unasked: &Canary) -> Check {
    let made = |grade, detail: &str| Check::new(CheckName::Usage, grade, detail);
    if unasked.usage.is_some() {
        return made(Grade::Pass, "streams end with the engine's token count, even if the client does not ask for it");
    }
    if unasked.native.is_some() {
        return made(
            Grade::Pass,
            "streams carry the engine's token counter, even if the client does not ask for usage",
        );
    }
    let detail = match asked {
        true => "a stream whose client does not ask for usage has no token count: its tokens are a lower bound",
        false => "streams have no token count, even if the client asks for usage: their tokens are a lower bound",
    };
    let fix = match asked {
        true => advice.usage,
        false => {
            "mount the model's tokenizer.json for an estimate (observe.tokenizer); docs/reference/engine-support.md lists what each engine reports"
        }
    };
    made(Grade::Warn, detail).fix(fix)
}

/// Whether queue times are reported. `gained`: the admin server's counts for the canaries.
pub(super) fn queue(advice: Advice, gained: Option<&Counted>) -> Check {
    let made = |grade, detail: String| Check::new(CheckName::Queue, grade, detail);
    let Some(gained) = gained else {
        return made(Grade::Unknown, "queue times come from the admin server, which could not be read".to_owned());
    };
    let sources: Vec<&str> = gained.by_label(QUEUE).map(|(source, _)| source).collect();
    match sources.is_empty() {
        false => made(Grade::Pass, format!("queue times are reported, by {}", sources.join(" and "))),
        true => made(Grade::Warn, "no queue times are reported".to_owned()).fix(advice.queue),
    }
}

/// Checks that the admin server counted each canary once, with the token count of the canary's usage. The first
/// attempts of the `retried` requests may be counted too, without tokens.
pub(super) fn counts(gained: &Counted, canaries: &[&Canary], retried: u64) -> Check {
    let made = |grade, detail: String| Check::new(CheckName::Counts, grade, detail);
    let sent = canaries.len() as f64;
    let tokens: Option<u64> = canaries.iter().map(|canary| canary.usage).sum();
    let counted = gained.total(REQUESTS);
    let others = counted - sent - retried as f64;
    if others > 0.0 {
        return made(
            Grade::Unknown,
            format!("{others} requests of other clients were counted meanwhile, so the result is unknown"),
        )
        .fix("repeat without other traffic");
    }
    if counted == 0.0 {
        return made(Grade::Fail, format!("none of {sent} canaries was counted"))
            .fix("set the admin server of this proxy with --admin, and check that observe.enabled is true");
    }
    if counted < sent {
        return made(Grade::Fail, format!("only {} of {sent} canaries were counted", counted))
            .fix("check tokometer_observer_detached_total and the log, and whether several proxies share the address");
    }
    match tokens {
        Some(tokens) if gained.exact_tokens() == tokens as f64 => {
            made(Grade::Pass, format!("all {sent} canaries were counted, with exactly their {tokens} output tokens"))
        }
        Some(tokens) => {
            let by = gained.tokens().map(|(source, tokens)| format!("{tokens} by {source}"));
            let by: Vec<String> = by.collect();
            let by = if by.is_empty() { "none".to_owned() } else { by.join(", ") };
            made(Grade::Fail, format!("the canaries had {tokens} output tokens, but the proxy counted {by}")).fix(
                "check the engine in observe.engine; docs/reference/engine-support.md lists what each engine reports",
            )
        }
        None => made(
            Grade::Pass,
            format!("all {sent} canaries were counted; the server reported no token counts to compare with"),
        ),
    }
}
