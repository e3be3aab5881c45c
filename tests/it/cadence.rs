//! Stall detection for streams with many tokens per event, with times set by the tests.

use std::time::Duration;

use tokometer::replay::{Recording, Replayed, replay};
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::Record;
use tokometer_observe::observer;
use tokometer_telemetry::slo::{Exclusion, Goal, Objective, Reason, Scope, Settings, Verdict, verdict};

use crate::endings::{DELTA, DONE, FINISH, HEAD, LAST, REQUEST, Wire, chunk};
use crate::truth::captures;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A stream of events with tokens, separated by these gaps in milliseconds.
fn stream(gaps: &[u64]) -> Wire {
    let mut wire = Wire::asked().server(HEAD).events(&[DELTA]);
    for gap in gaps {
        wire.now += ms(gap - 1);
        wire = wire.events(&[DELTA]);
    }
    wire
}

fn complete(wire: Wire) -> Record {
    ended(wire.events(&[FINISH, DONE]).server(LAST))
}

fn ended(wire: Wire) -> Record {
    let Replayed { mut records, .. } = wire.close(Close::Finished { first: Side::Client });
    records.pop().expect("one record")
}

/// The verdict of the default stall objective, which has a limit of 5 s.
fn slo(record: &Record) -> Verdict {
    let goal = Goal::Stall { longest: ms(5000) };
    let objective = Objective { name: "stall".to_owned(), target: 0.99, scope: Scope::default(), goal };
    verdict(record, Some("m"), &objective, &Settings::none())
}

#[test]
fn steady_stream_of_fifty_tokens_per_event_has_no_stall() {
    // The cases: 32 ms per token, 105 ms per token, and irregular gaps like those measured with vLLM on a CPU.
    for gaps in [[1600; 6], [5250; 6], [1600, 2900, 1700, 2500, 1600, 300]] {
        let record = complete(stream(&gaps));
        assert_eq!((record.gaps.stalls, slo(&record)), (Some(0), Verdict::Good), "{gaps:?}");
        assert_eq!(record.gaps.longest, gaps.iter().max().map(|gap| ms(*gap)), "the gap is recorded as it was");
        assert!(record.gaps.longest_pause.is_none_or(|pause| pause <= ms(1000)), "{:?}", record.gaps.longest_pause);
    }
}

#[test]
fn stop_is_a_stall_at_any_number_of_tokens_per_event() {
    for (usual, stop) in [(30, 6030), (1600, 7600), (5250, 11_250)] {
        for place in 0..8 {
            let mut gaps = [usual; 8];
            gaps[place] = stop;
            let record = complete(stream(&gaps));
            assert_eq!(
                (record.gaps.stalls, record.gaps.longest_pause),
                (Some(1), Some(ms(stop))),
                "{place} of {usual}"
            );
            assert_eq!(slo(&record), Verdict::Bad(Reason::Stalled));
        }
    }
}

#[test]
fn silence_before_a_cancel_is_judged_by_the_cadence() {
    let cancelled = |gaps: &[u64], silence| {
        let mut wire = stream(gaps);
        wire.now += ms(silence);
        slo(&ended(wire))
    };
    assert_eq!(cancelled(&[5250; 4], 5200), Verdict::Good);
    assert_eq!(cancelled(&[5250; 4], 11_000), Verdict::Bad(Reason::Stalled));
    assert_eq!(cancelled(&[30; 4], 5200), Verdict::Bad(Reason::Stalled));
    assert_eq!(cancelled(&[], 5200), Verdict::Good, "perhaps the second event holds 50 tokens");
    assert_eq!(cancelled(&[], 10_100), Verdict::Bad(Reason::Stalled));
}

/// Tokometer is stopped for 2.5 s while the engine sends a token every 30 ms.
#[test]
fn pause_of_tokometer_itself_is_not_a_stall_of_the_engine() {
    let frozen = |reported: Duration| {
        let mut wire = stream(&[30; 5]);
        wire.now += ms(2499);
        wire.observer.late(reported);
        let mut wire = wire.server(&chunk(DELTA).repeat(83));
        for _ in 0..5 {
            wire.now += ms(29);
            wire = wire.events(&[DELTA]);
        }
        wire.events(&[FINISH, DONE]).server(LAST).close(Close::Finished { first: Side::Client })
    };
    let Replayed { records, gaps, .. } = frozen(ms(2450));
    let record = &records[0];
    assert_eq!(
        (record.gaps.stalls, record.gaps.late, record.tokens.chunks),
        (None, ms(2450), 94),
        "the engine may have paused, too"
    );
    assert_eq!(slo(record), Verdict::Excluded(Exclusion::Unknown));
    assert_eq!((record.gaps.longest, record.gaps.longest_pause), (Some(ms(30)), Some(ms(30))));
    assert_eq!(gaps.iter().map(|gap| gap.gap).collect::<Vec<_>>(), [ms(30); 10], "none from the batch read late");
    assert_eq!(frozen(Duration::ZERO).records[0].gaps.stalls, Some(1), "the engine's own pause");
}

#[test]
fn stall_of_the_engine_remains_when_tokometer_was_late_for_a_part_of_it() {
    let mut wire = stream(&[30; 5]);
    wire.now += ms(7999);
    wire.observer.late(ms(1000));
    let record = complete(wire.events(&[DELTA]));
    assert_eq!((record.gaps.stalls, record.gaps.longest_pause, record.gaps.late), (Some(1), Some(ms(7000)), ms(1000)));
    assert_eq!(slo(&record), Verdict::Bad(Reason::Stalled));
}

#[test]
fn request_that_waited_for_tokometer_records_how_long() {
    let mut wire = Wire::open();
    wire.observer.late(ms(2450));
    let mut wire = wire.client(REQUEST);
    wire.observer.waited(ms(2198), wire.now);
    assert_eq!(complete(wire.server(HEAD).events(&[DELTA])).gaps.late, ms(2198));
    // A delay of the observer between two requests is recorded for neither of them.
    let mut wire = stream(&[30; 5]).events(&[FINISH, DONE]).server(LAST);
    wire.observer.late(ms(500));
    let Replayed { records, .. } = wire.client(REQUEST).close(Close::Finished { first: Side::Client });
    assert_eq!(records.iter().map(|record| record.gaps.late).collect::<Vec<_>>(), [Duration::ZERO; 2]);
}

/// Replays recordings of engines with a stream interval. The time between reads is set to 1.6 s, that is, 32 ms per
/// token for a read of 50 tokens.
#[test]
fn recordings_with_a_stream_interval_have_no_stall_at_any_speed() {
    let cases = [
        "vllm-0.32.0/stream-interval-chat",
        "vllm-0.32.0/stream-interval-chat-continuous",
        "vllm-0.32.0-rustfe/stream-interval-chat",
        "vllm-0.32.0-rustfe/stream-interval-chat-continuous",
    ];
    for case in cases {
        let mut recording = Recording::read(&captures().join(format!("{case}.jsonl"))).expect("the recording exists");
        let mut record = |stop: Duration| {
            let half = recording.reads.len() / 2;
            for (place, (at, _)) in recording.reads.iter_mut().enumerate() {
                *at = ms(1600) * place as u32 + if place >= half { stop } else { Duration::ZERO };
            }
            recording.end = None;
            replay(&recording, &observer::Settings::default()).records.pop().expect("one record")
        };
        let steady = record(Duration::ZERO);
        assert!(steady.gaps.longest >= Some(ms(1600)) && steady.tokens.chunks > 8, "{case}: {steady:?}");
        assert_eq!((steady.gaps.stalls, slo(&steady)), (Some(0), Verdict::Good), "{case}");
        let stopped = record(ms(30_000));
        assert_eq!(
            (stopped.gaps.stalls, slo(&stopped)),
            (Some(1), Verdict::Bad(Reason::Stalled)),
            "{case}: {stopped:?}"
        );
    }
}
