//! Phases of a request are adjacent intervals, whichever times are known.

use std::sync::Arc;
use std::time::Duration;

use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tokometer_decode::EngineTiming;
use tokometer_observe::input::{Close, Direction, Side};
use tokometer_observe::measure::{Blocked, EngineSpan, Labels, Phases, QueueSource, QueueTime, Record, RequestTimes};

use crate::endings::{DELTA, DONE, FINISH, HEAD, LAST, REQUEST, ROLE, Wire};
use crate::export::records::{self, ms};

/// The phases as label, end and active length in milliseconds.
fn reported(record: &Record) -> Vec<(&'static str, u128, u128)> {
    let phases = Phases::of(record);
    phases.iter().map(|part| (part.kind.as_str(), part.to.as_millis(), part.active().as_millis())).collect()
}

fn queue(millis: u64, source: QueueSource) -> Option<QueueTime> {
    Some(QueueTime { value: ms(millis), source })
}

/// A stream: request complete at 10 ms, first token at 210 ms, last token at 1210 ms, end of response at 1220 ms.
fn stream(queue: Option<QueueTime>, timing: EngineTiming) -> Record {
    records::good("m").with(|r| {
        r.engine.queue = queue;
        r.engine.timing = timing;
    })
}

fn whole(queue: Option<QueueTime>, timing: EngineTiming) -> Record {
    let labels = Arc::new(Labels { streaming: Some(false), ..records::labels("m") });
    stream(queue, timing).with(|r| {
        r.labels = labels;
        r.times.first_token = None;
        r.times.last_token = None;
    })
}

const NOTHING: EngineTiming = EngineTiming {
    queue_ms: None,
    prefill_ms: None,
    decode_ms: None,
    prompt_ms: None,
    load_ms: None,
    total_ms: None,
    cached_tokens: None,
    prompt_tokens: None,
    predicted_tokens: None,
    draft_tokens: None,
    accepted_tokens: None,
};

#[test]
fn wait_for_first_token_is_split_by_engine_times() {
    use QueueSource::{EngineSpan, HeaderTiming, InBand, Remainder};
    let prefill = |ms| EngineTiming { prefill_ms: Some(ms), ..NOTHING };
    let ollama = |load| EngineTiming { load_ms: Some(load), prompt_ms: Some(60.0), ..NOTHING };
    type Reported = &'static [(&'static str, u128)];
    let table: [(Option<QueueTime>, EngineTiming, Reported); 11] = [
        (None, NOTHING, &[("waiting", 210)]),
        (None, prefill(150.0), &[("waiting", 60), ("prefill", 210)]),
        (None, prefill(250.0), &[("waiting", 210)]),
        (queue(40, InBand), NOTHING, &[("queue", 50), ("prefill", 210)]),
        (queue(40, InBand), prefill(150.0), &[("preprocessing", 20), ("queue", 60), ("prefill", 210)]),
        (queue(40, EngineSpan), prefill(160.0), &[("preprocessing", 10), ("queue", 50), ("prefill", 210)]),
        // Engine times that do not fit between the observed times are ignored.
        (queue(40, InBand), prefill(170.0), &[("queue", 50), ("prefill", 210)]),
        (queue(201, InBand), prefill(10.0), &[("waiting", 200), ("prefill", 210)]),
        // With this source the headers mark the end of the queue; the engine's prompt time does not change it.
        (queue(40, HeaderTiming), EngineTiming { prompt_ms: Some(9.0), ..NOTHING }, &[("queue", 50), ("prefill", 210)]),
        (
            queue(30, Remainder),
            ollama(100.0),
            &[("load", 110), ("preprocessing", 120), ("queue", 150), ("prefill", 210)],
        ),
        // Ollama's remainder includes time for forwarding tokens after the first one, so the phase is shorter.
        (
            queue(80, Remainder),
            ollama(100.0),
            &[("load", 110), ("preprocessing", 110), ("queue", 150), ("prefill", 210)],
        ),
    ];
    for (queue, timing, expected) in table {
        let phases = reported(&stream(queue, timing));
        let (first, last) = (phases.first().copied(), &phases[phases.len() - 2..]);
        assert_eq!(first, Some(("request", 10, 10)));
        assert_eq!(last, [("decode", 1210, 1000), ("finish", 1220, 10)]);
        let wait: Vec<_> = phases[1..phases.len() - 2].iter().map(|(kind, to, _)| (*kind, *to)).collect();
        assert_eq!(wait, expected, "{queue:?} {timing:?}");
    }
}

#[test]
fn phases_of_non_streamed_response_end_at_its_end() {
    use QueueSource::{InBand, Remainder, ResponseHeader};
    let timing = EngineTiming { prefill_ms: Some(150.0), decode_ms: Some(900.0), ..NOTHING };
    type Reported = &'static [(&'static str, u128)];
    let table: [(Option<QueueTime>, EngineTiming, Reported); 6] = [
        (None, NOTHING, &[("processing", 1220)]),
        (None, timing, &[("processing", 170), ("prefill", 320), ("decode", 1220)]),
        (queue(40, ResponseHeader), NOTHING, &[("queue", 50), ("processing", 1220)]),
        (queue(40, InBand), timing, &[("processing", 130), ("queue", 170), ("prefill", 320), ("decode", 1220)]),
        (
            queue(40, Remainder),
            EngineTiming { load_ms: Some(20.0), prompt_ms: Some(50.0), decode_ms: Some(1000.0), ..NOTHING },
            &[("load", 30), ("processing", 130), ("queue", 170), ("prefill", 220), ("decode", 1220)],
        ),
        // The sum of all phases exceeds the total, so only the queue time is used.
        (queue(300, InBand), timing, &[("queue", 310), ("processing", 1220)]),
    ];
    for (queue, timing, expected) in table {
        let phases: Vec<_> = reported(&whole(queue, timing))[1..].iter().map(|(kind, to, _)| (*kind, *to)).collect();
        assert_eq!(phases, expected, "{queue:?} {timing:?}");
    }
}

#[test]
fn engine_span_joined_later_splits_phases() {
    let mut record = stream(None, NOTHING);
    assert_eq!(reported(&record)[1], ("waiting", 210, 200));
    let (queue, prefill) = (Some(ms(60)), Some(ms(120)));
    record.complete(EngineSpan { queue, prefill, ..EngineSpan::default() });
    assert_eq!(reported(&record)[1..4], [("preprocessing", 30, 20), ("queue", 90, 60), ("prefill", 210, 120)]);
}

#[test]
fn incomplete_request_is_the_only_phase() {
    assert_eq!(reported(&records::gave_up("m").with(|r| r.times.requested = None)), [("request", 5010, 5010)]);
    assert_eq!(reported(&records::gave_up("m")), [("request", 10, 10), ("waiting", 5010, 5000)]);
}

#[test]
fn blocked_time_is_subtracted_from_its_phases() {
    let blocked = Blocked { waiting: ms(20), decoding: ms(400), finishing: ms(3), intervals: Vec::new() };
    let record = Record { blocked, ..stream(queue(40, QueueSource::InBand), NOTHING) };
    assert_eq!(
        reported(&record),
        [("request", 10, 10), ("queue", 50, 40), ("prefill", 210, 140), ("decode", 1210, 600), ("finish", 1220, 7)]
    );
    assert_eq!(Phases::of(&record).blocked(), ms(423));
}

#[test]
fn blocked_time_is_split_by_server_activity() {
    let mut wire = Wire::asked();
    let block = |wire: &mut Wire, millis| {
        let since = wire.now;
        wire.now += ms(millis);
        wire.observer.blocked(Direction::Response, since, since + ms(millis));
    };
    wire = wire.server(HEAD);
    block(&mut wire, 7);
    wire = wire.events(&[ROLE, DELTA]);
    block(&mut wire, 20);
    wire = wire.events(&[DELTA]);
    block(&mut wire, 30);
    wire = wire.events(&[DELTA]);
    block(&mut wire, 400);
    wire = wire.events(&[FINISH, DONE]).server(LAST);
    let record = wire.close(Close::Finished { first: Side::Client }).records.remove(0);
    let Blocked { waiting, decoding, finishing, intervals } = &record.blocked;
    assert_eq!((*waiting, *decoding, *finishing), (ms(7), ms(50), ms(400)));
    assert_eq!(record.blocked.total(), ms(457));
    assert_eq!(intervals.iter().map(|(from, to)| *to - *from).collect::<Vec<_>>(), [ms(7), ms(20), ms(30), ms(400)]);
    let phases = Phases::of(&record);
    assert_eq!(phases.iter().map(|part| part.active()).sum::<Duration>() + phases.blocked(), record.times.ended);
    let decode = phases.iter().find(|part| part.kind.as_str() == "decode").expect("a decode phase");
    assert_eq!((decode.to - decode.from, decode.active()), (ms(52), ms(2)));
}

/// Checks vLLM's `metrics`, whose time to first token excludes the queue, and llama.cpp's early headers.
#[test]
fn phases_follow_from_observed_bytes() {
    let metrics = r#"data: {"choices":[],"usage":{"completion_tokens":2},"metrics":{"time_to_first_token_ms":60,"generation_time_ms":1,"queue_time_ms":30}}"#;
    let mut wire = Wire::open().client(REQUEST).server(HEAD);
    wire.now += ms(96);
    let wire = wire.events(&[ROLE, DELTA, DELTA, FINISH, metrics, DONE]).server(LAST);
    let record = wire.close(Close::Finished { first: Side::Client }).records.remove(0);
    assert_eq!(
        reported(&record),
        [
            ("request", 0, 0),
            ("preprocessing", 9, 9),
            ("queue", 39, 30),
            ("prefill", 99, 60),
            ("decode", 100, 1),
            ("finish", 104, 4),
        ],
    );
    let llama = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut wire = Wire::asked();
    wire.now += ms(499);
    let wire = wire.server(llama).events(&[DELTA, DELTA, FINISH]).server(LAST);
    let record = wire.close(Close::Finished { first: Side::Client }).records.remove(0);
    assert_eq!(reported(&record)[..3], [("request", 0, 0), ("queue", 500, 500), ("prefill", 501, 1)]);
}

fn time() -> impl Strategy<Value = Duration> {
    (0u64..3_000_000_000).prop_map(Duration::from_nanos)
}

fn reported_ms() -> impl Strategy<Value = Option<f64>> {
    option::of(0.0f64..3000.0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn phases_are_adjacent_and_add_up_for_any_input(
        requested in option::of(time()),
        first in option::of((time(), time())),
        ended in time(),
        streaming in option::of(any::<bool>()),
        queue in option::of((time(), select(vec![
            QueueSource::InBand,
            QueueSource::ResponseHeader,
            QueueSource::Remainder,
            QueueSource::HeaderTiming,
            QueueSource::EngineSpan,
        ]))),
        (prefill_ms, prompt_ms, decode_ms, load_ms) in (reported_ms(), reported_ms(), reported_ms(), reported_ms()),
        (waiting, decoding, finishing) in (time(), time(), time()),
    ) {
        let (first_token, last_token) = first.map(|(a, b)| (a.min(b), a.max(b))).unzip();
        let record = records::good("m").with(|r| {
            r.labels = Arc::new(Labels { streaming, ..records::labels("m") });
            r.times = RequestTimes { requested, first_token, last_token, ended, ..r.times };
            r.engine.queue = queue.map(|(value, source)| QueueTime { value, source });
            r.engine.timing = EngineTiming { prefill_ms, prompt_ms, decode_ms, load_ms, ..NOTHING };
            r.blocked = Blocked { waiting, decoding, finishing, intervals: Vec::new() };
        });
        let phases = Phases::of(&record);
        let mut at = Duration::ZERO;
        for (place, part) in phases.iter().enumerate() {
            prop_assert_eq!(part.from, at);
            prop_assert!(part.to >= part.from && part.blocked <= part.to - part.from);
            prop_assert!(phases[..place].iter().all(|before| before.kind != part.kind));
            at = part.to;
        }
        prop_assert_eq!(at, ended);
        let active: Duration = phases.iter().map(|part| part.active()).sum();
        prop_assert_eq!(active + phases.blocked(), ended);
        prop_assert!(phases.blocked() <= record.blocked.total());
        // A queue phase has the reported length. Only the `Remainder` source may give a shorter one.
        if let (Some(part), Some(queue)) = (phases.iter().find(|part| part.kind.as_str() == "queue"), record.engine.queue) {
            let length = part.to - part.from;
            prop_assert!(length == queue.value || (queue.source == QueueSource::Remainder && length < queue.value));
        }
    }
}
