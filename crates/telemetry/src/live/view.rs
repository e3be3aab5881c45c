//! Builds the request part of a snapshot from the table, the totals and the store of finished requests.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use crate::live::InFlight;
use crate::live::history;
use crate::live::pace::Pace;
use crate::live::slow;
use crate::live::snapshot;
use crate::live::snapshot::MOST_STREAMS;
use crate::live::snapshot::Snapshot;
use crate::live::snapshot::Stream;
use crate::live::stats::Phases;
use crate::live::stats::Stats;
use crate::live::table::Open;

/// Builds snapshots. Keeps the streams' recent token counts between two calls.
#[derive(Debug)]
pub struct View {
    in_flight: Arc<InFlight>,
    pace: Mutex<Pace>,
}

impl View {
    /// Creates a view of these requests.
    pub fn new(in_flight: Arc<InFlight>) -> View {
        View { in_flight, pace: Mutex::default() }
    }

    /// The part of a snapshot that covers requests and engine state; all other fields keep their defaults.
    pub fn look(&self, now: Instant) -> Snapshot {
        let (totals, history) = (self.in_flight.totals(), self.in_flight.history());
        let (stats, open) = self.in_flight.survey(now, MOST_STREAMS);
        let (streams, models) = self.streams(&open, now);
        let [ttft_seconds, decode_tokens_per_second] = history.distributions(now, &totals);
        Snapshot {
            pairs: self.in_flight.pairs().zip(&stats).map(|(name, stats)| pair(name, stats)).collect(),
            models,
            in_flight: sums(&stats, streams),
            rates: history.rates(now, &totals),
            ttft_seconds,
            decode_tokens_per_second,
            slowest: slow::slowest(&self.in_flight.kept(now), now),
            since_start: snapshot::SinceStart {
                tokens: totals.tokens,
                exchanges: history::by_outcome(&totals),
                unwatched: self.in_flight.untracked(),
            },
            ..Snapshot::default()
        }
    }

    /// The streams, and the model names that they refer to.
    fn streams(&self, open: &[Open], now: Instant) -> (Vec<Stream>, Vec<String>) {
        let rates = self.pace.lock().unwrap_or_else(PoisonError::into_inner).look(now, open);
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
        pair: open.pair,
        route: Cow::Borrowed(open.route),
        model,
        doing: Cow::Borrowed(open.doing),
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
    let exchanges = phases().map(|phase| phase.exchanges).sum();
    let oldest = phases().filter(|phase| phase.exchanges > 0).map(|phase| phase.oldest).max();
    let waiting = all.iter().map(|stats| &stats.phases[0]);
    let some = |phase: &&Phases| phase.exchanges > 0;
    snapshot::InFlight {
        exchanges,
        waiting: of(|stats| stats.phases[0].exchanges),
        streaming: of(|stats| stats.phases[1].exchanges),
        held_up: of(|stats| stats.verdict.held_up),
        stalled: of(|stats| stats.stalled),
        oldest_seconds: oldest.map(seconds),
        longest_wait_seconds: waiting.filter(some).map(|phase| phase.waited).max().map(seconds),
        left_out: exchanges.saturating_sub(streams.len() as u64),
        streams,
    }
}

fn pair(name: &str, stats: &Stats) -> snapshot::Pair {
    let owes = stats.verdict.rule.is_some();
    snapshot::Pair {
        name: name.to_owned(),
        state: stats.verdict.state.as_str().to_owned(),
        silent_seconds: owes.then(|| seconds(stats.verdict.silent)),
        bound_seconds: owes.then(|| seconds(stats.verdict.bound)),
        ..snapshot::Pair::default()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Rounded to the millisecond.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::Stage;
    use tokometer_decode::Route;
    use tokometer_observe::measure::Opening;
    use tokometer_observe::measure::Requested;
    use tokometer_observe::measure::Watches;

    fn after(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A stream on connection `connection` that began at `at` (seconds) and requested `model`.
    fn open(stage: &Stage, connection: u64, at: f64, model: &str) -> Watches {
        let started = stage.began + after(at);
        let opening = Opening { pair: 0, route: Route::Chat, connection, sequence: 0, started };
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
        // Half of them stream, at ten tokens per second.
        for watch in all.iter_mut().step_by(2) {
            (0..20).for_each(|token| watch.token(after(0.1 * f64::from(token)), 1));
        }
        let view = View::new(Arc::clone(&stage.in_flight));
        let told = view.look(stage.began + after(5.0)).in_flight;
        assert_eq!((told.exchanges, told.waiting, told.streaming), (2500, 1250, 1250));
        assert_eq!((told.streams.len(), told.left_out), (MOST_STREAMS, 500));
        assert_eq!(told.oldest_seconds, Some(5.0));
        assert!(told.streams.windows(2).all(|pair| pair[0].age_ms >= pair[1].age_ms));
        let [streaming, waiting] = &told.streams[..2] else { panic!("fewer than two streams") };
        assert_eq!((streaming.id.as_str(), &*streaming.doing, streaming.tokens), ("0-0", "decode", 20));
        assert_eq!((waiting.id.as_str(), &*waiting.doing, waiting.ttft_ms), ("1-0", "prefill", None));
        // The rate is over the whole time since the first token, and tokens stopped long ago.
        assert_eq!((streaming.tokens_per_second, waiting.tokens_per_second), (Some(3.8), None));
        drop(all);
        assert_eq!(view.look(stage.began + after(6.0)).in_flight, snapshot::InFlight::default());
    }

    #[test]
    fn streams_refer_to_models_by_index() {
        let stage = Stage::new();
        let _all: Vec<_> = ["x", "y", "x"].iter().zip(0..).map(|(model, n)| open(&stage, n, n as f64, model)).collect();
        let told = View::new(Arc::clone(&stage.in_flight)).look(stage.began + after(9.0));
        let places: Vec<_> = told.in_flight.streams.iter().map(|stream| stream.model).collect();
        assert_eq!((told.models, places), (vec!["x".to_owned(), "y".to_owned()], vec![Some(0), Some(1), Some(0)]));
    }

    #[test]
    fn idle_engine_has_no_silence() {
        let stage = Stage::new();
        let view = View::new(Arc::clone(&stage.in_flight));
        let idle = view.look(stage.began + after(9.0));
        assert_eq!((idle.pairs[0].state.as_str(), idle.pairs[0].silent_seconds), ("idle", None));
        let _waits = open(&stage, 1, 10.0, "m");
        let told = view.look(stage.began + after(12.0));
        assert_eq!((told.pairs[0].state.as_str(), told.pairs[0].silent_seconds), ("working", Some(2.0)));
        assert_eq!(told.in_flight.longest_wait_seconds, Some(2.0));
    }
}
