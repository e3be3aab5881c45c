//! Compares queue times by source with the engines' own values, and generates `docs/concepts/queue-time.md`. `UPDATE=1`
//! rewrites this file.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokometer_observe::measure::{Phases, QueueSource};

use super::naive::{events, naive};
use super::{Case, cases};

/// Maximum difference between a queue time from the headers and the engine's own values.
const HEADER_TIMING_MS: f64 = 2.0;

/// Recordings whose recorder slept before its first read. The time of the first token does not show when the slot
/// began.
const READ_LATE: &[&str] = &["chat-stream-slow-reader"];

const INTRODUCTION: &str = "\
# Queue time

<!-- Generated from the results of tests/it/truth: `UPDATE=1 cargo test --test it truth::queue` rewrites it. -->

The queue time is the time that a request waits in the server before processing begins. The metric is
`tokometer.queue.time`. In a trace, the queue time is the phase `queue` ([Traces](traces.md)). How tokometer gets the
queue time depends on the engine. Because the values differ slightly in meaning, the metric has a separate series for
each `source`:

| Source | Engine and value | Meaning | Also included |
|---|---|---|---|
| `in_band` | vLLM with `--enable-per-request-metrics`, for responses with usage and one choice: `metrics.queue_time_ms` | time waiting for the scheduler | compilation of the grammar, for requests with structured outputs |
| `in_band` | SGLang with `--enable-metrics`, on the path `/generate`: `meta_info.queue_time` | time waiting for the scheduler | nothing |
| `in_band` | Dynamo, if the client requests the value with `nvext.extra_fields`: `nvext.timing.prefill_wait_time_ms` | time waiting for a prefill worker | nothing |
| `response_header` | TGI, for non-streamed responses: the header `x-queue-time` | time from validation to batching, rounded down to whole milliseconds | nothing |
| `remainder` | Ollama, native API: the total duration minus the load, prompt and eval durations in the response | time waiting for a slot of the runner | templating, tokenizing and forwarding: about 5 ms, plus 0.1 ms per output token |
| `header_timing` | llama.cpp, for streams: the time from the last byte of the request to the response headers, which llama.cpp sends when a slot begins to process the request | time waiting for a slot | templating and tokenizing: 0.5 to 8 ms in the recordings below |
| `engine_span` | vLLM, SGLang and TensorRT-LLM, if they send their spans to tokometer ([Receive engine spans](../how-to/engine-spans.md)): the queue time in the span | time waiting for the scheduler | vLLM: compilation of the grammar, for requests with structured outputs |

If a request has none of these sources, tokometer reports no queue time. It never estimates the queue time from the time
to first token.

## Pitfalls

Some fields and messages of the engines are easy to misinterpret:

- vLLM's `metrics.time_to_first_token_ms` is the time from the *scheduling* of the request to the first token, so it
  excludes the queue time. Tokometer uses this value as the prefill time, and measures the time to first token itself.
- `gen_ai.latency.time_to_first_token` in vLLM's spans is the time from the *arrival* of the request to the first token,
  so it includes the queue time.
- vLLM keeps a request with structured outputs in the queue until its grammar is compiled, even if slots are free. With
  large grammars, vLLM 0.33 reported queue times of 12 to 46 s while 6 of 64 slots were in use. If long queue times occur
  while few requests run, check the `response_format` of the requests before you add replicas.
- vLLM's `metrics.tokens_per_second` includes the prefill, so tokometer does not use it as the decode rate.
  `metrics.mean_itl_ms` and `metrics.generation_time_ms` exclude the prefill.
- The arrival of the response headers marks the end of the queue time only for llama.cpp. vLLM, TGI, TensorRT-LLM,
  LMDeploy, Dynamo and transformers send the headers before the request is queued. SGLang (chats and completions),
  Ollama and Triton send the headers with the first token.
- If llama.cpp's response headers arrive together with the first token, they were delayed in the server or in a socket.
  In this case, tokometer subtracts llama.cpp's prompt processing time (`prompt_ms`) from the arrival time, to get the
  time at which processing began.
- A comment (`: ping`) or role event that arrives while a request is queued does not mean that processing has begun.
  Neither of them contains a token.
- Ollama's `load_duration` is long if Ollama had to load the model. Tokometer does not count it as queue time.
- Ollama omits a duration of 0. If a response has several computed prompt tokens or several output tokens, but no duration
  for them, tokometer reports no queue time.
- SGLang and Dynamo report a total time next to the queue time. Tokometer ignores a queue time above the total.
- SGLang's implementation of Ollama's API reports only a total duration, so tokometer cannot compute a queue time.

## Comparison with the recordings

Each row of the table compares the queue time that tokometer reports for one request with the engine's own value, in
milliseconds. The requests and responses are in [tests/fixtures](../../tests/fixtures). Those with `(fixture)` are
written by hand from the engine's source code; all others are recorded. The engine's value has one of these sources:

- response field: a queue time in the response
- response durations: the total duration minus the other durations in the response
- engine counter: the increase of the engine's counter between two scrapes, if no other request ran between them
- first token minus `prompt_ms`: the time from the last byte of the request to the first token, minus the prompt
  processing time. The result is the time until a slot began to process the request. llama.cpp reports no queue time itself.

";

/// The engine's own queue time of this request in milliseconds, and the source of the value.
fn engines(case: &Case) -> Option<(f64, &'static str)> {
    counter(case).or_else(|| field(case)).or_else(|| {
        let ns = case.meta["ollama_ns"]["remainder"].as_f64();
        ns.map(|ns| (ns / 1e6, "response durations"))
    })
}

/// From the engine's histogram over all requests, if this request was the only one.
fn counter(case: &Case) -> Option<(f64, &'static str)> {
    let delta = case.meta["metrics_delta"].as_object()?;
    let of = |name: &str| delta.iter().find(|(key, _)| key.starts_with(name)).and_then(|(_, value)| value.as_f64());
    for family in ["vllm:request_queue_time_seconds", "sglang:queue_time_seconds"] {
        if of(&format!("{family}_count")) == Some(1.0) {
            return Some((of(&format!("{family}_sum"))? * 1e3, "engine counter"));
        }
    }
    None
}

/// From the last queue time field in the response, in milliseconds.
fn field(case: &Case) -> Option<(f64, &'static str)> {
    let reported = |json: &Value| {
        let metrics = [&json["metrics"], &json["response"]["metrics"]];
        let in_ms = metrics.iter().map(|metrics| &metrics["queue_time_ms"]);
        let in_ms = in_ms.chain([&json["nvext"]["timing"]["prefill_wait_time_ms"]]).find_map(Value::as_f64);
        in_ms.or_else(|| json["meta_info"]["queue_time"].as_f64().map(|seconds| seconds * 1e3))
    };
    let in_band = events(case).iter().filter_map(|(_, json)| reported(json)).next_back();
    let head = case.meta["response_head"].as_str().unwrap_or_default();
    let header = || head.lines().find_map(|line| line.strip_prefix("x-queue-time: ")?.parse().ok());
    in_band.or_else(header).map(|ms| (ms, "response field"))
}

/// For llama.cpp: the time of the first token minus the prompt time.
fn slot_began(case: &Case) -> Option<(f64, &'static str)> {
    let prompt_ms = events(case).iter().filter_map(|(_, json)| json["timings"]["prompt_ms"].as_f64()).next_back()?;
    let first = naive(case)?.first_token?.as_secs_f64() * 1e3;
    Some((first - prompt_ms, "first token minus `prompt_ms`"))
}

/// Expected source of the queue time, determined independently of `tokometer`.
fn expected(case: &Case) -> Option<QueueSource> {
    let head = case.meta["response_head"].as_str().unwrap_or_default().to_lowercase();
    let (_, json) = events(case).into_iter().next_back().unwrap_or_default();
    match field(case) {
        Some(_) if head.contains("x-queue-time") => Some(QueueSource::ResponseHeader),
        Some(_) => Some(QueueSource::InBand),
        None if json["total_duration"].is_u64() && json["load_duration"].is_u64() => Some(QueueSource::Remainder),
        None => {
            let stream = head.starts_with("http/1.1 200") && head.contains("content-type: text/event-stream");
            (head.contains("server: llama.cpp") && stream).then_some(QueueSource::HeaderTiming)
        }
    }
}

/// Maximum difference from the engine's value, in milliseconds.
fn tolerance(source: QueueSource) -> f64 {
    match source {
        QueueSource::HeaderTiming => HEADER_TIMING_MS,
        // Durations have nanosecond precision.
        _ => 1e-6,
    }
}

/// Generates the whole document, and lists the failures.
fn made() -> (String, Vec<String>) {
    let mut text = INTRODUCTION.to_owned();
    text += "| Source | Engine | Recording | Queue time | Engine's value | Source of the engine's value | Difference |\n|---|---|---|---|---|---|---|\n";
    let (mut wrong, mut compared, mut silent, mut alone) = (Vec::new(), 0, 0, Vec::new());
    let mut rows = Vec::new();
    for case in cases() {
        let Some(record) = case.record() else { continue };
        if record.engine.queue.map(|queue| queue.source) != expected(&case) {
            wrong.push(format!("{}: source {:?}, expected {:?}", case.title(), record.engine.queue, expected(&case)));
        }
        let Some(queue) = record.engine.queue else {
            silent += usize::from(engines(&case).is_some());
            continue;
        };
        let late = READ_LATE.contains(&case.name.as_str());
        let by_head = queue.source == QueueSource::HeaderTiming;
        let stated = if by_head { slot_began(&case).filter(|_| !late && !case.is_written()) } else { engines(&case) };
        let ours = queue.value.as_secs_f64() * 1e3;
        let kind = if case.is_written() { " (fixture)" } else { "" };
        let name = format!("`{}`{kind}", case.name);
        let Some((theirs, by)) = stated else {
            alone.push(format!("{} {name}", case.engine));
            continue;
        };
        compared += 1;
        let off = ours - theirs;
        if off.abs() > tolerance(queue.source) {
            wrong.push(format!("{}: {ours} ms, expected {theirs} ms (engine's value)", case.title()));
        }
        let off = if off.abs() <= 1e-6 { "0".to_owned() } else { format!("{off:+.3}") };
        let source = queue.source.as_str();
        rows.push(format!("| `{source}` | {} | {name} | {ours:.3} | {theirs:.3} | {by} | {off} |\n", case.engine));
    }
    rows.sort();
    text.extend(rows);
    if compared < 30 {
        wrong.push(format!("only {compared} compared"));
    }
    let after = format!(
        "\nThe table has {compared} rows. Queue times with the source `header_timing` differ from the engine's value by at most \
         {HEADER_TIMING_MS} ms; all others are exact.\n\nThe table omits {silent} recordings for which the engine's counter \
         includes a queue time, but the response contains none. For these recordings, tokometer reports no queue \
         time.\n\nThe table also omits {} recordings for which tokometer reports a queue time, but the engine's value is \
         unknown:\n\n- {}\n",
        alone.len(),
        alone.join("\n- ")
    );
    text.write_str(&after).expect("cannot fail");
    (text, wrong)
}

#[test]
fn queue_times_match_engines_and_their_page() {
    let (made, wrong) = made();
    let table = made.split_once("## Comparison with the recordings").map_or("", |(_, table)| table);
    println!("{table}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/concepts/queue-time.md");
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        fs::write(&path, &made).expect("docs is writable");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "docs/concepts/queue-time.md is out of date: UPDATE=1 cargo test --test it truth::queue"
    );
}

/// vLLM's "time to first token" excludes the queue. If it included the queue, one recording would have a queue time of
/// 0.8 s instead of 233 s.
#[test]
fn vllms_time_to_first_token_is_read_as_the_prefill() {
    let mut queued = 0;
    for case in cases().into_iter().filter(|case| case.engine == "vllm-0.32.0") {
        let Some(record) = case.record() else { continue };
        let (Some(queue), Some(first)) = (record.engine.queue, record.times.first_token) else { continue };
        let prefill =
            Duration::from_secs_f64(record.engine.timing.prefill_ms.expect("reported with the queue time") / 1e3);
        let rest = first.checked_sub(queue.value + prefill);
        let rest = rest.unwrap_or_else(|| panic!("{}: queue and prefill exceed the observed wait", case.title()));
        assert!(rest < Duration::from_millis(150), "{}: {rest:?} is neither queue nor prefill", case.title());
        queued += usize::from(queue.value > 100 * prefill);
    }
    assert_eq!(queued, 1, "one recording has a long queue time");
}

/// Checks the sum of phases and the queue phase of every recording.
#[test]
fn phases_of_every_recording_add_up_to_its_duration() {
    let (mut records, mut with_queue) = (0, 0);
    for record in cases().iter().filter_map(Case::record) {
        let phases = Phases::of(&record);
        let sum: Duration = phases.iter().map(|part| part.active()).sum();
        assert_eq!(sum + phases.blocked(), record.times.ended);
        let queue = phases.iter().find(|part| part.kind.as_str() == "queue").map(|part| part.to - part.from);
        let fits = match (queue, record.engine.queue) {
            (Some(part), Some(reported)) if reported.source == QueueSource::Remainder => part <= reported.value,
            (part, reported) => part == reported.map(|queue| queue.value),
        };
        assert!(fits, "{queue:?} of {:?}", record.engine.queue);
        (records, with_queue) = (records + 1, with_queue + usize::from(queue.is_some()));
    }
    println!("{records} recordings, {with_queue} with a queue");
    assert!(records > 220 && with_queue > 40);
}
