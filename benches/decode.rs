//! Cost of decoding per event of recorded streams, and per byte of large events.
//!
//! Measure with link-time optimization (`cargo bench --bench decode`): without it `memchr` is not inlined, and large
//! events cost ten times as much as in a release build.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::Value;
use tokometer_decode::{Framing, ResponseDecoder, Route};

/// The bytes of a recording, or the text of a request written from an engine's source.
fn text_of(case: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let written = fixtures.join("written").join(format!("{case}.http"));
    if let Ok(text) = fs::read_to_string(written) {
        // Skip the request, whose body is JSON too.
        return text.split_once("<<<").map(|(_, response)| response.to_owned()).unwrap_or_default();
    }
    let path = fixtures.join("captures").join(format!("{case}.jsonl"));
    let lines = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    for line in lines.lines() {
        let read: Value = serde_json::from_str(line).expect("a recording has one JSON object per line");
        if let Some(text) = read["b64"].as_str() {
            bytes.extend(STANDARD.decode(text).expect("the bytes of a read are base64"));
        }
    }
    String::from_utf8(bytes).expect("servers send UTF-8")
}

/// The events of a stream, each with its name and blank line.
fn recorded(case: &str) -> Vec<Vec<u8>> {
    let (mut events, mut name) = (Vec::new(), String::new());
    // Skips the lines of the chunked coding between the events.
    for line in text_of(case).lines() {
        if line.starts_with("event:") {
            name = format!("{line}\n");
        } else if line.starts_with("data:") {
            events.push(format!("{}{line}\n\n", std::mem::take(&mut name)).into_bytes());
        } else if line.starts_with('{') {
            events.push(format!("{line}\n").into_bytes());
        }
    }
    events
}

fn decode(route: Route, framing: Framing, pieces: &[Vec<u8>]) -> u32 {
    let mut events = 0;
    let mut decoder = ResponseDecoder::new(route, framing);
    for piece in pieces {
        decoder.feed(black_box(piece), &mut |_| events += 1);
        // With `Framing::Messages`, each piece is one message.
        decoder.end_message(&mut |_| events += 1);
    }
    events
}

/// Measures decoding of these pieces, which contain `events` events.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    (route, framing): (Route, Framing),
    pieces: &[Vec<u8>],
    events: usize,
) {
    group.throughput(Throughput::Elements(events as u64));
    group.bench_function(name, |bencher| bencher.iter(|| decode(route, framing, pieces)));
}

/// A one-token chunk of vLLM's gRPC service (rust/proto/inference.proto, 0.33).
const CHUNK: &[u8] = b"\x12\x0c\x12\x05 word\x18\x01\x22\x01\x07";

fn streams(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode/event");
    for (name, route, case) in [
        ("vllm_chat", Route::Chat, "vllm-0.32.0/chat-stream-usage"),
        ("vllm_chat_continuous_usage", Route::Chat, "vllm-0.32.0/chat-stream-continuous-usage"),
        ("vllm_chat_two_choices", Route::Chat, "vllm-0.32.0/chat-stream-n2"),
        ("vllm_completions", Route::Completions, "vllm-0.32.0/completions-stream-usage"),
        ("vllm_rust_chat", Route::Chat, "vllm-0.32.0-rustfe/chat-stream-usage"),
        ("sglang_chat", Route::Chat, "sglang-0.5.23/chat-stream-usage"),
        ("llama_cpp_chat", Route::Chat, "llamacpp-0.5.0-dev/chat-stream-usage"),
        ("llama_cpp_chat_timings", Route::Chat, "llamacpp-0.5.0-dev/spec-chat-stream-loop"),
        ("sglang_generate", Route::Generate, "sglang-0.5.23/native-generate-stream"),
        ("llama_cpp_completion", Route::LlamaCompletion, "llamacpp-0.5.0-dev/native-completion-stream"),
        ("ollama_chat", Route::OllamaChat, "ollama-0.17.4/api-chat-stream"),
        ("ollama_generate", Route::OllamaGenerate, "ollama-0.17.4/api-generate-stream"),
        ("vllm_responses", Route::Responses, "vllm-0.32.0/responses-stream"),
        ("llama_cpp_responses", Route::Responses, "llamacpp-0.5.0-dev/responses-stream"),
        ("vllm_messages", Route::Messages, "vllm-0.32.0/messages-stream"),
        ("llama_cpp_messages", Route::Messages, "llamacpp-0.5.0-dev/messages-stream"),
        ("lmdeploy_generate", Route::Generate, "lmdeploy-0.18/generate-stream"),
        ("tgi", Route::TgiStream, "tgi-3.3.6/generate-stream"),
        ("triton", Route::TritonGenerate, "triton-2.73/generate-stream"),
        ("vllm_generate", Route::VllmGenerate, "vllm-0.33.0/inference-generate-stream"),
        ("vllm_cohere_chat", Route::CohereChat, "vllm-0.33.0/cohere-chat-stream"),
        ("vllm_transcription", Route::AudioTranscription, "vllm-0.33.0/transcription-stream-two-pieces"),
    ] {
        let events = recorded(case);
        let ndjson = matches!(route, Route::OllamaChat | Route::OllamaGenerate);
        let as_is = (route, if ndjson { Framing::Ndjson } else { Framing::Sse });
        measure(&mut group, name, as_is, &events, events.len());
        // The decoder does not predict events that are cut in two, so this measures the full parser.
        let halves: Vec<Vec<u8>> =
            events.iter().flat_map(|event| event.chunks(event.len().div_ceil(2)).map(<[u8]>::to_vec)).collect();
        measure(&mut group, &format!("{name}_cut"), as_is, &halves, events.len());
    }
    let deltas = vec![br#"{"type":"transcription.delta","delta":" word"}"#.to_vec(); 100];
    measure(&mut group, "vllm_realtime", (Route::Realtime, Framing::Messages), &deltas, deltas.len());
    let chunks = vec![CHUNK.to_vec(); 100];
    measure(&mut group, "vllm_grpc", (Route::VllmInferenceStream, Framing::Grpc), &chunks, chunks.len());
    group.finish();
}

fn sizes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode/byte");
    for size in [250, 65_536, 1 << 20] {
        for (kind, unit) in [("text", "word "), ("escaped", "a line of words\\n")] {
            let text = unit.repeat(size / unit.len());
            let event = format!(
                "data: {{\"id\":\"chatcmpl-1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
            );
            group.throughput(Throughput::Bytes(event.len() as u64));
            let events = [event.into_bytes()];
            group.bench_function(format!("{kind}_{size}"), |bencher| {
                bencher.iter(|| decode(Route::Chat, Framing::Sse, &events))
            });
        }
    }
    // SGLang's `/generate` repeats all text and tokens so far in every event.
    let (text, ids) = ("word ".repeat(8000), "12345,".repeat(8000));
    let counts = r#""prompt_tokens":13,"completion_tokens":8001"#;
    let event = format!("data: {{\"text\":\"{text}\",\"output_ids\":[{ids}1],\"meta_info\":{{{counts}}}}}\n\n");
    group.throughput(Throughput::Bytes(event.len() as u64));
    let events = [event.into_bytes()];
    group.bench_function("all_so_far_88000", |bencher| bencher.iter(|| decode(Route::Generate, Framing::Sse, &events)));
    group.finish();
}

criterion_group!(benches, streams, sizes);
criterion_main!(benches);
