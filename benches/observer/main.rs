//! What observing costs: the whole observer, from the bytes of a read to the exporters' handles.
//!
//! One iteration is one event in a read of its own, as on a stream at 50 tok/s, in every dialect. The goal is under 200 ns
//! for an event of 250 bytes (docs/PERFORMANCE.md).

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tokometer::export::{Exporters, ProcessStats, Settings as ExportSettings, Snapshot};
use tokometer::measure::Sink;
use tokometer::observe::{Observatory, Settings};
use tokometer::relay::{Connection, Direction, Observe, Observer};
use tokometer::replay::Recording;

mod stream;

use stream::Stream;

/// A recording (`ENGINE/CASE`) or an exchange written from an engine's source, and what each of its token events has once.
const CASES: [(&str, &str); 20] = [
    ("vllm-0.32.0/chat-stream-usage", r#""delta":"#),
    ("vllm-0.32.0/chat-stream-continuous-usage", r#""delta":"#),
    ("vllm-0.32.0-rustfe/chat-stream-usage", r#""delta":"#),
    ("sglang-0.5.23/chat-stream-usage", r#""delta":"#),
    ("llamacpp-0.5.0-dev/chat-stream-usage", r#""delta":"#),
    ("vllm-0.32.0/completions-stream-usage", r#""text":"#),
    ("vllm-0.32.0/responses-stream", "event: response.output_text.delta"),
    ("llamacpp-0.5.0-dev/responses-stream", "event: response.output_text.delta"),
    ("vllm-0.32.0/messages-stream", "event: content_block_delta"),
    ("llamacpp-0.5.0-dev/messages-stream", "event: content_block_delta"),
    ("sglang-0.5.23/native-generate-stream", r#""meta_info":"#),
    ("llamacpp-0.5.0-dev/native-completion-stream", r#""stop":false"#),
    ("ollama-0.17.4/api-chat-stream", r#""done":false"#),
    ("ollama-0.17.4/api-generate-stream", r#""done":false"#),
    ("tgi-3.3.6/generate-stream", r#""generated_text":null"#),
    ("triton-2.73/generate-stream", r#""text_output":"#),
    ("vllm-0.33.0/inference-generate-stream", r#""token_ids":"#),
    ("vllm-0.33.0/cohere-chat-stream", "content-delta"),
    ("vllm-0.33.0/transcription-stream-two-pieces", r#""delta":"#),
    // The answer so far is in every event: the price of a long one.
    ("sglang-0.5.23/parsers-native-generate-interval3", r#""meta_info":"#),
];

struct Nothing;

impl ProcessStats for Nothing {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
}

/// The observer of a connection on which the request was sent and the first token came.
fn opened(sink: &Arc<dyn Sink>, stream: &Stream, now: Instant) -> Box<dyn Observer> {
    let observatory = Observatory::new(Settings::default(), 1, Arc::clone(sink));
    let connection = Connection { id: 1, peer: None, pair: 0, upstream: Arc::from("bench"), accepted: now };
    let mut observer = observatory.accepted(&connection).expect("observing is on");
    observer.seen(Direction::Request, &stream.request, now);
    stream.opening.iter().for_each(|read| observer.seen(Direction::Response, read, now));
    observer
}

/// The time of so many token events: each stream is played once, its counts so far only grow.
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

fn per_event(c: &mut Criterion) {
    let exporters: Arc<dyn Sink> = {
        let settings =
            ExportSettings { servers: vec![("127.0.0.1".to_owned(), Some(8001))], ..ExportSettings::default() };
        Exporters::start(&settings, Arc::new(Nothing)).expect("no endpoint, nothing to fail")
    };
    let mut group = c.benchmark_group("observer");
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut measure = |name: &str, stream: &Stream| {
        group.throughput(Throughput::Bytes(stream.mean_bytes()));
        group.bench_function(name, |b| b.iter_custom(|events| play(&exporters, stream, events)));
    };
    for (case, token) in CASES {
        let recorded = fixtures.join(format!("captures/{case}.jsonl"));
        let stream = if recorded.exists() {
            Stream::recorded(&Recording::read(&recorded).expect("a recording"), token)
        } else {
            Stream::written(&fixtures.join(format!("written/{case}.http")), token)
        };
        measure(case, &stream);
        if case == "vllm-0.32.0/chat-stream-usage" {
            measure(&format!("{case} over HTTP/2"), &stream.over_http2());
        }
    }
    group.finish();
}

criterion_group!(benches, per_event);
criterion_main!(benches);
