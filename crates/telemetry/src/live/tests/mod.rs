//! Wedge detection and in-flight metrics, with simulated time.

mod simulation;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::live::{Bounds, Doing, InFlight, Reach, Rule, Settings, Signs, State, Verdict};
use tokometer_decode::{OutputLimit, Route};
use tokometer_observe::measure::{Labels, Opening, Outcome, Record, Requested, Sink, Watches};

/// Maximum memory of an open request in bytes, without its observer: state, watch and timeline.
const OPEN_STREAM_BYTES: usize = 704;

/// A successful chat request without further details.
pub(super) fn record(started: Instant) -> Record {
    let labels = Labels { route: Route::Chat, ..Labels::default() };
    let record = Record::new(labels, started, Outcome::Ok, seconds(1.0));
    record.with(|r| {
        r.connection = 1;
        r.times.requested = Some(Duration::ZERO);
    })
}

/// Test setup with one listener and engine. Times are seconds since `began`.
pub(super) struct Stage {
    pub(super) began: Instant,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) sink: Arc<dyn Sink>,
}

/// A request in flight.
pub(super) struct TestRequest {
    began: f64,
    watch: Watches,
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage::with(Settings::default())
    }

    fn with(settings: Settings) -> Stage {
        let began = Instant::now();
        let in_flight = InFlight::start(settings, &["one".to_owned()], began).unwrap();
        let sink = Arc::clone(&in_flight) as Arc<dyn Sink>;
        Stage { began, in_flight, sink }
    }

    /// Opens a request that is not complete yet.
    fn open(&self, route: Route, at: f64) -> TestRequest {
        let started = self.began + seconds(at);
        let opening = Opening { listener: 0, route, connection: 1, sequence: 0, started };
        let watch = self.sink.opened(&opening);
        assert!(!watch.is_empty());
        TestRequest { began: at, watch }
    }

    /// Opens a complete request with an optional `max_tokens`.
    pub(super) fn request(&self, streaming: bool, bytes: u64, max_tokens: Option<u64>, at: f64) -> TestRequest {
        let limit = OutputLimit { largest: max_tokens.unwrap_or(0), certain: max_tokens.is_some() };
        self.limited(streaming, bytes, limit, at)
    }

    /// Opens a complete request with a limit on its output tokens.
    fn limited(&self, streaming: bool, bytes: u64, limit: OutputLimit, at: f64) -> TestRequest {
        let max_tokens = Some(limit.largest).filter(|_| limit.certain);
        let content =
            Requested { model: Some("m"), streaming: Some(streaming), max_tokens, limit, bytes, targets: None };
        let mut request = self.open(Route::Chat, at);
        request.watch.requested(&content, Duration::ZERO);
        request
    }

    /// Opens a stream with a prompt of 400 bytes.
    pub(super) fn stream(&self, at: f64) -> TestRequest {
        self.request(true, 400, None, at)
    }

    pub(super) fn verdict(&self, at: f64) -> Verdict {
        self.in_flight.stats(self.began + seconds(at))[0].verdict
    }

    fn state(&self, at: f64) -> State {
        self.verdict(at).state
    }

    /// Asserts that the engine is wedged by `rule` just after `at`, but not at `at`.
    #[track_caller]
    fn wedged_from(&self, at: f64, rule: Rule) {
        let before = self.verdict(at);
        assert_eq!((before.state, before.rule), (State::Working, Some(rule)), "{before:?}");
        assert_eq!(before.silent, before.bound);
        assert_eq!(self.state(at + 0.001), State::Wedged);
    }
}

impl TestRequest {
    fn since(&self, at: f64) -> Duration {
        seconds(at - self.began)
    }

    pub(super) fn token(mut self, at: f64) -> TestRequest {
        let at = self.since(at);
        self.watch.token(at, 1);
        self
    }

    fn usual_gap(mut self, usual: f64) -> TestRequest {
        self.watch.usual_gap(seconds(usual));
        self
    }

    fn client_blocked(mut self, at: f64) -> TestRequest {
        let at = self.since(at);
        self.watch.client_blocked(at);
        self
    }

    fn resumed(mut self, at: f64) -> TestRequest {
        let at = self.since(at);
        self.watch.resumed(at);
        self
    }
}

#[test]
fn engine_without_pending_requests_is_idle() {
    let stage = Stage::new();
    assert_eq!((stage.state(0.0), stage.state(100_000.0)), (State::Idle, State::Idle));
    let request = stage.stream(100_000.0).token(100_001.0);
    assert_eq!(stage.state(100_002.0), State::Working);
    drop(request);
    assert_eq!((stage.state(100_003.0), stage.verdict(200_000.0).in_flight), (State::Idle, 0));
}

#[test]
fn prompt_length_extends_the_first_token_bound() {
    let stage = Stage::new();
    let _short = stage.stream(10.0);
    // 400 bytes are 100 tokens, half a second at 200 tokens per second.
    stage.wedged_from(10.0 + 120.5, Rule::Prefill);
    let stage = Stage::new();
    let _long = stage.request(true, 80_000, None, 10.0);
    stage.wedged_from(10.0 + 220.0, Rule::Prefill);
    let stage = Stage::new();
    let _endless = stage.request(true, 1 << 40, None, 10.0);
    stage.wedged_from(10.0 + 600.0, Rule::Prefill);
}

#[test]
fn prefill_of_a_minute_is_not_a_wedge_even_while_others_decode() {
    let stage = Stage::new();
    let _alone = stage.request(true, 12_000, None, 0.0);
    assert!((0..=60).all(|second| stage.state(f64::from(second)) == State::Working));
    let stage = Stage::new();
    let _decoding = stage.stream(0.0).token(1.0);
    let _long = stage.request(true, 12_000, None, 1.0);
    // 3,000 tokens add 15 s to the bound between two tokens.
    assert!((1..=61).all(|second| stage.state(f64::from(second)) == State::Working));
    stage.wedged_from(1.0 + 75.0, Rule::Decode);
}

#[test]
fn decoding_stream_is_bound_by_the_time_between_tokens() {
    let stage = Stage::new();
    let stream = stage.stream(0.0).token(5.0).token(6.0);
    stage.wedged_from(66.0, Rule::Decode);
    // The server continues (SIGCONT): the state recovers immediately.
    let _stream = stream.token(500.0);
    assert_eq!(stage.state(500.0), State::Working);
}

#[test]
fn server_that_accepts_no_connections_is_unreachable() {
    let stage = Stage::new();
    let began = stage.began;
    let refuses = move |_: usize, now: Instant| Signs {
        reach: now.checked_duration_since(began + seconds(10.0)).map_or(Reach::Accepts, Reach::Fails),
        ..Signs::default()
    };
    stage.in_flight.set_signs_source(Box::new(refuses));
    let reached = |at: f64| (stage.state(at), stage.state(at).is_healthy());
    assert_eq!((reached(9.0), reached(11.0)), ((State::Idle, true), (State::Unreachable, false)));
    // A server that shuts down still serves its last streams.
    let stream = stage.stream(5.0).token(9.0);
    assert_eq!((stage.state(9.5), stage.state(12.0)), (State::Working, State::Unreachable));
    let stream = stream.token(14.0);
    assert_eq!(stage.state(15.0), State::Working);
    drop(stream);
    assert_eq!(stage.state(15.0), State::Unreachable);
}

#[test]
fn queued_request_is_not_a_wedge_while_others_get_tokens() {
    let stage = Stage::new();
    let _queued = stage.stream(0.0);
    let mut other = stage.stream(0.0);
    for second in 1..1000 {
        other = other.token(f64::from(second));
        assert_eq!(stage.state(f64::from(second) + 0.5), State::Working);
    }
    // The other request has ended; its last token still counts.
    drop(other);
    assert_eq!(stage.state(999.0 + 120.0), State::Working);
    stage.wedged_from(999.0 + 120.5, Rule::Prefill);
}

#[test]
fn silence_continues_across_cancelled_and_retried_requests() {
    let stage = Stage::new();
    // Each client waits for 50 s; the next request starts before that.
    let mut waiting = stage.stream(0.0);
    for n in 1..3 {
        let next = stage.stream(f64::from(n) * 50.0 - 1.0);
        waiting = next;
    }
    stage.wedged_from(120.5, Rule::Prefill);
    drop(waiting);
    // Without pending requests, the engine is idle. A new silence starts with the next request.
    assert_eq!(stage.state(130.0), State::Idle);
    let _again = stage.stream(140.0);
    assert_eq!(stage.state(150.0), State::Working);
    stage.wedged_from(140.0 + 120.5, Rule::Prefill);
}

#[test]
fn client_backpressure_is_not_evidence_of_a_wedge() {
    let stage = Stage::new();
    let stream = stage.stream(0.0).token(1.0).client_blocked(2.0);
    let verdict = stage.verdict(10_000.0);
    assert_eq!((verdict.state, verdict.client_blocked), (State::Idle, 1));
    // The wait for the next token starts when backpressure ends.
    let stream = stream.resumed(10_000.0);
    assert_eq!(stage.state(10_059.0), State::Working);
    stage.wedged_from(10_060.0, Rule::Decode);
    drop(stream.client_blocked(10_061.0));
    assert_eq!(stage.state(10_062.0), State::Idle);
}

#[test]
fn resumed_stream_does_not_inherit_the_silence_of_others() {
    let stage = Stage::new();
    let _prefilling = stage.stream(0.0);
    let _resumed = stage.stream(0.0).token(0.0).client_blocked(1.0).resumed(90.0);
    // The engine has been silent for 90 s. This is too long between two tokens, but not before a first token.
    assert_eq!(stage.state(91.0), State::Working);
    assert_eq!(stage.verdict(91.0).silent, Duration::from_secs(1));
    stage.wedged_from(90.0 + 60.5, Rule::Decode);
}

#[test]
fn incomplete_refused_or_answered_request_is_not_pending() {
    let stage = Stage::new();
    let _sending = stage.open(Route::Chat, 0.0);
    assert_eq!(stage.state(1000.0), State::Idle);
    let mut refused = stage.stream(0.0);
    refused.watch.response_started(500, false);
    assert_eq!(stage.state(1000.0), State::Idle);
    let mut response_complete = stage.stream(0.0).token(1.0);
    response_complete.watch.response_complete();
    assert_eq!((stage.state(1000.0), stage.verdict(1000.0).in_flight), (State::Idle, 3));
}

#[test]
fn session_is_never_pending_but_its_tokens_count_as_progress() {
    let stage = Stage::new();
    let mut session = stage.open(Route::Realtime, 0.0);
    session.watch.requested(&Requested { streaming: Some(true), ..Requested::default() }, Duration::ZERO);
    session.watch.response_started(101, true);
    let _session = session.token(50.0);
    assert_eq!(stage.state(1000.0), State::Idle);
    let _waiting = stage.stream(0.5);
    assert_eq!(stage.verdict(60.0).silent, seconds(10.0));
    assert_eq!(stage.in_flight.open(stage.began + seconds(1000.0), 1)[0].doing, Doing::Session);
}

#[test]
fn non_streamed_response_is_bound_by_its_tokens() {
    let stage = Stage::new();
    let _named = stage.request(false, 400, Some(500), 0.0);
    stage.wedged_from(120.5 + 50.0, Rule::Whole);
    let stage = Stage::new();
    let _unnamed = stage.request(false, 400, None, 0.0);
    stage.wedged_from(120.5 + 1638.4, Rule::Whole);
    let stage = Stage::new();
    let uncertain = |largest| OutputLimit { largest, certain: false };
    let _ignored = stage.limited(false, 400, uncertain(1), 0.0);
    stage.wedged_from(120.5 + 1638.4, Rule::Whole);
    let stage = Stage::new();
    let _larger = stage.limited(false, 400, uncertain(20_000), 0.0);
    stage.wedged_from(120.5 + 2000.0, Rule::Whole);
    let stage = Stage::new();
    let _unlimited = stage.limited(false, 400, uncertain(u64::MAX), 0.0);
    stage.wedged_from(120.5 + 13_107.2, Rule::Whole);
    let stage = Stage::new();
    let mut vectors = stage.open(Route::Embeddings, 0.0);
    vectors.watch.requested(&Requested { bytes: 400, ..Requested::default() }, Duration::ZERO);
    stage.wedged_from(120.5, Rule::Whole);
}

#[test]
fn decode_rule_applies_unless_most_responses_are_not_streamed() {
    let stage = Stage::new();
    let _stream = stage.stream(0.0).token(1.0);
    let _whole = stage.request(false, 400, None, 0.0);
    stage.wedged_from(61.5, Rule::Decode);
    // With two non-streamed responses, the engine may have preempted the stream in their favor.
    let _more = stage.request(false, 400, Some(1000), 0.0);
    stage.wedged_from(1.0 + 120.5 + 1638.4, Rule::Whole);
}

#[test]
fn response_headers_override_the_requested_streaming() {
    let stage = Stage::new();
    let mut request = stage.request(false, 400, None, 0.0);
    request.watch.response_started(200, true);
    stage.wedged_from(120.5, Rule::Prefill);
    let mut request = request.token(1.0);
    request.watch.prefilling(seconds(30.0));
    stage.wedged_from(90.0, Rule::Decode);
}

#[test]
fn non_streamed_success_is_progress_and_an_error_is_not() {
    for (outcome, silent) in [(Outcome::Ok, 49.0), (Outcome::Http5xx, 100.0), (Outcome::ErrorInStream, 100.0)] {
        let stage = Stage::new();
        let _waiting = stage.stream(0.0);
        let whole = stage.request(false, 400, Some(10), 50.0);
        whole.watch.ended(&Arc::new(Record { outcome, ..record(stage.began + seconds(50.0)) }));
        assert_eq!(stage.verdict(100.0).silent, seconds(silent), "{outcome:?}");
    }
}

#[test]
fn unobserved_request_is_kept_once_with_or_without_a_watch() {
    let stage = Stage::new();
    let lost = |tokens: bool| {
        let first_token = tokens.then(|| seconds(0.5));
        Arc::new(record(stage.began).with(|r| {
            r.outcome = Outcome::Unobserved;
            r.times.first_token = first_token;
        }))
    };
    let kept = || stage.in_flight.kept(stage.began + seconds(1.0)).latest.len();
    for (tokens, expected) in [(false, 1), (true, 2)] {
        let mut request = stage.stream(0.0);
        request.watch.response_started(200, true);
        let record = lost(tokens);
        request.watch.ended(&record);
        stage.sink.record(&record);
        assert_eq!(kept(), expected);
    }
    stage.sink.record(&lost(false));
    assert_eq!(kept(), 3, "one request over the limits");
}

#[test]
fn prompt_progress_counts_as_progress() {
    let stage = Stage::new();
    let mut request = stage.stream(0.0);
    request.watch.prefilling(seconds(100.0));
    stage.wedged_from(220.5, Rule::Prefill);
}

#[test]
fn listeners_are_evaluated_separately() {
    let began = Instant::now();
    let names = ["one".to_owned(), "two".to_owned()];
    let in_flight = InFlight::start(Settings::default(), &names, began).unwrap();
    let sink = Arc::clone(&in_flight) as Arc<dyn Sink>;
    let open = |listener| {
        let opening = Opening { listener, route: Route::Chat, connection: 1, sequence: 0, started: began };
        let mut watch = sink.opened(&opening);
        assert!(!watch.is_empty());
        watch.requested(&Requested { streaming: Some(true), ..Requested::default() }, Duration::ZERO);
        watch
    };
    let (mut one, _two) = (open(0), open(1));
    one.token(seconds(299.0), 1);
    let stats = in_flight.stats(began + seconds(300.0));
    assert_eq!(stats.iter().map(|stats| stats.verdict.state).collect::<Vec<_>>(), [State::Working, State::Wedged]);
    assert_eq!(in_flight.listeners().collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn bounds_can_be_reloaded() {
    let stage = Stage::new();
    let _stream = stage.stream(0.0).token(1.0);
    assert_eq!(stage.state(10.0), State::Working);
    let bounds = Bounds { decode: Duration::from_secs(5), ..Bounds::default() };
    stage.in_flight.reload(Settings { bounds, ..Settings::default() });
    stage.wedged_from(6.0, Rule::Decode);
}

#[test]
fn stats_report_ages_and_waits_by_phase_and_stalls() {
    let stage = Stage::new();
    let _waiting = [stage.stream(0.0), stage.stream(2.0)];
    let _fast = stage.stream(3.0).token(9.9);
    let _slow = stage.stream(4.0).token(5.0).usual_gap(0.1);
    let _client_blocked = stage.stream(4.0).token(5.0).client_blocked(5.0);
    let _whole = stage.request(false, 400, None, 1.0);
    let stats = stage.in_flight.stats(stage.began + seconds(10.0))[0];
    let [waiting, unstreamed, streaming] = stats.phases;
    assert_eq!((waiting.requests, waiting.ages, waiting.oldest), (2, seconds(18.0), seconds(10.0)));
    assert_eq!(waiting.waited, seconds(10.0));
    assert_eq!((unstreamed.requests, unstreamed.oldest, unstreamed.waited), (1, seconds(9.0), seconds(9.0)));
    assert_eq!((streaming.requests, streaming.oldest, streaming.waited), (3, seconds(7.0), seconds(5.0)));
    assert_eq!((stats.stalled, stats.verdict.client_blocked, stats.verdict.in_flight), (1, 1, 6));
}

#[test]
fn client_that_left_waits_for_no_first_token_but_the_engine_is_still_expected_to_respond() {
    let stage = Stage::new();
    let mut left = stage.stream(0.0);
    left.watch.client_left();
    left.watch.response_started(200, true);
    let open = stage.in_flight.open(stage.began + seconds(9.0), 1).remove(0);
    assert_eq!((open.doing, open.without_token), (Doing::Prefill, None));
    let _waiting = left.token(10.0);
    assert_eq!(stage.in_flight.open(stage.began + seconds(11.0), 1).remove(0).doing, Doing::Decode);
}

#[test]
fn wait_for_a_first_token_excludes_backpressure() {
    let stage = Stage::new();
    let without_token = |at: f64| stage.in_flight.open(stage.began + seconds(at), 1).remove(0).without_token;
    let mut stream = stage.stream(0.0);
    assert_eq!(without_token(1.0), Some(seconds(1.0)));
    stream.watch.client_blocked(seconds(2.0));
    assert_eq!(without_token(60.0), None);
    stream.watch.resumed(seconds(60.0));
    assert_eq!(without_token(61.0), Some(seconds(1.0)));
}

#[test]
fn engine_is_not_silent_while_the_data_path_does_not_run() {
    let stage = Stage::new();
    let frozen = stage.began + seconds(5.0);
    stage.in_flight.set_overdue(move |now| now.saturating_duration_since(frozen));
    let _stream = stage.stream(0.0).token(4.9).usual_gap(0.03);
    let stats = stage.in_flight.stats(stage.began + seconds(90.0))[0];
    assert_eq!((stats.verdict.state, stats.stalled), (State::Working, 0), "{stats:?}");
    assert_eq!(stats.verdict.silent, seconds(0.1));
}

#[test]
fn stream_is_stalled_only_beyond_its_cadence() {
    let stage = Stage::new();
    let stalled = |at: f64| stage.in_flight.stats(stage.began + seconds(at))[0].stalled;
    let fifty_tokens_per_event = stage.stream(0.0).token(1.0).usual_gap(1.6);
    assert_eq!((stalled(4.1), stalled(4.3)), (0, 1));
    drop(fifty_tokens_per_event);
    let one_token_per_event = stage.stream(0.0).token(1.0).usual_gap(0.03);
    assert_eq!((stalled(1.9), stalled(2.1)), (0, 1));
    drop(one_token_per_event);
    let _first_event = stage.stream(0.0).token(1.0);
    assert_eq!((stalled(10.9), stalled(11.1)), (0, 1));
}

#[test]
fn decode_bound_is_at_least_what_the_cadence_explains() {
    let bounds = Bounds { decode: Duration::from_secs(5), ..Bounds::default() };
    let stage = Stage::with(Settings { bounds, ..Settings::default() });
    let steady = stage.stream(0.0).token(1.0).usual_gap(5.25);
    stage.wedged_from(11.5, Rule::Decode);
    let _other = stage.stream(0.0).token(1.0).usual_gap(0.03);
    stage.wedged_from(6.0, Rule::Decode);
    drop(steady);
}

#[test]
fn requests_in_flight_are_listed_oldest_first() {
    let stage = Stage::new();
    let _young = stage.request(false, 400, Some(7), 8.0);
    let _old = stage.stream(1.0).token(3.0).token(4.0);
    let open = stage.in_flight.open(stage.began + seconds(10.0), 2);
    let doing: Vec<&str> = open.iter().map(|open| open.doing.as_str()).collect();
    assert_eq!(doing, ["decode", "whole"]);
    assert_eq!((open[0].route, open[0].model.as_deref(), open[0].tokens), (Route::Chat, Some("m"), 2));
    assert_eq!(
        (open[0].age, open[0].waited, open[0].first_token),
        (seconds(9.0), Some(seconds(6.0)), Some(seconds(2.0)))
    );
    assert_eq!((open[1].max_tokens, open[1].request_bytes, open[1].first_token), (Some(7), 400, None));
    assert_eq!(open.len(), 2);
    assert_eq!(stage.in_flight.open(stage.began + seconds(10.0), 1), open[..1]);
    assert!(stage.in_flight.open(stage.began + seconds(10.0), 0).is_empty());
    // Open more than twice as many requests as are read, so that the reader drops the youngest requests before it has
    // seen all of them.
    let _more: Vec<_> = (0..9).map(|n| stage.request(false, 400, None, 5.0 + f64::from(n) / 10.0)).collect();
    let oldest = stage.in_flight.open(stage.began + seconds(10.0), 3);
    let ages: Vec<Duration> = oldest.iter().map(|open| open.age).collect();
    assert_eq!(ages, [9.0, 5.0, 4.9].map(seconds));
}

#[test]
fn requests_over_the_limit_are_counted_and_not_watched() {
    let stage = Stage::with(Settings { max_in_flight: 2, ..Settings::default() });
    let opening = Opening { listener: 0, route: Route::Chat, connection: 1, sequence: 0, started: stage.began };
    let first = stage.sink.opened(&opening);
    let second = stage.sink.opened(&opening);
    assert!(!first.is_empty() && !second.is_empty() && stage.sink.opened(&opening).is_empty());
    assert_eq!(stage.in_flight.untracked(), 1);
    drop(first);
    assert!(!stage.sink.opened(&opening).is_empty());
}

#[test]
fn concurrent_reads_never_overstate_the_silence() {
    // Every request takes one microsecond of simulated time and has a token, so a reader must never find a silence
    // above two microseconds.
    let stage = Stage::new();
    let done = std::sync::atomic::AtomicBool::new(false);
    let now = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..30_000_u64 {
                let started = stage.began + Duration::from_micros(n);
                let opening = Opening { listener: 0, route: Route::Chat, connection: 1, sequence: n, started };
                let mut watch = stage.sink.opened(&opening);
                assert!(!watch.is_empty());
                now.store(n, std::sync::atomic::Ordering::SeqCst);
                watch.requested(&Requested { streaming: Some(true), ..Requested::default() }, Duration::ZERO);
                watch.token(Duration::ZERO, 1);
                drop(watch);
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let asked = now.load(std::sync::atomic::Ordering::SeqCst);
            let silent = stage.in_flight.stats(stage.began + Duration::from_micros(asked))[0].verdict.silent;
            assert!(silent <= Duration::from_micros(2), "{silent:?} at {asked}");
        }
    });
}

#[test]
fn open_stream_stays_within_its_memory_budget() {
    // The 64 bytes are the counters of the `Arc` and the entry in the shard.
    let bytes = size_of::<crate::live::requests::Request>() + 64 + size_of::<crate::live::watch::RequestWatch>();
    println!("{bytes} bytes per open stream");
    assert!(bytes <= OPEN_STREAM_BYTES, "{bytes}");
}
