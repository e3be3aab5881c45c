//! What observing costs: the whole observer, from the bytes of a read to the exporters' handles.
//!
//! One iteration is one 250-byte event in a read of its own, as on a stream at 50 tok/s. The goal is under 200 ns
//! (docs/PERFORMANCE.md).

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokometer::export::{Exporters, ProcessStats, Settings as ExportSettings, Snapshot};
use tokometer::measure::Sink;
use tokometer::observe::{Observatory, Settings};
use tokometer::relay::{Connection, Direction, Observe, Observer};
use tokometer::replay::Recording;

struct Nothing;

impl ProcessStats for Nothing {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
}

/// A stream in the middle of its answer, and the reads that go on.
struct Stream {
    observer: Box<dyn Observer>,
    reads: Vec<Vec<u8>>,
    next: usize,
    now: Instant,
}

impl Stream {
    /// Opens the recording's request and head; its token events repeat from then on.
    fn open(sink: Arc<dyn Sink>, case: &str) -> Stream {
        let path = format!("{}/tests/fixtures/captures/{case}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let recording = Recording::read(path.as_ref()).expect("a recording");
        let observatory = Observatory::new(Settings::default(), 1, sink);
        let now = Instant::now();
        let connection = Connection { id: 1, peer: None, pair: 0, upstream: Arc::from("bench"), accepted: now };
        let mut observer = observatory.accepted(&connection).expect("observing is on");
        observer.seen(Direction::Request, &recording.request, now);
        let mut reads: Vec<Vec<u8>> = recording.reads.into_iter().map(|(_, bytes)| bytes).collect();
        // Head, role and first token; the last reads hold finish, usage and end.
        let rest = reads.split_off(4);
        for read in &reads {
            observer.seen(Direction::Response, read, now);
        }
        let events = rest.len() - 4;
        Stream { observer, reads: rest.into_iter().take(events).collect(), next: 0, now }
    }

    fn read(&mut self) {
        self.now += Duration::from_millis(20);
        let read = &self.reads[self.next];
        self.observer.seen(Direction::Response, black_box(read), self.now);
        self.next = (self.next + 1) % self.reads.len();
    }
}

fn per_event(c: &mut Criterion) {
    let exporters: Arc<dyn Sink> = {
        let settings =
            ExportSettings { servers: vec![("127.0.0.1".to_owned(), Some(8001))], ..ExportSettings::default() };
        Exporters::start(&settings, Arc::new(Nothing)).expect("no endpoint, nothing to fail")
    };
    let mut group = c.benchmark_group("observer");
    for case in [
        "vllm-0.32.0/chat-stream-usage",
        "vllm-0.32.0/chat-stream-continuous-usage",
        "vllm-0.32.0/completions-stream-usage",
        "vllm-0.32.0-rustfe/chat-stream-usage",
        "sglang-0.5.23/chat-stream-usage",
        "llamacpp-0.5.0-dev/chat-stream-usage",
    ] {
        let mut stream = Stream::open(Arc::clone(&exporters), case);
        let bytes = stream.reads.iter().map(Vec::len).sum::<usize>() / stream.reads.len();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(case, |b| b.iter(|| stream.read()));
    }
    group.finish();
}

criterion_group!(benches, per_event);
criterion_main!(benches);
