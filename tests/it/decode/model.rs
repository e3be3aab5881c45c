//! A naive reimplementation of `decode`: whole texts, `serde_json`, no state.

#[path = "model_named.rs"]
mod named;
#[path = "model_native.rs"]
mod native;

use serde_json::Value;
use tokometer_decode::{Channels, EngineTiming, FinishReason, Framing, Route, StreamEvent, Usage};

/// The events of a whole body; for `Messages`, one message per line.
pub(crate) fn events(route: Route, framing: Framing, body: &[u8]) -> Vec<StreamEvent> {
    let text = String::from_utf8_lossy(body);
    let datas = match framing {
        Framing::Grpc | Framing::Text => unreachable!("this framing has no JSON"),
        Framing::Json => vec![text.into_owned()],
        Framing::Ndjson | Framing::Messages => text.split('\n').map(str::to_owned).collect(),
        Framing::Sse => datas(body),
    };
    let mut transcribes = false;
    let datas = datas.iter().filter(|data| !data.trim().is_empty());
    datas.filter_map(|data| event(route, framing, data, &mut transcribes)).collect()
}

/// The data of each event, following the standard literally.
fn datas(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body).into_owned();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n");
    let mut datas = Vec::new();
    let mut data: Option<String> = None;
    for line in text.split('\n') {
        if line.is_empty() {
            datas.extend(data.take());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            }
        }
    }
    datas.extend(data);
    datas
}

/// The event in `data`; `None` for keep-alives. `transcribes` stores whether the session is a transcription session.
fn event(route: Route, framing: Framing, data: &str, transcribes: &mut bool) -> Option<StreamEvent> {
    if framing == Framing::Sse && data.starts_with("[DONE]") {
        return Some(StreamEvent { done: true, ..StreamEvent::default() });
    }
    match serde_json::from_str::<Value>(data) {
        Ok(value) => {
            *transcribes = named::transcribes(route, framing, &value).unwrap_or(*transcribes);
            let is_ping = named::is_ping(route, framing, &value);
            (!is_ping).then(|| of_value(route, framing, &value, *transcribes))
        }
        Err(_) => Some(StreamEvent { malformed: true, ..StreamEvent::default() }),
    }
}

/// The event for this JSON value.
fn of_value(route: Route, framing: Framing, value: &Value, transcribes: bool) -> StreamEvent {
    if let Some(event) = native::of_value(route, value) {
        return event;
    }
    let mut event = StreamEvent::default();
    let mut has_delta = false;
    let is_transcript = matches!(route, Route::AudioTranscription | Route::AudioTranslation);
    let has_choices = !named::is_named(route) || is_transcript && framing != Framing::Json;
    for choice in value["choices"].as_array().into_iter().flatten().filter(|choice| has_choices && choice.is_object()) {
        event.choices += 1;
        event.choice = choice["index"].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
        match route {
            Route::Completions | Route::VllmGenerate => {
                has_delta |= choice["text"].is_string();
                mark_text(&mut event, &choice["text"], Channels::CONTENT);
            }
            _ => {
                has_delta |= choice["delta"].is_object();
                message(&mut event, &choice["delta"]);
                message(&mut event, &choice["message"]);
            }
        }
        if let Some(word) = choice["finish_reason"].as_str().filter(|word| !word.is_empty()) {
            event.finishes.push(FinishReason::from_wire(word.as_bytes()));
        }
        let token_ids = choice["token_ids"].as_array();
        add(&mut event.token_ids, token_ids);
        add(&mut event.logprobs, choice["logprobs"]["content"].as_array());
        add(&mut event.logprobs, choice["logprobs"]["tokens"].as_array());
    }
    if route == Route::Chat {
        native::predictions(value).for_each(|text| mark(&mut event, text, Channels::CONTENT));
    }
    let is_openai = matches!(route, Route::Chat | Route::Completions);
    event.progress = is_openai && value["prompt_progress"].is_object();
    event.empty_delta = has_delta && !event.role && !event.progress && event.channels.is_empty();
    if named::is_named(route) {
        event.timing = match (route, framing) {
            (Route::Responses | Route::Realtime, Framing::Json) => timing(&value["metrics"], &value["timings"]),
            (Route::Responses | Route::Realtime, _) => timing(&value["response"]["metrics"], &value["timings"])
                .or(timing(&Value::Null, &value["response"]["timings"])),
            _ => None,
        };
        named::read(&mut event, route, framing, value, transcribes);
        return event;
    }
    event.error = is_error(&value["error"]) || value["object"] == "error";
    event.usage = value["usage"].is_object().then(|| usage(&value["usage"], event.choices == 0));
    event.timing = timing(&value["metrics"], if is_openai { &value["timings"] } else { &Value::Null });
    let of_dynamo = &value["nvext"]["timing"];
    if is_openai && of_dynamo.is_object() {
        let timing = event.timing.get_or_insert_default();
        timing.queue_ms = of_dynamo["prefill_wait_time_ms"].as_f64().filter(|ms| *ms >= 0.0).or(timing.queue_ms);
        timing.prefill_ms = of_dynamo["prefill_time_ms"].as_f64().filter(|ms| *ms >= 0.0).or(timing.prefill_ms);
    }
    event
}

fn message(event: &mut StreamEvent, message: &Value) {
    event.role |= message["role"].as_str().is_some_and(|role| !role.is_empty());
    mark(event, &message["content"], Channels::CONTENT);
    mark(event, &message["reasoning"], Channels::REASONING);
    mark(event, &message["reasoning_content"], Channels::REASONING);
    mark(event, &message["refusal"], Channels::REFUSAL);
    mark(event, &message["audio"]["data"], Channels::AUDIO);
    mark(event, &message["audio"]["transcript"], Channels::AUDIO);
    for part in message["reasoning_details"].as_array().into_iter().flatten() {
        mark_part(event, part, Channels::REASONING);
    }
    // TGI 2.4 sends one call instead of a list.
    let calls = message["tool_calls"].as_array().map_or(std::slice::from_ref(&message["tool_calls"]), Vec::as_slice);
    let calls = calls.iter();
    let functions = calls.flat_map(|call| [&call["function"], &call["custom"]]).chain([&message["function_call"]]);
    for function in functions {
        for key in ["name", "arguments", "input"] {
            mark(event, &function[key], Channels::TOOL);
        }
    }
}

/// A text, a part with a text, or a list of either.
fn mark(event: &mut StreamEvent, text: &Value, channel: Channels) {
    match text {
        Value::String(text) if !text.is_empty() => event.channels.insert(channel),
        Value::Array(parts) if matches!(channel, Channels::CONTENT | Channels::REASONING) => {
            parts.iter().for_each(|part| mark_part(event, part, channel));
        }
        _ => {}
    }
}

/// A text, or an object with texts.
fn mark_part(event: &mut StreamEvent, part: &Value, channel: Channels) {
    match part {
        Value::String(_) => mark_text(event, part, channel),
        Value::Object(part) => {
            let text = |key: &str| part.get(key).unwrap_or(&Value::Null);
            if channel == Channels::CONTENT {
                mark_text(event, text("text"), channel);
                mark(event, text("thinking"), Channels::REASONING);
                mark(event, text("reasoning"), Channels::REASONING);
                mark_text(event, text("refusal"), Channels::REFUSAL);
            } else if channel == Channels::REASONING {
                ["text", "summary", "thinking"].into_iter().for_each(|key| mark_text(event, text(key), channel));
            }
        }
        _ => {}
    }
}

fn mark_text(event: &mut StreamEvent, text: &Value, channel: Channels) {
    if text.is_string() {
        mark(event, text, channel);
    }
}

/// True for an error that is not empty.
fn is_error(error: &Value) -> bool {
    error.as_object().is_some_and(|error| !error.is_empty()) || error.as_str().is_some_and(|error| !error.is_empty())
}

fn add(sum: &mut Option<u32>, list: Option<&Vec<Value>>) {
    if let Some(list) = list {
        *sum = Some(sum.unwrap_or(0) + list.len() as u32);
    }
}

fn usage(usage: &Value, total: bool) -> Usage {
    Usage {
        input: usage["prompt_tokens"].as_u64().or(usage["input_tokens"].as_u64()),
        output: usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64()),
        cached: usage["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .or(usage["cached_tokens"].as_u64())
            .or(usage["prompt_cache_hit_tokens"].as_u64()),
        cache_creation: usage["prompt_tokens_details"]["cache_write_tokens"]
            .as_u64()
            .or(usage["prompt_tokens_details"]["created_cache_tokens"].as_u64()),
        reasoning: usage["completion_tokens_details"]["reasoning_tokens"]
            .as_u64()
            .or(usage["completion_tokens_details"]["thinking_tokens"].as_u64())
            .or(usage["reasoning_tokens"].as_u64()),
        input_audio: modality(usage, "audio"),
        input_image: modality(usage, "image"),
        output_audio: usage["completion_tokens_details"]["audio_tokens"].as_u64(),
        total,
        early: false,
        cached_apart: false,
    }
}

/// OpenAI's `audio_tokens`, vLLM's `multimodal_tokens.audio`.
fn modality(usage: &Value, name: &str) -> Option<u64> {
    let details = &usage["prompt_tokens_details"];
    details[format!("{name}_tokens")].as_u64().or(details["multimodal_tokens"][name].as_u64())
}

fn timing(metrics: &Value, timings: &Value) -> Option<EngineTiming> {
    (metrics.is_object() || timings.is_object()).then(|| EngineTiming {
        queue_ms: metrics["queue_time_ms"].as_f64().filter(|ms| *ms >= 0.0),
        prefill_ms: metrics["time_to_first_token_ms"].as_f64().filter(|ms| *ms >= 0.0),
        decode_ms: metrics["generation_time_ms"]
            .as_f64()
            .filter(|ms| *ms >= 0.0)
            .or(timings["predicted_ms"].as_f64().filter(|ms| *ms >= 0.0)),
        prompt_ms: timings["prompt_ms"].as_f64().filter(|ms| *ms >= 0.0),
        load_ms: None,
        total_ms: None,
        cached_tokens: timings["cache_n"].as_u64(),
        prompt_tokens: timings["prompt_n"].as_u64(),
        predicted_tokens: timings["predicted_n"].as_u64(),
        draft_tokens: metrics["speculative_decoding"]["num_draft_tokens"].as_u64().or(timings["draft_n"].as_u64()),
        accepted_tokens: metrics["speculative_decoding"]["num_accepted_draft_tokens"]
            .as_u64()
            .or(timings["draft_n_accepted"].as_u64()),
    })
}

/// Asserts that both are equal. Floats are compared with reduced precision, because `serde_json` rounds differently.
/// For malformed events, only `malformed` is compared.
pub(crate) fn assert_same(name: &str, got: &[StreamEvent], expected: &[StreamEvent]) {
    assert_eq!(got.len(), expected.len(), "{name}: number of events");
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.malformed, expected.malformed, "{name}: event {place} {got:?}");
        if !expected.malformed {
            assert_eq!(rounded(got), rounded(expected), "{name}: event {place}");
        }
    }
}

fn rounded(event: &StreamEvent) -> StreamEvent {
    let round = |value: Option<f64>| value.map(|value| value as f32 as f64);
    let timing = event.timing.map(|timing| EngineTiming {
        queue_ms: round(timing.queue_ms),
        prefill_ms: round(timing.prefill_ms),
        decode_ms: round(timing.decode_ms),
        prompt_ms: round(timing.prompt_ms),
        load_ms: round(timing.load_ms),
        total_ms: round(timing.total_ms),
        ..timing
    });
    StreamEvent { timing, ..*event }
}
