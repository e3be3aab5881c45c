//! A missed target is counted while its request is still pending, and only once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tokometer_decode::Route;
use tokometer_observe::measure::{Opening, Outcome, Record, Requested, Sink, Targets, Watches};
use tokometer_telemetry::live;
use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::{Evaluator, Goal, Pending, Reason, Settings};

use super::{good, ms, only};

/// Open requests by sequence number. The duration is how long a request has waited for its first token; `None` after
/// the token.
#[derive(Debug, Default)]
struct Table(BTreeMap<u64, Option<Duration>>);

impl Table {
    fn sweep(&self, evaluate: &Evaluator, now: Instant) {
        let pending = |(sequence, waited): (&u64, &Option<Duration>)| Pending {
            connection: 1,
            sequence: *sequence,
            route: Route::Chat,
            request_model: Some("m"),
            waited: *waited,
            request_bytes: 4000,
            targets: None,
        };
        evaluate.sweep(|see| self.0.iter().for_each(|request| see(&pending(request))), now);
    }
}

fn settings() -> Settings {
    only(Goal::FirstToken { base: ms(2000), per_1k_uncached: Duration::ZERO })
}

fn bad(evaluate: &Evaluator) -> u64 {
    evaluate.evaluated().iter().map(|one| one.counts.all_bad()).sum()
}

/// The record of a request whose client disconnected after it had waited this long.
fn gave_up(sequence: u64, waited: Duration) -> Record {
    good().with(|r| {
        r.sequence = sequence;
        r.outcome = Outcome::ClientAbortBeforeFirstToken;
        r.times.first_token = None;
        r.times.last_token = None;
        r.times.ended = ms(10) + waited;
    })
}

#[test]
fn overdue_request_is_counted_once_before_it_ends() {
    let now = Instant::now();
    let evaluate = Evaluator::new(settings());
    let mut table = Table::default();
    table.0.insert(1, Some(ms(1999)));
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    assert_eq!(bad(&evaluate), 0);
    table.0.insert(1, Some(ms(2001)));
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    assert_eq!(bad(&evaluate), 1, "counted by the second sweep");
    table.0.insert(1, None);
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    table.0.clear();
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now + ms(59_999));
    evaluate.evaluate(&gave_up(1, ms(9000)));
    assert_eq!(bad(&evaluate), 1, "a late record is not counted again");
    evaluate.evaluate(&gave_up(1, ms(9000)));
    assert_eq!(bad(&evaluate), 2, "the note must be gone");
}

#[test]
fn queued_requests_with_late_tokens_are_late_and_none_is_missing() {
    let now = Instant::now();
    let evaluate = Evaluator::new(settings());
    let table = Table((0..240).map(|sequence| (sequence, Some(ms(2001)))).collect());
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now + ms(1000));
    for sequence in 0..240 {
        let late = good().with(|r| {
            r.connection = 1;
            r.sequence = sequence;
            r.times.first_token = Some(ms(9000));
            r.times.last_token = Some(ms(9500));
        });
        evaluate.evaluate(&late.with(|r| r.times.ended = ms(9500)));
    }
    evaluate.evaluate(&gave_up(240, ms(2500)));
    let evaluated = evaluate.evaluated();
    let of = |reason| evaluated.iter().map(|one| one.counts.bad[&reason]).sum::<u64>();
    assert_eq!((of(Reason::LateFirstToken), of(Reason::NoFirstToken), bad(&evaluate)), (240, 1, 241));
}

#[test]
fn note_without_a_record_expires_after_a_minute() {
    let evaluate = Evaluator::new(settings());
    let now = Instant::now();
    let table = Table([(1, Some(ms(2001)))].into());
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    evaluate.sweep(|_| (), now);
    evaluate.sweep(|_| (), now + ms(60_000));
    evaluate.evaluate(&gave_up(1, ms(9000)));
    assert_eq!(bad(&evaluate), 2, "another request with the same number");
}

#[test]
fn scaled_limit_is_missed_only_when_certain() {
    let now = Instant::now();
    let per_1k = Goal::FirstToken { base: ms(2000), per_1k_uncached: ms(500) };
    let evaluate = Evaluator::new(only(per_1k));
    let mut table = Table::default();
    // 4000 bytes are at most 4000 tokens, which extend the limit by two seconds.
    table.0.insert(1, Some(ms(4000)));
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    assert_eq!(bad(&evaluate), 0);
    table.0.insert(1, Some(ms(4001)));
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    assert_eq!(bad(&evaluate), 1);
}

#[test]
fn goodput_is_missed_with_the_first_token() {
    let now = Instant::now();
    let mut both = settings();
    let goodput =
        tokometer_telemetry::slo::Objective { name: "g".to_owned(), goal: Goal::Goodput, ..both.objectives[0].clone() };
    both.objectives.push(goodput);
    let evaluate = Evaluator::new(both);
    let table = Table([(1, Some(ms(2001)))].into());
    table.sweep(&evaluate, now);
    table.sweep(&evaluate, now);
    assert_eq!(bad(&evaluate), 2);
    evaluate.evaluate(&gave_up(1, ms(9000)));
    assert_eq!(bad(&evaluate), 2);
}

/// Watches a request from its opening on, as the data path does.
fn open(in_flight: &InFlight, sequence: u64, started: Instant, request: Requested<'_>) -> Watches {
    let mut watch = in_flight.opened(&Opening { sequence, ..opening(started) });
    assert!(!watch.is_empty());
    watch.requested(&request, ms(10));
    watch
}

#[test]
fn data_path_registers_pending_requests() {
    let evaluate = Evaluator::new(settings());
    let start = Instant::now();
    let in_flight = InFlight::start(live::Settings::default(), &["a".to_owned()], start).unwrap();
    let stream = Requested { model: Some("m"), streaming: Some(true), ..Requested::default() };
    let own = Targets { first_token: Some(ms(9000)), ..Targets::default() };
    let waits = open(&in_flight, 0, start, stream);
    let mut response_complete = open(&in_flight, 1, start, stream);
    response_complete.token(ms(500), 1);
    let mut refused = open(&in_flight, 2, start, stream);
    refused.response_started(503, false);
    let whole = open(&in_flight, 3, start, Requested { streaming: Some(false), ..stream });
    let patient = open(&in_flight, 4, start, Requested { targets: Some(&own), ..stream });
    let mut gone = Some(open(&in_flight, 5, start, stream));
    evaluate.look(&in_flight, start + ms(2010));
    evaluate.look(&in_flight, start + ms(2010));
    assert_eq!(bad(&evaluate), 0, "a wait exactly at the limit is good");
    evaluate.look(&in_flight, start + ms(2011));
    drop(gone.take());
    evaluate.look(&in_flight, start + ms(3000));
    assert_eq!(bad(&evaluate), 1, "only the pending request; the one that left gets a record");
    evaluate.look(&in_flight, start + ms(9011));
    evaluate.look(&in_flight, start + ms(9012));
    assert_eq!(bad(&evaluate), 2, "also the one with its own target");
    let late = gave_up(0, ms(9010));
    waits.ended(&Arc::new(late.clone()));
    evaluate.evaluate(&Record { connection: 1, ..late });
    assert_eq!(bad(&evaluate), 2);
    for watch in [response_complete, refused, whole, patient] {
        drop(watch);
    }
}

fn opening(started: Instant) -> Opening {
    Opening { listener: 0, route: Route::Chat, connection: 1, sequence: 0, started }
}

/// An event of one of four request slots, or a sweep.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Waits one more second. Opens a request first if the slot has none.
    Wait(u64),
    /// The first token arrives.
    Token(u64),
    /// The request ends. Its record arrives after this many steps.
    End(u64, usize),
    Look,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..4_u64;
    let step = prop_oneof![
        4 => which.clone().prop_map(Step::Wait),
        1 => which.clone().prop_map(Step::Token),
        1 => (which, 0..8_usize).prop_map(|(which, late)| Step::End(which, late)),
        3 => Just(Step::Look),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn interleaved_sweeps_and_ends_count_each_request_once(steps in steps()) {
        let evaluate = Evaluator::new(settings());
        let (mut table, mut waits) = (Table::default(), BTreeMap::new());
        let (mut misses, mut next, mut held) = (0, BTreeMap::<u64, u64>::new(), Vec::new());
        let mut now = Instant::now();
        for (n, step) in steps.into_iter().enumerate() {
            for (_, record) in held.extract_if(.., |(due, _)| *due <= n) {
                evaluate.evaluate(&record);
            }
            match step {
                Step::Wait(which) => {
                    let id = which + 10 * next.get(&which).copied().unwrap_or(0);
                    let waited = waits.entry(id).or_insert((Duration::ZERO, false));
                    if !waited.1 {
                        waited.0 += ms(1000);
                        table.0.insert(id, Some(waited.0));
                    }
                }
                Step::Token(which) => {
                    let id = which + 10 * next.get(&which).copied().unwrap_or(0);
                    if let Some(waited) = waits.get_mut(&id) {
                        waited.1 = true;
                        table.0.insert(id, None);
                    }
                }
                Step::End(which, late) => {
                    let id = which + 10 * next.get(&which).copied().unwrap_or(0);
                    if let Some((waited, token)) = waits.remove(&id) {
                        table.0.remove(&id);
                        *next.entry(which).or_default() += 1;
                        misses += u64::from(waited > ms(2000));
                        let ended = gave_up(id, waited);
                        let first_token = token.then_some(ended.times.ended);
                        let record = ended
                            .with(|r| (r.times.first_token, r.times.last_token) = (first_token, first_token));
                        if late > 0 { held.push((n + late, record)) } else { evaluate.evaluate(&record) }
                    }
                }
                // A record is at most seven steps late. Seven sweeps are less than a minute, after which the evaluator
                // no longer expects the record.
                Step::Look => {
                    now += ms(7000);
                    table.sweep(&evaluate, now);
                }
            }
        }
        for (_, record) in held {
            evaluate.evaluate(&record);
        }
        let open = waits.values().filter(|(waited, _)| *waited > ms(2000)).count() as u64;
        let counted = bad(&evaluate);
        prop_assert!((misses..=misses + open).contains(&counted), "{counted} of {misses} ended and {open} open");
    }
}
