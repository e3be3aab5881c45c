//! What decoding costs per event of recorded streams, and per byte of large events.
//!
//! Measure with link-time optimisation (`cargo bench --bench decode`): without it `memchr` is not inlined, and large events
//! cost ten times as much as they do in a release.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use criterion::Criterion;
use criterion::Throughput;
use criterion::criterion_group;
use criterion::criterion_main;
use serde_json::Value;
use tokometer::decode::Framing;
use tokometer::decode::ResponseDecoder;
use tokometer::decode::Route;

/// The events of a recorded stream, each with its blank line.
fn recorded(case: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{case}.jsonl"));
    let lines = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    for line in lines.lines() {
        let read: Value = serde_json::from_str(line).expect("a recording has one JSON object per line");
        if let Some(text) = read["b64"].as_str() {
            bytes.extend(STANDARD.decode(text).expect("the bytes of a read are base64"));
        }
    }
    let text = String::from_utf8(bytes).expect("servers send UTF-8");
    // The lines of the chunked coding stand between the events.
    let lines = text.lines().filter(|line| line.starts_with("data: ") || line.starts_with('{'));
    let end = |line: &str| if line.starts_with('{') { "\n" } else { "\n\n" };
    lines.map(|line| format!("{line}{}", end(line)).into_bytes()).collect()
}

fn decode(route: Route, pieces: &[Vec<u8>]) -> u32 {
    let mut choices = 0;
    let framing = match route {
        Route::OllamaChat => Framing::Ndjson,
        _ => Framing::Sse,
    };
    let mut decoder = ResponseDecoder::new(route, framing);
    for piece in pieces {
        decoder.feed(black_box(piece), &mut |event| choices += event.choices);
    }
    choices
}

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
    ] {
        let events = recorded(case);
        group.throughput(Throughput::Elements(events.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| decode(route, &events)));
        // Cut in two no event is predicted: the price of the plain way.
        let halves: Vec<Vec<u8>> =
            events.iter().flat_map(|event| event.chunks(event.len().div_ceil(2)).map(<[u8]>::to_vec)).collect();
        group.bench_function(format!("{name}_cut"), |bencher| bencher.iter(|| decode(route, &halves)));
    }
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
            group.bench_function(format!("{kind}_{size}"), |bencher| bencher.iter(|| decode(Route::Chat, &events)));
        }
    }
    // SGLang's `/generate` sends all text and all tokens so far in every event.
    let (text, ids) = ("word ".repeat(8000), "12345,".repeat(8000));
    let counts = r#""prompt_tokens":13,"completion_tokens":8001"#;
    let event = format!("data: {{\"text\":\"{text}\",\"output_ids\":[{ids}1],\"meta_info\":{{{counts}}}}}\n\n");
    group.throughput(Throughput::Bytes(event.len() as u64));
    let events = [event.into_bytes()];
    group.bench_function("all_so_far_88000", |bencher| bencher.iter(|| decode(Route::Generate, &events)));
    group.finish();
}

criterion_group!(benches, streams, sizes);
criterion_main!(benches);
