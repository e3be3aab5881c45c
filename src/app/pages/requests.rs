//! Admin pages `/engine/healthz` and `/requests`. Their JSON field names are a stable interface.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::admin::{JsonPage, TextPage};
use crate::app::fields::members;
use crate::app::monitors::ListenerStates;
use tokometer_observe::measure::TimeLine;
use tokometer_telemetry::live::{Finished, InFlight, Open, Reach, Verdict};

/// Default number of entries of each list.
const LISTED: usize = 100;

/// Maximum number of entries of each list.
const MAX_LISTED: usize = 200;

/// Maximum size of `/requests` in bytes. Lists are truncated when it is reached.
const MAX_BYTES: usize = 2 << 20;

/// `/engine/healthz`: 503 if the engine of a listener is wedged or unreachable.
pub(in crate::app) fn engine_health(in_flight: &Arc<InFlight>, listener_states: &Arc<ListenerStates>) -> JsonPage {
    let (in_flight, listener_states) = (Arc::clone(in_flight), Arc::clone(listener_states));
    Arc::new(move |query| {
        let wanted = match only(query, &["listener"]) {
            Ok(value) => value,
            Err(message) => return (400, error(&message)),
        };
        let stats = in_flight.stats(Instant::now());
        let listeners: Vec<(usize, (&str, Verdict))> = in_flight
            .listeners()
            .zip(stats.into_iter().map(|stats| stats.verdict))
            .enumerate()
            .filter(|(at, (name, _))| wanted.is_none_or(|listener| listener == *name || listener == at.to_string()))
            .collect();
        if listeners.is_empty() {
            let known: Vec<&str> = in_flight.listeners().collect();
            return (404, error(&format!("no listener has this name or number; configured: {}", known.join(", "))));
        }
        let healthy = listeners.iter().all(|(_, (_, verdict))| verdict.state.is_healthy());
        let reported = |(at, (name, verdict)): &(usize, (&str, Verdict))| {
            let error = listener_states.status(*at).and_then(|status| status.error().cloned());
            reported(name, verdict, error.as_deref())
        };
        let listeners: Vec<Value> = listeners.iter().map(reported).collect();
        (if healthy { 200 } else { 503 }, json!({ "healthy": healthy, "listeners": listeners }))
    })
}

fn reported(name: &str, verdict: &Verdict, error: Option<&str>) -> Value {
    let unreachable = if let Reach::Fails(time) = verdict.signs.reach { Some(seconds(time)) } else { None };
    json!({
        "listener": name,
        "state": verdict.state.as_str(),
        "rule": verdict.rule.map(|rule| rule.as_str()),
        "silent_secs": seconds(verdict.silent),
        "bound_secs": verdict.rule.map(|_| seconds(verdict.bound)),
        "in_flight": verdict.in_flight,
        "decoding": verdict.decoding,
        "prefilling": verdict.prefilling,
        "whole": verdict.whole,
        "blocked": verdict.client_blocked,
        "unreachable_secs": unreachable,
        "unreachable_error": unreachable.and(error),
        "still_secs": verdict.signs.still.engine.map(seconds),
        "rank": verdict.rank,
    })
}

/// `/requests`: requests in flight, the latest that ended, and the slowest of them.
pub(in crate::app) fn requests(in_flight: &Arc<InFlight>) -> TextPage {
    let in_flight = Arc::clone(in_flight);
    Arc::new(move |query| {
        let most = match only(query, &["limit"]).and_then(|value| value.map_or(Ok(LISTED), number)) {
            Ok(most) => most.min(MAX_LISTED),
            Err(message) => return (400, format!("{}\n", error(&message)).into_bytes()),
        };
        let (now, wall) = (Instant::now(), SystemTime::now());
        let kept = in_flight.kept(now);
        let ended = |finished: &Arc<Finished>| ended(finished, now, wall);
        let mut lists = Lists::new(MAX_BYTES);
        lists.add("open", in_flight.open(now, most).iter().map(|open| in_flight_entry(open, &in_flight)));
        lists.add("slowest_first_token", kept.slowest_first_token.iter().take(most).map(ended));
        lists.add("longest_gap", kept.longest_gap.iter().take(most).map(ended));
        // Added last, because the longest list should be the one that is truncated.
        lists.add("latest", kept.latest.iter().rev().take(most).map(ended));
        (200, lists.end())
    })
}

/// A JSON object of lists, written entry by entry up to a maximum size.
struct Lists {
    text: Vec<u8>,
    max_bytes: usize,
    truncated: bool,
}

impl Lists {
    fn new(max_bytes: usize) -> Lists {
        Lists { text: b"{".to_vec(), max_bytes, truncated: false }
    }

    fn add(&mut self, name: &str, entries: impl Iterator<Item = Value>) {
        self.text.extend_from_slice(format!("\"{name}\":[").as_bytes());
        let begin = self.text.len();
        for entry in entries {
            let end = self.text.len();
            let comma = if end == begin { "" } else { "," };
            self.text.extend_from_slice(format!("{comma}{entry}").as_bytes());
            if self.text.len() > self.max_bytes {
                self.text.truncate(end);
                self.truncated = true;
                break;
            }
        }
        self.text.extend_from_slice(b"],");
    }

    fn end(mut self) -> Vec<u8> {
        self.text.extend_from_slice(format!("\"truncated\":{}}}\n", self.truncated).as_bytes());
        self.text
    }
}

fn in_flight_entry(open: &Open, in_flight: &InFlight) -> Value {
    json!({
        "listener": in_flight.listeners().nth(open.listener),
        "route": open.route.name(),
        "model": open.model.as_deref(),
        "connection": open.connection,
        "sequence": open.sequence,
        "doing": open.doing.as_str(),
        "age_ms": milliseconds(open.age),
        "waited_ms": open.waited.map(milliseconds),
        "time_to_first_token_ms": open.first_token.map(milliseconds),
        "tokens": open.tokens,
        "max_tokens": open.max_tokens,
        "request_bytes": open.request_bytes,
    })
}

/// The values of the access log, plus start time and timeline.
fn ended(finished: &Finished, now: Instant, wall: SystemTime) -> Value {
    let record = &finished.record;
    let ago = now.saturating_duration_since(record.started);
    let started = wall.checked_sub(ago).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let mut object = serde_json::Map::new();
    object.insert("started_unix_ms".to_owned(), started.map(milliseconds).into());
    object.extend(members(record).map(|(name, value)| (name.to_owned(), value)));
    let line = finished.line.as_deref().map(|line| time_line(line, record.times.requested));
    object.insert("timeline".to_owned(), line.unwrap_or(Value::Null));
    Value::Object(object)
}

/// A timeline: points as arrays of time (milliseconds from the last byte of the request), tokens, and the longest gap
/// within the point (milliseconds).
pub(crate) fn time_line(line: &TimeLine, requested: Option<Duration>) -> Value {
    let requested = requested.unwrap_or_default();
    let point = |point: tokometer_observe::measure::Point| {
        json!([milliseconds(point.at.saturating_sub(requested)), point.tokens, milliseconds(point.longest_gap)])
    };
    json!({
        "events_per_point": line.events_per_point(),
        "points": line.points().map(point).collect::<Vec<_>>(),
    })
}

/// The value of the only known parameter of a query; `None` if it is absent.
fn only<'a>(query: Option<&'a str>, known: &[&str]) -> Result<Option<&'a str>, String> {
    let mut found = None;
    for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((name, value)) if known.contains(&name) => found = Some(value),
            _ => return Err(format!("unknown parameter `{part}`; write ?{}=", known.join("= or ?"))),
        }
    }
    Ok(found)
}

fn number(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| format!("invalid limit `{text}`; write a number from 0 to {MAX_LISTED}, such as ?limit=20"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_over_the_maximum_size_are_truncated_to_valid_json() {
        let entry = || json!({ "text": "x".repeat(100) });
        for (entries, kept, truncated) in [(0, 0, false), (3, 3, false), (50, 8, true)] {
            let mut lists = Lists::new(1000);
            lists.add("a", (0..entries).map(|_| entry()));
            lists.add("b", (0..entries.min(1)).map(|_| entry()));
            let text = lists.end();
            assert!(text.len() < 1050, "{}", text.len());
            let page: Value = serde_json::from_slice(&text).unwrap();
            let of = |name: &str| page[name].as_array().unwrap().len();
            let second = if truncated { 0 } else { entries.min(1) };
            assert_eq!((of("a"), of("b"), page["truncated"].as_bool()), (kept, second, Some(truncated)), "{page}");
        }
    }
}
