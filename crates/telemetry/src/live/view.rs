//! Builds the request part of a snapshot from the requests in flight, the totals and the finished requests.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::live::recent::{Finished, Kept};
use crate::live::snapshot::{MAX_SLOW, MAX_STREAMS, Slow, Snapshot, Stream};
use crate::live::token_rates::TokenRates;
use crate::live::totals::by_outcome;
use crate::live::{InFlight, Open, Phases, Stats, snapshot};
use tokometer_observe::measure::{Phase, Record};

/// Builds snapshots. Keeps the streams' recent token counts between two calls.
#[derive(Debug)]
pub struct View {
    in_flight: Arc<InFlight>,
    rates: Mutex<TokenRates>,
}

impl View {
    /// Creates a view of these requests.
    pub fn new(in_flight: Arc<InFlight>) -> View {
        View { in_flight, rates: Mutex::default() }
    }

    /// The part of a snapshot that covers requests and engine state; all other fields keep their defaults.
    pub fn look(&self, now: Instant) -> Snapshot {
        let (totals, history) = (self.in_flight.totals(), self.in_flight.history());
        let (stats, open) = self.in_flight.survey(now, MAX_STREAMS);
        let (streams, models) = self.streams(&open, now);
        let [ttft_seconds, decode_tokens_per_second] = history.distributions(now, &totals);
        Snapshot {
            listeners: self.in_flight.listeners().zip(&stats).map(|(name, stats)| listener(name, stats)).collect(),
            models,
            in_flight: sums(&stats, streams),
            rates: history.rates(now, &totals),
            ttft_seconds,
            decode_tokens_per_second,
            slowest: slowest(&self.in_flight.kept(now), now),
            since_start: snapshot::SinceStart {
                tokens: totals.tokens,
                requests: by_outcome(&totals),
                unwatched: self.in_flight.untracked(),
            },
            ..Snapshot::default()
        }
    }

    /// The streams, and the model names that they refer to.
    fn streams(&self, open: &[Open], now: Instant) -> (Vec<Stream>, Vec<String>) {
        let rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner).update(now, open);
        let mut models: Vec<String> = Vec::new();
        let mut place = |name: &str| match models.iter().position(|known| known == name) {
            Some(at) => at,
            None => {
                models.push(name.to_owned());
                models.len() - 1
            }
        };
        let streams = open.iter().zip(rates).map(|(open, rate)| {
            let model = open.model.as_deref().map(&mut place);
            stream(open, model, rate)
        });
        (streams.collect(), models)
    }
}

fn stream(open: &Open, model: Option<usize>, rate: Option<f64>) -> Stream {
    Stream {
        id: format!("{}-{}", open.connection, open.sequence),
        listener: open.listener,
        route: Cow::Borrowed(open.route.name()),
        model,
        doing: Cow::Borrowed(open.doing.as_str()),
        age_ms: milliseconds(open.age),
        waited_ms: open.waited.map(milliseconds),
        ttft_ms: open.first_token.map(milliseconds),
        tokens: open.tokens,
        max_tokens: open.max_tokens,
        request_bytes: open.request_bytes,
        tokens_per_second: rate.map(|rate| (rate * 10.0).round() / 10.0),
    }
}

fn sums(all: &[Stats], streams: Vec<Stream>) -> snapshot::InFlight {
    let of = |number: fn(&Stats) -> u64| all.iter().map(number).sum::<u64>();
    let phases = || all.iter().flat_map(|stats| &stats.phases);
    let requests = phases().map(|phase| phase.requests).sum();
    let oldest = phases().filter(|phase| phase.requests > 0).map(|phase| phase.oldest).max();
    let in_phase = |phase: Phase| all.iter().map(move |stats| &stats.phases[phase as usize]);
    let number = |phase| in_phase(phase).map(|phase| phase.requests).sum();
    let some = |phase: &&Phases| phase.requests > 0;
    snapshot::InFlight {
        requests,
        waiting: number(Phase::WaitingFirstToken),
        unstreamed: number(Phase::Unstreamed),
        streaming: number(Phase::Streaming),
        blocked: of(|stats| stats.blocked),
        stalled: of(|stats| stats.stalled),
        oldest_seconds: oldest.map(seconds),
        longest_wait_seconds: in_phase(Phase::WaitingFirstToken)
            .filter(some)
            .map(|phase| phase.waited)
            .max()
            .map(seconds),
        left_out: requests.saturating_sub(streams.len() as u64),
        streams,
    }
}

fn listener(name: &str, stats: &Stats) -> snapshot::Listener {
    let is_pending = stats.verdict.rule.is_some();
    snapshot::Listener {
        name: name.to_owned(),
        state: stats.verdict.state.as_str().to_owned(),
        silent_seconds: is_pending.then(|| seconds(stats.verdict.silent)),
        bound_seconds: is_pending.then(|| seconds(stats.verdict.bound)),
        ..snapshot::Listener::default()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Seconds, rounded down to whole milliseconds.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

/// Maximum age of a request in the list of slow requests.
const SLOW_MAX_AGE: Duration = Duration::from_secs(300);

/// The slowest requests, slowest first.
fn slowest(kept: &Kept, now: Instant) -> Vec<Slow> {
    let all = [&kept.latest, &kept.slowest_first_token, &kept.longest_gap];
    let recent = |kept: &&Arc<Finished>| now.saturating_duration_since(kept.ended()) <= SLOW_MAX_AGE;
    let waited = |kept: &Arc<Finished>| Some((longest_wait(&kept.record)?, Arc::clone(kept)));
    let mut slow: Vec<(Duration, Arc<Finished>)> =
        all.into_iter().flatten().filter(recent).filter_map(waited).collect();
    // Connection and request number break ties, so that the order is stable and duplicates (from several lists) are
    // adjacent.
    let id = |kept: &Finished| (kept.record.connection, kept.record.sequence);
    slow.sort_by(|(a, one), (b, other)| b.cmp(a).then(id(one).cmp(&id(other))));
    slow.dedup_by(|(_, a), (_, b)| id(a) == id(b));
    slow.truncate(MAX_SLOW);
    slow.iter().map(|(wait, kept)| slow_request(*wait, kept, now)).collect()
}

/// The longest time that the client waited for a token: the first, a later one, or one that never arrived. `None` for
/// non-streamed responses, which normally take long, and for incomplete requests.
fn longest_wait(record: &Record) -> Option<Duration> {
    let first = match record.times.first_token {
        Some(first) => record.since_requested(Some(first)),
        None if record.outcome.is_ok() || record.labels.streaming != Some(true) => None,
        None => record.since_requested(Some(record.times.ended)),
    };
    first.max(record.gaps.longest_pause)
}

fn slow_request(wait: Duration, kept: &Finished, now: Instant) -> Slow {
    let (record, labels) = (&kept.record, &kept.record.labels);
    let since = |then: Option<Duration>| record.since_requested(then).map(fractional_ms);
    let requested = record.times.requested.unwrap_or_default();
    let model = labels.response_model.as_deref().or(labels.request_model.as_deref());
    Slow {
        id: format!("{}-{}", record.connection, record.sequence),
        listener: labels.listener,
        route: Cow::Borrowed(labels.route.name()),
        model: model.map(str::to_owned),
        outcome: record.outcome.as_str().to_owned(),
        ended_seconds_ago: (now.saturating_duration_since(kept.ended()).as_secs_f64() * 10.0).round() / 10.0,
        longest_wait_ms: fractional_ms(wait),
        queue_ms: record.engine.queue.map(|queue| fractional_ms(queue.value)),
        headers_ms: since(record.times.headers),
        ttft_ms: since(record.times.first_token),
        last_token_ms: since(record.times.last_token),
        duration_ms: fractional_ms(record.times.ended.saturating_sub(requested)),
        longest_gap_ms: record.gaps.longest.map(fractional_ms),
        blocked_ms: fractional_ms(record.blocked.total()),
        input_tokens: record.tokens.input.map(|count| count.tokens),
        output_tokens: record.tokens.output.map(|count| count.tokens),
        output_source: record.tokens.output.map(|count| count.source.as_str().to_owned()),
        decode_tokens_per_second: record.rate.exact.or(record.rate.at_least).map(tenths),
        events_per_point: kept.line.as_deref().map(|line| line.events_per_point()),
        points: kept.line.as_deref().map_or_else(Vec::new, |line| {
            let point = |point: tokometer_observe::measure::Point| {
                let at = fractional_ms(point.at.saturating_sub(requested));
                (at, point.tokens, fractional_ms(point.longest_gap))
            };
            line.points().map(point).collect()
        }),
    }
}

/// Milliseconds, rounded down to whole microseconds.
fn fractional_ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

fn tenths(rate: f64) -> f64 {
    (rate * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::{Stage, record};
    use tokometer_decode::Route;
    use tokometer_observe::measure::{Labels, Opening, Outcome, Requested, Watches};

    fn after(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A stream on connection `connection` that began at `at` (seconds) and requested `model`.
    fn open(stage: &Stage, connection: u64, at: f64, model: &str) -> Watches {
        let started = stage.began + after(at);
        let opening = Opening { listener: 0, route: Route::Chat, connection, sequence: 0, started };
        let mut watch = stage.sink.opened(&opening);
        assert!(!watch.is_empty());
        let request = Requested { model: Some(model), streaming: Some(true), bytes: 400, ..Requested::default() };
        watch.requested(&request, Duration::ZERO);
        watch
    }

    #[test]
    fn oldest_streams_are_listed_and_the_rest_counted() {
        let stage = Stage::new();
        let models = ["a", "b", "c"];
        let mut all: Vec<Watches> =
            (0..2500).map(|n| open(&stage, n, n as f64 / 1000.0, models[n as usize % 3])).collect();
        // Every other stream receives ten tokens per second.
        for watch in all.iter_mut().step_by(2) {
            (0..20).for_each(|token| watch.token(after(0.1 * f64::from(token)), 1));
        }
        let view = View::new(Arc::clone(&stage.in_flight));
        let reported = view.look(stage.began + after(5.0)).in_flight;
        assert_eq!((reported.requests, reported.waiting, reported.streaming), (2500, 1250, 1250));
        assert_eq!((reported.streams.len(), reported.left_out), (MAX_STREAMS, 500));
        assert_eq!(reported.oldest_seconds, Some(5.0));
        assert!(reported.streams.windows(2).all(|listener| listener[0].age_ms >= listener[1].age_ms));
        let [streaming, waiting] = &reported.streams[..2] else { panic!("fewer than two streams") };
        assert_eq!((streaming.id.as_str(), &*streaming.doing, streaming.tokens), ("0-0", "decode", 20));
        assert_eq!((waiting.id.as_str(), &*waiting.doing, waiting.ttft_ms), ("1-0", "prefill", None));
        // In the first snapshot the rate covers the time since the first token: 19 tokens in 5 s.
        assert_eq!((streaming.tokens_per_second, waiting.tokens_per_second), (Some(3.8), None));
        drop(all);
        assert_eq!(view.look(stage.began + after(6.0)).in_flight, snapshot::InFlight::default());
    }

    #[test]
    fn streams_refer_to_models_by_index() {
        let stage = Stage::new();
        let _all: Vec<_> = ["x", "y", "x"].iter().zip(0..).map(|(model, n)| open(&stage, n, n as f64, model)).collect();
        let reported = View::new(Arc::clone(&stage.in_flight)).look(stage.began + after(9.0));
        let places: Vec<_> = reported.in_flight.streams.iter().map(|stream| stream.model).collect();
        assert_eq!((reported.models, places), (vec!["x".to_owned(), "y".to_owned()], vec![Some(0), Some(1), Some(0)]));
    }

    #[test]
    fn idle_engine_has_no_silence() {
        let stage = Stage::new();
        let view = View::new(Arc::clone(&stage.in_flight));
        let idle = view.look(stage.began + after(9.0));
        assert_eq!((idle.listeners[0].state.as_str(), idle.listeners[0].silent_seconds), ("idle", None));
        let _waits = open(&stage, 1, 10.0, "m");
        let reported = view.look(stage.began + after(12.0));
        assert_eq!(
            (reported.listeners[0].state.as_str(), reported.listeners[0].silent_seconds),
            ("working", Some(2.0))
        );
        assert_eq!(reported.in_flight.longest_wait_seconds, Some(2.0));
    }

    /// A request that began `at` seconds after `start`; `first` and `gap` in milliseconds.
    fn finished(start: Instant, connection: u64, at: u64, first: Option<u64>, gap: Option<u64>) -> Arc<Finished> {
        let record = record(start + Duration::from_secs(at));
        let labels = Labels { streaming: Some(true), ..(*record.labels).clone() };
        let outcome = if first.is_some() { Outcome::Ok } else { Outcome::ClientAbortBeforeFirstToken };
        let record = record.with(|r| {
            r.connection = connection;
            r.outcome = outcome;
            r.labels = Arc::new(labels);
            r.times.first_token = first.map(Duration::from_millis);
            r.gaps.longest_pause = gap.map(Duration::from_millis);
        });
        Arc::new(Finished { record: Arc::new(record), line: None })
    }

    #[test]
    fn slowest_come_first_by_any_wait_without_duplicates() {
        let start = Instant::now();
        let late = finished(start, 1, 0, Some(900), Some(10));
        let gap = finished(start, 2, 0, Some(10), Some(950));
        // The client disconnected after one second, before the first token.
        let never = finished(start, 3, 0, None, None);
        let quick = finished(start, 4, 0, Some(5), Some(5));
        let kept = Kept {
            latest: vec![quick, Arc::clone(&gap), never, Arc::clone(&late)],
            slowest_first_token: vec![Arc::clone(&late)],
            longest_gap: vec![gap],
        };
        let all = slowest(&kept, start + Duration::from_secs(2));
        let reported: Vec<_> = all.iter().map(|slow| (slow.id.as_str(), slow.longest_wait_ms)).collect();
        assert_eq!(reported, [("3-0", 1000.0), ("2-0", 950.0), ("1-0", 900.0), ("4-0", 5.0)]);
        assert_eq!((all[0].ttft_ms, all[0].ended_seconds_ago, all[0].points.len()), (None, 1.0, 0));
    }

    #[test]
    fn old_requests_are_left_out_and_the_list_is_bounded() {
        let start = Instant::now();
        let mut latest = vec![finished(start, 100, 0, Some(9000), None)];
        latest.extend((1..=9).map(|n| finished(start, n, 300, Some(n), None)));
        let kept = Kept { latest, ..Kept::default() };
        let all = slowest(&kept, start + Duration::from_secs(302));
        let reported: Vec<&str> = all.iter().map(|slow| slow.id.as_str()).collect();
        assert_eq!(reported, ["9-0", "8-0", "7-0", "6-0", "5-0"]);
    }
}
