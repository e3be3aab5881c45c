//! What a running stream costs its observer in memory: nothing, once it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::export::{Exporters, ProcessStats, Settings as ExportSettings, Snapshot};
use tokometer::observe::{Observatory, Settings};
use tokometer::relay::{Connection, Direction, Observe};
use tokometer::replay::Recording;

use crate::allocation::allocations_of;
use crate::truth::captures;

struct Nothing;

impl ProcessStats for Nothing {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
}

#[test]
fn a_running_stream_allocates_nothing_per_event_exporter_and_all() {
    for case in [
        "vllm-0.32.0/chat-stream-usage",
        "vllm-0.32.0/chat-stream-continuous-usage",
        "vllm-0.32.0-rustfe/completions-stream-usage",
        "sglang-0.5.23/chat-stream-usage",
        "llamacpp-0.5.0-dev/chat-stream-usage",
        "vllm-0.32.0/responses-stream",
        "llamacpp-0.5.0-dev/responses-stream",
        "vllm-0.32.0/messages-stream",
        "llamacpp-0.5.0-dev/native-completion-stream",
        "ollama-0.17.4/api-chat-stream",
        "ollama-0.17.4/api-generate-stream",
    ] {
        let recording = Recording::read(&captures().join(format!("{case}.jsonl"))).expect("a recording");
        let settings =
            ExportSettings { servers: vec![("127.0.0.1".to_owned(), Some(8001))], ..ExportSettings::default() };
        let exporters = Exporters::start(&settings, Arc::new(Nothing)).expect("there is no endpoint to fail");
        let observatory = Observatory::new(Settings::default(), 1, exporters);
        let start = Instant::now();
        let connection = Connection { id: 1, peer: None, pair: 0, upstream: Arc::from("server"), accepted: start };
        let mut observer = observatory.accepted(&connection).expect("observing is on");
        observer.seen(Direction::Request, &recording.request, start);
        // A steady stream: the same gap each time, so that no histogram has to grow for it.
        let mut at = start;
        let mut seen = |bytes: &[u8]| {
            at += Duration::from_millis(20);
            observer.seen(Direction::Response, bytes, at);
        };
        let reads: Vec<&[u8]> = recording.reads.iter().map(|(_, bytes)| bytes.as_slice()).collect();
        let (warm, rest) = reads.split_at(20.min(reads.len() / 2));
        let (steady, _end) = rest.split_at(rest.len() - 4);
        warm.iter().for_each(|bytes| seen(bytes));
        let allocations = allocations_of(|| steady.iter().for_each(|bytes| seen(bytes)));
        assert!(!steady.is_empty(), "{case}");
        assert_eq!(allocations, 0, "{case}: {} reads", steady.len());
    }
}
