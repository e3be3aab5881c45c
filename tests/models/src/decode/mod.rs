//! A naive reimplementation of `decode`: whole texts, `serde_json`, no state.

mod named;
mod native;

use serde_json::{Map, Value};
use tokometer_decode::{Channels, EngineTiming, FinishReason, Framing, Route, StreamEvent, Usage};

/// The events of a whole body; for `Messages`, one message per line.
pub fn events(route: Route, framing: Framing, body: &[u8]) -> Vec<StreamEvent> {
    let text = String::from_utf8_lossy(body);
    let datas = match framing {
        Framing::Grpc | Framing::Text => unreachable!("this framing has no JSON"),
        Framing::Json => match text.split_once('\n') {
            // A sequence of texts, one per line.
            Some((first, rest)) if rest.trim_start().starts_with('{') && is_whole(first) => {
                text.split('\n').map(str::to_owned).collect()
            }
            _ => vec![text.into_owned()],
        },
        Framing::Ndjson | Framing::Messages => text.split('\n').map(str::to_owned).collect(),
        Framing::Sse => datas(body),
    };
    let mut past = Past::default();
    let datas = datas.iter().filter(|data| !data.trim().is_empty());
    datas.filter_map(|data| event(route, framing, data, &mut past)).collect()
}

/// What earlier events determine.
#[derive(Default)]
struct Past {
    /// The session is a transcription session.
    transcribes: bool,
    /// An event had a delta with text.
    has_deltas: bool,
}

fn is_whole(text: &str) -> bool {
    let value = serde_json::from_str::<Value>(text);
    value.is_ok_and(|value| value.is_object() || value.is_array() || value.is_string())
}

/// The data of each event, following the standard literally, except that a line after a complete text begins the next
/// event.
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
            if data.as_ref().is_some_and(|data| is_whole(data)) {
                datas.extend(data.take());
            }
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

/// The event in `data`; `None` for keep-alives.
fn event(route: Route, framing: Framing, data: &str, past: &mut Past) -> Option<StreamEvent> {
    if framing == Framing::Sse && data.to_ascii_uppercase().starts_with("[DONE]") {
        return Some(StreamEvent { done: true, ..StreamEvent::default() });
    }
    match serde_json::from_str::<Value>(data) {
        Ok(value) => {
            past.transcribes = named::transcribes(route, framing, &value).unwrap_or(past.transcribes);
            let is_ping = named::is_ping(route, framing, &value);
            (!is_ping).then(|| of_value(route, framing, &value, past))
        }
        Err(_) => Some(StreamEvent { malformed: true, ..StreamEvent::default() }),
    }
}

/// The event for this JSON value.
fn of_value(route: Route, framing: Framing, value: &Value, past: &mut Past) -> StreamEvent {
    if let Some(event) = native::of_value(route, value) {
        return event;
    }
    let mut event = StreamEvent::default();
    let mut has_delta = false;
    // `message` repeats the text so far if there is a `delta`.
    let mut whole = StreamEvent::default();
    let is_transcript = matches!(route, Route::AudioTranscription | Route::AudioTranslation);
    let has_choices = !named::is_named(route) || is_transcript && framing != Framing::Json;
    for choice in value["choices"].as_array().into_iter().flatten().filter(|choice| has_choices && choice.is_object()) {
        match route {
            Route::Completions | Route::VllmGenerate => has_delta |= completion_choice(&mut event, choice),
            _ => {
                let text = choice["text"].as_str().is_some_and(|text| !text.is_empty());
                has_delta |= choice["delta"].is_object() || text;
                mark(&mut event, &choice["text"], Channels::CONTENT);
                message(&mut event, &choice["delta"]);
                message(&mut whole, &choice["message"]);
                any_choice(&mut event, choice);
            }
        }
    }
    event.role |= whole.role;
    event.image |= whole.image;
    let before = past.has_deltas;
    if route == Route::Chat {
        native::predictions(value).for_each(|text| mark(&mut event, text, Channels::CONTENT));
    }
    past.has_deltas |= has_delta && !event.channels.is_empty();
    if !has_delta && !before {
        event.channels.insert(whole.channels);
    }
    let is_openai = matches!(route, Route::Chat | Route::Completions);
    let is_empty =
        event.channels.is_empty() && !event.image && event.finishes.is_empty() && !value["usage"].is_object();
    event.progress = is_openai && value["prompt_progress"].is_object() && is_empty;
    event.empty_delta = has_delta && !event.role && !event.progress && !event.image && event.channels.is_empty();
    if named::is_named(route) {
        event.timing = match (route, framing) {
            (Route::Responses | Route::Realtime, Framing::Json) => timing(&value["metrics"], &value["timings"]),
            (Route::Responses | Route::Realtime, _) => timing(&value["response"]["metrics"], &value["timings"])
                .or(timing(&Value::Null, &value["response"]["timings"])),
            _ => None,
        };
        named::read(&mut event, route, framing, value, past);
        return event;
    }
    event.error = is_error(&value["error"], 1) || value["object"] == "error";
    event.usage =
        value["usage"].is_object().then(|| Usage { total: event.choices == 0, ..named::token_usage(&value["usage"]) });
    event.timing = timing(&value["metrics"], if is_openai { &value["timings"] } else { &Value::Null });
    let of_dynamo = &value["nvext"]["timing"];
    if is_openai && of_dynamo.is_object() {
        let timing = event.timing.get_or_insert_default();
        timing.queue_ms = float(&of_dynamo["prefill_wait_time_ms"]).or(timing.queue_ms);
        timing.prefill_ms = float(&of_dynamo["prefill_time_ms"]).or(timing.prefill_ms);
        timing.total_ms = float(&of_dynamo["total_time_ms"]);
    }
    event
}

/// Reads a choice of a completion. Returns true if it has a text or a delta, possibly empty.
fn completion_choice(event: &mut StreamEvent, choice: &Value) -> bool {
    let text = &choice["text"];
    mark(event, text, Channels::CONTENT);
    message(event, &choice["delta"]);
    any_choice(event, choice);
    choice["delta"].is_object() || text.is_string() || text.is_array() || text.is_object()
}

/// Reads what choices of chats and of completions have.
fn any_choice(event: &mut StreamEvent, choice: &Value) {
    event.choices += 1;
    event.choice = integer(&choice["index"]).and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
    // The first of the two names that has a reason.
    let before = event.finishes.len();
    finish(event, &choice["finishReason"]);
    if event.finishes.len() == before {
        finish(event, &choice["finish_reason"]);
    }
    add(&mut event.token_ids, choice["token_ids"].as_array());
    // The first list with entries counts.
    let lists = ["content", "tokens"].map(|key| choice["logprobs"][key].as_array());
    let first = lists.iter().flatten().find(|list| !list.is_empty());
    add(&mut event.logprobs, first.or(lists.iter().flatten().next()).copied());
}

/// A reason, or an object with the reason as its type. `cancelled` means that the engine gave up.
fn finish(event: &mut StreamEvent, reason: &Value) {
    let word = reason.as_str().or(reason["type"].as_str()).unwrap_or_default();
    match FinishReason::from_wire(word.as_bytes()) {
        Some(FinishReason::Canceled) => event.finishes.push(FinishReason::Abort),
        reason => reason.into_iter().for_each(|reason| event.finishes.push(reason)),
    }
}

fn message(event: &mut StreamEvent, message: &Value) {
    event.role |= message["role"].as_str().is_some_and(|role| !role.is_empty());
    mark(event, &message["content"], Channels::CONTENT);
    mark(event, &message["reasoning"], Channels::REASONING);
    mark(event, &message["reasoning_content"], Channels::REASONING);
    mark(event, &message["reasoningContent"], Channels::REASONING);
    mark(event, &message["refusal"], Channels::REFUSAL);
    image(event, &message["images"]);
    mark(event, &message["audio"]["data"], Channels::AUDIO);
    mark(event, &message["audio"]["transcript"], Channels::AUDIO);
    mark(event, &message["thinking"], Channels::REASONING);
    let details = message["reasoning_details"]
        .as_array()
        .map_or(std::slice::from_ref(&message["reasoning_details"]), Vec::as_slice);
    for part in details.iter().filter(|part| part.is_object() || message["reasoning_details"].is_array()) {
        mark_part(event, part, Channels::REASONING);
    }
    // TGI 2.4 sends one call instead of a list.
    let calls = ["tool_calls", "toolCalls"].map(|key| &message[key]);
    let calls = calls.into_iter().flat_map(|calls| calls.as_array().map_or(std::slice::from_ref(calls), Vec::as_slice));
    let functions = calls
        .flat_map(|call| [call, &call["function"], &call["custom"]])
        .chain([&message["function_call"], &message["functionCall"]]);
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
        Value::Object(_) if channel == Channels::TOOL => event.channels.insert(channel),
        Value::Object(_) => mark_part(event, text, channel),
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
                mark_part(event, text("text"), channel);
                mark_part(event, text("content"), channel);
                mark(event, text("thinking"), Channels::REASONING);
                mark(event, text("reasoning"), Channels::REASONING);
                mark_text(event, text("refusal"), Channels::REFUSAL);
                image(event, text("image_url"));
            } else if channel == Channels::REASONING {
                ["text", "content", "summary", "thinking"]
                    .into_iter()
                    .for_each(|key| mark_part(event, text(key), channel));
            }
        }
        _ => {}
    }
}

/// An image, a part with an image, or a list of either.
fn image(event: &mut StreamEvent, value: &Value) {
    match value {
        Value::String(text) => event.image |= !text.is_empty(),
        Value::Array(images) => images.iter().for_each(|value| image(event, value)),
        Value::Object(_) => ["url", "image_url", "b64_json"].iter().for_each(|key| image(event, &value[key])),
        _ => {}
    }
}

fn mark_text(event: &mut StreamEvent, text: &Value, channel: Channels) {
    if text.is_string() {
        mark(event, text, channel);
    }
}

/// A count: an integer, a whole floating-point number, or a string with either.
fn integer(value: &Value) -> Option<u64> {
    let whole = |value: f64| (value.fract() == 0.0 && (0.0..1e15).contains(&value)).then_some(value as u64);
    match value {
        Value::String(text) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
        _ => value.as_u64().or_else(|| whole(value.as_f64()?)),
    }
}

/// A duration: a number, or a string with a number.
fn float(value: &Value) -> Option<f64> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        _ => value.as_f64(),
    };
    number.filter(|number| number.is_finite() && *number >= 0.0)
}

/// True for a text or an object that has a value, other than a code and a message of success. The decoder does not see
/// more than 8 containers in each other, of which `around` contain the error, and no lists in its type and its message.
fn is_error(error: &Value, around: usize) -> bool {
    let fails = |word: &str| {
        let no_error = ["", "success", "succeeded", "ok", "no error"];
        let number = integer(&Value::from(word));
        !matches!(number, Some(0 | 200)) && !no_error.contains(&word.to_ascii_lowercase().as_str())
    };
    let has_value = |error: &Map<String, Value>| {
        error.iter().any(|(key, value)| match (key.as_str(), value) {
            ("code", Value::String(word)) | ("message", Value::String(word)) => fails(word),
            ("code", Value::Number(number)) => fails(&number.to_string()),
            ("code", _) | ("type" | "message", Value::Array(_)) => false,
            (_, value) => is_set(value, 7_usize.saturating_sub(around)),
        })
    };
    error.as_object().is_some_and(has_value) || error.as_str().is_some_and(|error| !error.is_empty())
}

/// True for a value that is not zero, empty, `null` or `false`. `room`: how many containers may be in each other.
fn is_set(value: &Value, room: usize) -> bool {
    let inner = room.checked_sub(1);
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => !number.to_string().starts_with('0'),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => inner.is_some_and(|room| values.iter().any(|value| is_set(value, room))),
        Value::Object(values) => inner.is_some_and(|room| values.values().any(|value| is_set(value, room))),
    }
}

fn add(sum: &mut Option<u32>, list: Option<&Vec<Value>>) {
    if let Some(list) = list {
        *sum = Some(sum.unwrap_or(0) + list.len() as u32);
    }
}

fn timing(metrics: &Value, timings: &Value) -> Option<EngineTiming> {
    (metrics.is_object() || timings.is_object()).then(|| EngineTiming {
        queue_ms: float(&metrics["queue_time_ms"]),
        prefill_ms: float(&metrics["time_to_first_token_ms"]),
        decode_ms: float(&metrics["generation_time_ms"]).or(float(&timings["predicted_ms"])),
        prompt_ms: float(&timings["prompt_ms"]),
        load_ms: None,
        total_ms: None,
        cached_tokens: integer(&timings["cache_n"]),
        prompt_tokens: integer(&timings["prompt_n"]),
        predicted_tokens: integer(&timings["predicted_n"]),
        draft_tokens: integer(&metrics["speculative_decoding"]["num_draft_tokens"]).or(integer(&timings["draft_n"])),
        accepted_tokens: integer(&metrics["speculative_decoding"]["num_accepted_draft_tokens"])
            .or(integer(&timings["draft_n_accepted"])),
    })
}

/// Asserts that both are equal. Floats are compared with reduced precision, because `serde_json` rounds differently.
/// For malformed events, only `malformed` is compared.
pub fn assert_same(name: &str, got: &[StreamEvent], expected: &[StreamEvent]) {
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
