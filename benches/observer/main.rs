//! Cost of observing: the whole observer, from the bytes of a read to the exporters' handles, in-flight tracking and
//! SLO evaluation, wired as in the program.
//!
//! One iteration is one event in a separate read, as on a stream at 50 tok/s, in every dialect. The goal is under 200
//! ns for an event of 250 bytes (docs/reference/performance.md).

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokometer::app::Tee;
use tokometer_metrics::Listener as ExportListener;
use tokometer_observe::input::{Connection, Direction, Observe, Observer};
use tokometer_observe::measure::Sink;
use tokometer_observe::observer::{Observers, Settings};
use tokometer_telemetry::export::{Exporters, Settings as ExportSettings};
use tokometer_telemetry::live::{InFlight, Settings as LiveSettings};
use tokometer_telemetry::slo::{Evaluator, Settings as Objectives};

mod stream;

use stream::{CASES, Stream};

/// Mean size of a token event's read.
fn mean_bytes(stream: &Stream) -> u64 {
    (stream.events.iter().map(Vec::len).sum::<usize>() / stream.events.len()) as u64
}

/// The observer of a connection after the request and the first token.
fn opened(sink: &Arc<dyn Sink>, stream: &Stream, now: Instant) -> Box<dyn Observer> {
    let observers = Observers::new(Settings::default(), 1, Arc::clone(sink));
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("bench"), accepted: now };
    let mut observer = observers.accepted(&connection).expect("observing is on");
    observer.seen(Direction::Request, &stream.request, now);
    stream.opening.iter().for_each(|read| observer.seen(Direction::Response, read, now));
    observer
}

/// The time for this many token events. Each observer receives the stream only once, because repeated token counts
/// would not be counted again.
fn play(sink: &Arc<dyn Sink>, stream: &Stream, events: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut left = events;
    while left > 0 {
        let mut now = Instant::now();
        let mut observer = opened(sink, stream, now);
        let reads = stream.events.iter().take(usize::try_from(left).unwrap_or(usize::MAX));
        left -= reads.len() as u64;
        let begin = Instant::now();
        for read in reads {
            now += Duration::from_millis(20);
            observer.seen(Direction::Response, black_box(read), now);
        }
        spent += begin.elapsed();
    }
    spent
}

/// All default sinks of request records, with the default objectives.
fn sinks() -> Arc<dyn Sink> {
    let settings = ExportSettings {
        listeners: vec![ExportListener { name: "one".to_owned(), address: "127.0.0.1".to_owned(), port: Some(8001) }],
        ..ExportSettings::default()
    };
    let exporters = Exporters::start(&settings).expect("no endpoint that could fail");
    let listeners = ["default".to_owned()];
    let in_flight = InFlight::start(LiveSettings::default(), &listeners, Instant::now()).expect("a thread");
    Tee::of(vec![in_flight as Arc<dyn Sink>, Arc::new(Evaluator::new(Objectives::default())), exporters])
}

fn per_event(c: &mut Criterion) {
    let sinks = sinks();
    let mut group = c.benchmark_group("observer");
    let mut measure = |name: &str, stream: &Stream| {
        group.throughput(Throughput::Bytes(mean_bytes(stream)));
        group.bench_function(name, |b| b.iter_custom(|events| play(&sinks, stream, events)));
    };
    for (case, token) in CASES {
        let stream = Stream::of_case(case, token);
        measure(case, &stream);
        if case == "vllm-0.32.0/chat-stream-usage" {
            measure(&format!("{case} over HTTP/2"), &stream.over_http2());
        }
    }
    group.finish();
}

criterion_group!(benches, per_event);
criterion_main!(benches);
