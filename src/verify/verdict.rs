//! What each check says of what was seen.

use std::time::Duration;

use crate::verify::canary::Canary;
use crate::verify::counted::Counted;
use crate::verify::difference::Pair;
use crate::verify::difference::difference;
use crate::verify::engine::Engine;
use crate::verify::likeness::Likeness;
use crate::verify::report::Check;
use crate::verify::report::Grade;
use crate::verify::report::Row;
use crate::verify::sandwich::Closeness;
use crate::verify::sandwich::Outcome;
use crate::verify::settings::CheckName;

/// Times on both ways, at the median and at the 99th percentile.
pub(super) fn rows(beside: &[Canary], through: &[Canary]) -> Vec<Row> {
    let times = |of: fn(&Canary) -> Vec<Duration>| -> Vec<Pair> {
        beside.iter().zip(through).map(|(one, other)| Pair::of(&of(one), &of(other))).collect()
    };
    let measured = [
        ("first_byte", times(|canary| vec![canary.first_byte])),
        ("first_token", times(|canary| canary.first_token.into_iter().collect())),
        ("between_tokens", times(|canary| canary.gaps.clone())),
    ];
    let row = |time, pairs: &[Pair], percentile: u8| {
        let found = difference(pairs, f64::from(percentile) / 100.0)?;
        let (beside_ms, through_ms) = (found.beside, found.through);
        let (added_ms, low_ms, high_ms) = (found.added(), found.low, found.high);
        Some(Row { time, percentile, beside_ms, through_ms, added_ms, low_ms, high_ms })
    };
    measured
        .iter()
        .flat_map(|(time, pairs)| [50, 99].map(|percentile| row(*time, pairs, percentile)))
        .flatten()
        .collect()
}

/// Whether the relay adds more to a median than it may.
pub(super) fn latency(rows: &[Row], most: Duration) -> Check {
    let most = most.as_secs_f64() * 1e3;
    let made = |grade, said: String| Check::new(CheckName::Latency, grade, said);
    let slow = rows.iter().filter(|row| row.percentile == 50 && row.added_ms.is_some_and(|added| added > most));
    let slow: Vec<String> =
        slow.map(|row| format!("{:.3} ms to {}", row.added_ms.unwrap_or_default(), words(row.time))).collect();
    if rows.is_empty() {
        return made(Grade::Unknown, "there were no times to compare".to_owned());
    }
    if slow.is_empty() {
        return made(Grade::Good, format!("no median is longer by more than {most} ms through the relay"));
    }
    made(Grade::Wrong, format!("the relay adds {} at the median; {most} ms are allowed", slow.join(" and ")))
        .mend("look at what else is on the way (a mesh, a remote host) and at tokometer_event_loop_lag_seconds; --most-added sets the limit")
}

fn words(time: &str) -> &'static str {
    match time {
        "first_byte" => "the first byte",
        "first_token" => "the first token",
        _ => "the gap between tokens",
    }
}

/// Whether answers are the same: `streams` of the canaries, and what was compared besides, each with its words.
pub(super) fn bytes(count: usize, streams: &Likeness, others: &[(&str, Outcome)]) -> Check {
    let mut differing = Vec::new();
    let mut same = Vec::new();
    let mut unsure = Vec::new();
    match streams {
        Likeness::Same(level) => same.push(format!("{count} streams: {}", level.words())),
        Likeness::Incomparable => {
            unsure.push("streams: the server's own differ from one to the next in their kinds of events".to_owned());
        }
        Likeness::Differ { answers, certain: true, place } => {
            differing.push(format!("{answers} of {count} streams, {place}"));
        }
        Likeness::Differ { answers, certain: false, place } => {
            unsure.push(format!("{answers} of {count} streams differ, which may be the server's own doing ({place})"));
        }
    }
    for (name, outcome) in others {
        match outcome {
            Outcome::Same(Closeness::Exact) => same.push(format!("{name}: every byte")),
            Outcome::Same(Closeness::Masked) => same.push(format!("{name}: every byte but ids and times")),
            Outcome::Same(Closeness::Shape) => same.push(format!("{name}: every byte but what varies")),
            Outcome::Incomparable => unsure.push(format!("{name}: the server's own answers differ")),
            Outcome::Differs(place) => differing.push(format!("{name}, {place}")),
        }
    }
    let made = |grade, said: String| Check::new(CheckName::Bytes, grade, said);
    if !differing.is_empty() {
        return made(Grade::Wrong, format!("what came through differs: {}", differing.join("; ")))
            .mend("tokometer changes no byte: look for a proxy, a mesh or a gateway between, or whether both lead to the same server");
    }
    let said = if same.is_empty() { String::new() } else { format!("the same: {}", same.join("; ")) };
    match unsure.is_empty() {
        true => made(Grade::Good, said),
        false => {
            let and = if said.is_empty() { "" } else { ". " };
            made(Grade::Unknown, format!("{said}{and}Not compared: {}", unsure.join("; ")))
                .mend("run it again with more --requests")
        }
    }
}

/// Whether the tokens of a stream are told to a client that did not ask.
pub(super) fn usage(engine: Engine, asked: bool, unasked: &Canary) -> Check {
    let made = |grade, said: &str| Check::new(CheckName::Usage, grade, said);
    if unasked.usage.is_some() {
        return made(Grade::Good, "streams end with the engine's own count, also when nobody asked for it");
    }
    if unasked.native.is_some() {
        return made(Grade::Good, "a stream whose client did not ask for usage carries the engine's own counter");
    }
    let said = match asked {
        true => "a stream whose client did not ask for usage carries no count: its tokens are a lower bound",
        false => "streams carry no count, even when usage is asked for: their tokens are a lower bound",
    };
    let mend = match asked {
        true => engine.mend_usage(),
        false => {
            "mount the model's tokenizer.json for an estimate (observe.tokenizer); docs/ENGINES.md says what each engine tells"
        }
    };
    made(Grade::Wrong, said).mend(mend)
}

/// Whether waits are told. `gained` is what the admin server counted of the canaries.
pub(super) fn queue(engine: Engine, gained: Option<&Counted>) -> Check {
    let made = |grade, said: String| Check::new(CheckName::Queue, grade, said);
    let Some(gained) = gained else {
        return made(Grade::Unknown, "queue times are seen at the admin server, which was not read".to_owned());
    };
    let sources: Vec<&str> = gained.queue.keys().map(String::as_str).collect();
    match sources.is_empty() {
        false => made(Grade::Good, format!("queue times are told, by {}", sources.join(" and "))),
        true => made(Grade::Note, "no queue time is told of a request".to_owned()).mend(engine.mend_queue()),
    }
}

/// Whether the admin server counted the canaries, each once and with the tokens of its usage. Requests that were sent `again`
/// because their connection was being closed may have been counted too, with no tokens.
pub(super) fn counts(gained: &Counted, canaries: &[&Canary], again: u64) -> Check {
    let made = |grade, said: String| Check::new(CheckName::Counts, grade, said);
    let sent = canaries.len() as f64;
    let tokens: Option<u64> = canaries.iter().map(|canary| canary.usage).sum();
    let others = gained.exchanges - sent - again as f64;
    if others > 0.0 {
        return made(
            Grade::Unknown,
            format!("{others} exchanges of others were counted meanwhile, so it cannot be told"),
        )
        .mend("run it while nobody else uses the relay");
    }
    if gained.exchanges == 0.0 {
        return made(Grade::Wrong, format!("of {sent} canaries none was counted"))
            .mend("give the admin server of this relay with --admin, and see that observe.enabled is true");
    }
    if gained.exchanges < sent {
        return made(Grade::Wrong, format!("of {sent} canaries {} were counted", gained.exchanges))
            .mend("look at tokometer_observer_detached_total and at the log; is there more than one relay behind the address?");
    }
    match tokens {
        Some(tokens) if gained.exact_tokens == tokens as f64 => {
            made(Grade::Good, format!("all {sent} canaries were counted, with exactly their {tokens} output tokens"))
        }
        Some(tokens) => {
            let by: Vec<String> =
                gained.tokens.iter().map(|(source, tokens)| format!("{tokens} by {source}")).collect();
            let by = if by.is_empty() { "none".to_owned() } else { by.join(", ") };
            made(Grade::Wrong, format!("the canaries had {tokens} output tokens, counted were {by}"))
                .mend("is the engine named rightly in observe.engine? docs/ENGINES.md says what is read of each")
        }
        None => made(
            Grade::Good,
            format!("all {sent} canaries were counted; the server told no tokens to hold theirs against"),
        ),
    }
}
