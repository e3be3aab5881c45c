//! What is going on, as pages of the admin server: `/engine/healthz` and `/exchanges`. Their names are an interface.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use serde_json::json;

use crate::admin::Told;
use crate::app::figures::figures;
use crate::live::Finished;
use crate::live::InFlight;
use crate::live::Open;
use crate::live::State;
use crate::live::Verdict;
use crate::measure::TimeLine;

/// Most exchanges in flight that are listed, and most that ended, if no other number is asked for.
const LISTED: usize = 100;

/// `/engine/healthz`: 503 when the engine of a pair is wedged.
pub(super) fn engine(in_flight: &Arc<InFlight>) -> Told {
    let in_flight = Arc::clone(in_flight);
    Arc::new(move |query| {
        let wanted = match only(query, &["pair"]) {
            Ok(asked) => asked,
            Err(message) => return (400, error(&message)),
        };
        let verdicts = in_flight.verdicts(Instant::now());
        let pairs: Vec<(&str, Verdict)> = in_flight
            .pairs()
            .zip(verdicts)
            .enumerate()
            .filter(|(at, (name, _))| wanted.is_none_or(|pair| pair == *name || pair == at.to_string()))
            .map(|(_, pair)| pair)
            .collect();
        if pairs.is_empty() {
            let known: Vec<&str> = in_flight.pairs().collect();
            return (404, error(&format!("no pair has this name or number; there are {}", known.join(", "))));
        }
        let wedged = pairs.iter().any(|(_, verdict)| verdict.state == State::Wedged);
        let pairs: Vec<Value> = pairs.iter().map(|(name, verdict)| told(name, verdict)).collect();
        (if wedged { 503 } else { 200 }, json!({ "healthy": !wedged, "pairs": pairs }))
    })
}

fn told(name: &str, verdict: &Verdict) -> Value {
    json!({
        "pair": name,
        "state": verdict.state.as_str(),
        "rule": verdict.rule.map(|rule| rule.as_str()),
        "silent_secs": seconds(verdict.silent),
        "bound_secs": verdict.rule.map(|_| seconds(verdict.bound)),
        "in_flight": verdict.in_flight,
        "decoding": verdict.decoding,
        "prefilling": verdict.prefilling,
        "whole": verdict.whole,
        "held_up": verdict.held_up,
    })
}

/// `/exchanges`: those in flight, the latest that ended, and the slowest of them.
pub(super) fn exchanges(in_flight: &Arc<InFlight>) -> Told {
    let in_flight = Arc::clone(in_flight);
    Arc::new(move |query| {
        let most = match only(query, &["limit"]).and_then(|asked| asked.map_or(Ok(LISTED), number)) {
            Ok(most) => most,
            Err(message) => return (400, error(&message)),
        };
        let (now, wall) = (Instant::now(), SystemTime::now());
        let open: Vec<Value> = in_flight.open(now, most).iter().map(|open| flying(open, &in_flight)).collect();
        let kept = in_flight.kept(now);
        let listed = |all: &mut dyn Iterator<Item = &Arc<Finished>>| -> Vec<Value> {
            all.take(most).map(|finished| ended(finished, now, wall)).collect()
        };
        let page = json!({
            "open": open,
            "latest": listed(&mut kept.latest.iter().rev()),
            "slowest_first_token": listed(&mut kept.slowest_first_token.iter()),
            "longest_gap": listed(&mut kept.longest_gap.iter()),
        });
        (200, page)
    })
}

fn flying(open: &Open, in_flight: &InFlight) -> Value {
    json!({
        "pair": in_flight.pairs().nth(open.pair),
        "route": open.route,
        "model": open.model,
        "connection": open.connection,
        "sequence": open.sequence,
        "doing": open.doing,
        "age_ms": milliseconds(open.age),
        "waited_ms": open.waited.map(milliseconds),
        "time_to_first_token_ms": open.first_token.map(milliseconds),
        "tokens": open.tokens,
        "max_tokens": open.max_tokens,
        "request_bytes": open.request_bytes,
    })
}

/// The figures of the access log, when it started, and its time line.
fn ended(finished: &Finished, now: Instant, wall: SystemTime) -> Value {
    let record = &finished.record;
    let ago = now.saturating_duration_since(record.started);
    let started = wall.checked_sub(ago).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let mut members = serde_json::Map::new();
    members.insert("started_unix_ms".to_owned(), started.map(milliseconds).into());
    members.extend(figures(record).into_iter().map(|(name, value)| (name.to_owned(), value)));
    let line = finished.line.as_deref().map(|line| time_line(line, record.requested));
    members.insert("timeline".to_owned(), line.unwrap_or(Value::Null));
    Value::Object(members)
}

/// A time line: its points as arrays of when (milliseconds from the last byte of the request), tokens, and the longest gap
/// within (milliseconds).
pub(super) fn time_line(line: &TimeLine, requested: Option<Duration>) -> Value {
    let requested = requested.unwrap_or_default();
    let point = |point: crate::measure::Point| {
        json!([milliseconds(point.at.saturating_sub(requested)), point.tokens, milliseconds(point.longest_gap)])
    };
    json!({
        "events_per_point": line.events_per_point(),
        "points": line.points().map(point).collect::<Vec<_>>(),
    })
}

/// The value of the one parameter of a query that is known; `None` when it is not there.
fn only<'a>(query: Option<&'a str>, known: &[&str]) -> Result<Option<&'a str>, String> {
    let mut found = None;
    for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((name, value)) if known.contains(&name) => found = Some(value),
            _ => return Err(format!("`{part}` is not known here; write ?{}=", known.join("= or ?"))),
        }
    }
    Ok(found)
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is no number; write ?limit=20"))
}

fn error(message: &str) -> Value {
    json!({ "error": { "message": message } })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
