use std::sync::Arc;

use crate::engine_spans::joiner::{Joiner, RecordedRequest};
use crate::engine_spans::stats::{Join, Lost, Measurements};
use tokometer_decode::EngineTiming;
use tokometer_observe::measure::{QueueSource, QueueTime, TraceParent};

use super::*;

const WAIT: Duration = Duration::from_secs(8);

struct Scene {
    joiner: Joiner,
    measurements: Arc<Measurements>,
    now: Instant,
}

impl Scene {
    fn new(most: usize) -> Scene {
        let measurements = Arc::new(Measurements::default());
        Scene { joiner: Joiner::new(WAIT, most, Arc::clone(&measurements)), measurements, now: Instant::now() }
    }

    fn record(&mut self, record: Record) -> Vec<Arc<Record>> {
        self.joiner.record(Arc::new(record), self.now);
        self.joiner.take()
    }

    fn span(&mut self, span: Box<RequestSpan>) -> Vec<Arc<Record>> {
        self.joiner.span(span, self.now);
        self.joiner.take()
    }

    fn after(&mut self, time: Duration) -> Vec<Arc<Record>> {
        self.now += time;
        self.joiner.pass_time(self.now);
        self.joiner.take()
    }
}

fn queue(records: &[Arc<Record>]) -> Vec<Option<Duration>> {
    let by_span = |queue: QueueTime| (queue.source == QueueSource::EngineSpan).then_some(queue.value);
    records.iter().map(|record| record.engine.queue.and_then(by_span)).collect()
}

fn called_by(span_id: u64, mut record: Record) -> Record {
    record.request.trace = Some(TraceParent { trace_id: 7, span_id, sampled: true });
    record
}

fn below(parent: u64, id: Option<&str>, mut span: Box<RequestSpan>) -> Box<RequestSpan> {
    span.parent = Some(parent);
    span.reported.trace_id = 7;
    span.id = id.map(Box::from);
    span
}

#[test]
fn record_and_span_are_joined_in_either_order() {
    let mut scene = Scene::new(10);
    assert!(scene.record(record("chatcmpl-a")).is_empty());
    assert!(scene.after(ms(4900)).is_empty());
    assert_eq!(queue(&scene.span(span("chatcmpl-a", ms(300)))), [Some(ms(300))]);

    assert!(scene.span(span("chatcmpl-b", ms(400))).is_empty());
    assert!(scene.after(ms(20_000)).is_empty());
    assert_eq!(queue(&scene.record(record("chatcmpl-b"))), [Some(ms(400))]);
    assert_eq!(scene.measurements.joins(Join::Id).get(), 2);
    assert!(scene.after(Duration::from_secs(300)).is_empty());
    assert_eq!(scene.joiner.next_due(), None, "nothing is kept forever");
}

#[test]
fn span_fills_in_only_missing_values() {
    let mut scene = Scene::new(10);
    scene.span(span("chatcmpl-a", ms(300)));
    let done = scene.record(record("chatcmpl-a")).remove(0);
    assert_eq!(done.tokens.output, Some(Count { tokens: 99, source: CountSource::EngineSpan }));
    assert_eq!(done.tokens.input, Some(Count { tokens: 20, source: CountSource::EngineSpan }));
    let timing = done.engine.timing;
    assert_eq!((timing.prefill_ms, timing.decode_ms, timing.queue_ms), (Some(80.0), Some(490.0), None));
    // 98 tokens after the first in 490 ms.
    assert_eq!((done.rate.exact, done.rate.at_least), (Some(200.0), None));

    scene.span(span("chatcmpl-b", ms(300)));
    let usage = Some(Count { tokens: 98, source: CountSource::Usage });
    let reported = EngineTiming { prefill_ms: Some(1.0), ..EngineTiming::default() };
    let known = record("chatcmpl-b").with(|r| {
        r.tokens.output = usage;
        r.rate.exact = Some(5.0);
        r.rate.at_least = None;
        r.engine.timing = reported;
    });
    let done = scene.record(known).remove(0);
    assert_eq!((done.tokens.output, done.rate.exact, done.engine.timing), (usage, Some(5.0), reported));
}

#[test]
fn record_without_span_is_released_after_the_wait() {
    let mut scene = Scene::new(10);
    scene.record(record("chatcmpl-a"));
    assert_eq!(scene.joiner.next_due(), Some(scene.now + WAIT));
    assert!(scene.after(WAIT - ms(1)).is_empty());
    assert_eq!(queue(&scene.after(ms(1))), [None]);
    assert_eq!(scene.measurements.joins(Join::NoSpan).get(), 1);
    scene.span(span("chatcmpl-a", ms(300)));
    scene.after(Duration::from_secs(60));
    assert_eq!(scene.measurements.lost(Lost::NoRequest).get(), 1, "it arrived too late");
}

#[test]
fn duplicate_ids_are_not_joined() {
    let mut scene = Scene::new(10);
    scene.record(record("chatcmpl-a"));
    assert_eq!(queue(&scene.record(record("chatcmpl-a"))), [None, None]);
    assert!(scene.span(span("chatcmpl-a", ms(1))).is_empty());

    scene.span(span("chatcmpl-b", ms(1)));
    scene.span(span("chatcmpl-b", ms(2)));
    assert_eq!(queue(&scene.record(record("chatcmpl-b"))), [None]);
    assert_eq!(scene.measurements.lost(Lost::Ambiguous).get(), 2);

    // The second span arrives after the first was joined to its record, so it cannot belong to that record.
    scene.record(record("chatcmpl-c"));
    assert_eq!(queue(&scene.span(span("chatcmpl-c", ms(3)))), [Some(ms(3))]);
    assert_eq!(queue(&scene.record(record("chatcmpl-c"))), [None]);
    assert!(scene.span(span("chatcmpl-c", ms(4))).is_empty());
    assert_eq!(scene.measurements.joins(Join::Id).get(), 1);
}

#[test]
fn retransmitted_span_counts_once() {
    let mut scene = Scene::new(10);
    let sent = span("chatcmpl-a", ms(300));
    scene.span(sent.clone());
    scene.span(sent.clone());
    assert_eq!(queue(&scene.record(record("chatcmpl-a"))), [Some(ms(300))]);
    assert!(scene.span(sent).is_empty());
    assert_eq!(scene.measurements.lost(Lost::Ambiguous).get(), 0);
}

#[test]
fn span_longer_than_its_request_is_not_joined() {
    let mut scene = Scene::new(10);
    let mut long = span("chatcmpl-a", ms(300));
    long.reported.e2e = Some(ms(1101));
    scene.span(long.clone());
    assert_eq!(queue(&scene.record(record("chatcmpl-a"))), [None]);
    long.reported.e2e = None;
    long.id = Some("chatcmpl-b".into());
    scene.span(long);
    assert_eq!(queue(&scene.record(record("chatcmpl-b"))), [Some(ms(300))], "not longer by its start and end");
    assert_eq!(scene.measurements.joins(Join::Contradicted).get(), 1);
}

#[test]
fn caller_span_decides_where_ids_cannot() {
    let mut scene = Scene::new(10);
    let no_id = |mut record: Record| {
        record.response.id = None;
        record
    };
    scene.record(called_by(1, no_id(record(""))));
    assert!(scene.span(below(1, Some("chatcmpl-a"), span("", ms(5)))).is_empty());
    assert_eq!(queue(&scene.after(WAIT)), [Some(ms(5))]);
    assert_eq!(scene.measurements.joins(Join::Trace).get(), 1);

    // Two spans with the same caller span, but only one record: the other request has not ended yet.
    scene.record(called_by(2, no_id(record(""))));
    scene.span(below(2, None, span("", ms(6))));
    scene.span(below(2, None, span("", ms(7))));
    assert_eq!(queue(&scene.after(WAIT)), [None]);

    // The ids can be compared, and they differ, so the span is not joined.
    scene.record(called_by(3, record("chatcmpl-x")));
    scene.span(below(3, Some("chatcmpl-y"), span("", ms(8))));
    assert_eq!(queue(&scene.after(WAIT)), [None]);

    // The span's id is a number and cannot be compared with the response id, so only the caller's span is compared.
    scene.record(called_by(4, record("chatcmpl-z")));
    scene.span(below(4, Some("17"), span("", ms(9))));
    assert_eq!(queue(&scene.after(WAIT)), [Some(ms(9))]);
}

#[test]
fn in_band_time_is_kept_and_compared() {
    let mut scene = Scene::new(10);
    let reported = |id: &str, queue: Option<Duration>| RecordedRequest { id: Some(id.into()), caller: None, queue };
    scene.joiner.passed(&reported("a", Some(ms(300))), scene.now);
    scene.span(span("a", ms(300)));
    scene.span(span("b", ms(310)));
    scene.joiner.passed(&reported("b", Some(ms(300))), scene.now);
    scene.span(span("c", ms(300)));
    scene.joiner.passed(&reported("c", None), scene.now);
    let counts = [Join::Confirmed, Join::Differs, Join::Late].map(|join| scene.measurements.joins(join).get());
    assert_eq!(counts, [1, 1, 1]);
    assert_eq!(scene.measurements.lost(Lost::NoRequest).get(), 0);
    assert!(scene.after(Duration::from_secs(100)).is_empty());
    assert_eq!(scene.measurements.lost(Lost::NoRequest).get(), 0);
}

#[test]
fn server_without_spans_delays_few_records() {
    let mut scene = Scene::new(1000);
    for n in 0..32 {
        assert!(scene.record(record(&format!("chatcmpl-{n}-a"))).is_empty());
    }
    assert_eq!(scene.after(WAIT).len(), 32);
    let held = (0..320).filter(|n| scene.record(record(&format!("chatcmpl-{n}-b"))).is_empty()).count();
    assert_eq!(held, 10, "one in 32 probes");
    assert_eq!(scene.measurements.joins(Join::Silent).get(), 310);
    // The span of a probe arrives: the server sends spans again.
    let held = scene.joiner.take();
    assert!(held.is_empty());
    let probe = (0..320).find(|n| !scene.span(span(&format!("chatcmpl-{n}-b"), ms(1))).is_empty());
    assert!(probe.is_some());
    assert!(scene.record(record("chatcmpl-next")).is_empty());
}

#[test]
fn number_of_records_and_spans_is_bounded() {
    let mut scene = Scene::new(8);
    let mut out = 0;
    for n in 0..10_000u32 {
        out += scene.record(record(&format!("chatcmpl-{n}-r"))).len();
        scene.span(span(&format!("chatcmpl-{n}-s"), ms(1)));
    }
    assert_eq!(out, 10_000 - 8);
    assert_eq!(scene.measurements.held(), 8);
    assert_eq!(scene.measurements.lost(Lost::NoRequest).get(), 10_000 - 8);
    scene.joiner.close();
    assert_eq!(scene.joiner.take().len(), 8, "nothing is lost");
}

/// Random traffic: every record is returned exactly once, and only with the queue time of its own span.
#[test]
fn records_are_neither_lost_nor_doubled_nor_mismatched() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut scene = Scene::new(64);
        let mut open: Vec<(u64, Box<RequestSpan>)> = Vec::new();
        let (mut begun, mut done) = (0, Vec::new());
        for step in 0..400u64 {
            match random.u8(..4) {
                0 => {
                    // Some ids are used twice.
                    let id = if random.u8(..20) == 0 { step / 2 } else { step };
                    let waited = ms(step + 1);
                    let name = format!("chatcmpl-{id}-x");
                    begun += 1;
                    let mut ended = record(&name);
                    ended.sequence = step;
                    done.extend(scene.record(ended));
                    open.push((step, span(&name, waited)));
                }
                1 if !open.is_empty() => {
                    let (_, span) = open.swap_remove(random.usize(..open.len()));
                    if random.bool() {
                        done.extend(scene.span(span.clone()));
                    }
                    done.extend(scene.span(span));
                }
                2 => done.extend(scene.span(span(&format!("chatcmpl-{step}-other"), ms(9999)))),
                _ => done.extend(scene.after(ms(random.u64(..2000)))),
            }
        }
        scene.joiner.close();
        done.extend(scene.joiner.take());
        assert_eq!(done.len(), begun, "seed {seed}");
        let mut seen: Vec<u64> = done.iter().map(|record| record.sequence).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), begun, "seed {seed}");
        for record in &done {
            assert!(
                record.engine.queue.is_none_or(|queue| queue.value == ms(record.sequence + 1)),
                "seed {seed}: {record:?}"
            );
        }
    }
}
