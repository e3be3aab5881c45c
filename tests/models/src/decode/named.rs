//! The naive model of the dialects with typed events.

use super::Past;
use serde_json::Value;
use tokometer_decode::{Channels, FinishReason, Framing, Route, StreamEvent, TokenParts, Usage};

/// Fills the event from this value.
pub(super) fn read(event: &mut StreamEvent, route: Route, framing: Framing, value: &Value, past: &mut Past) {
    let transcribes = past.transcribes;
    let is_body = framing == Framing::Json;
    let kind = if is_body { "" } else { value["type"].as_str().unwrap_or_default() };
    event.end |= [
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.done",
        "response.cancelled",
        "message_stop",
        "message-end",
        "transcript.text.done",
        "transcription.done",
    ]
    .contains(&kind);
    event.asks = ["response.create", "input_audio_buffer.commit"].contains(&kind);
    let is_coded = matches!(route, Route::Responses | Route::Realtime);
    event.error |= super::is_error(&value["error"], 1) || value["object"] == "error" || kind == "error";
    event.error |= kind == "response.failed";
    match route {
        Route::Responses | Route::Realtime if is_body => {
            response(event, value, 1);
            whole(event, true, Some(Channels::CONTENT), &[], &items(&value["output"]));
        }
        Route::Responses | Route::Realtime => {
            piece(event, kind, &value["delta"]);
            input_transcription(event, kind, value, transcribes);
            let mut items = items(&value["response"]["output"]);
            items.push(&value["item"]);
            if kind == "response.output_item.added" {
                items.iter().for_each(|item| call(event, item));
            }
            if !past.has_deltas {
                let texts = ["text", "arguments", "input", "refusal", "transcript"].map(|key| &value[key]);
                let part = [&value["part"]];
                let texts = texts.into_iter().filter(|text| text.is_string()).chain(part).collect::<Vec<_>>();
                whole(event, event.end, whole_channel(event.end, kind), &texts, &items);
            }
            past.has_deltas |= !event.channels.is_empty();
            response(event, &value["response"], 2);
            if value["usage"].is_object() {
                event.usage = Some(token_usage(&value["usage"]));
            }
        }
        Route::Messages if is_body => {
            for block in value["content"].as_array().into_iter().flatten() {
                content_block(event, block);
            }
            super::finish(event, &value["stop_reason"]);
            event.usage = message_usage(&value["usage"], false);
        }
        Route::Messages => {
            content_block(event, &value["content_block"]);
            let delta = &value["delta"];
            mark(event, &[&delta["text"]], Channels::CONTENT);
            mark(event, &[&delta["thinking"]], Channels::REASONING);
            mark(event, &[&delta["partial_json"]], Channels::TOOL);
            super::finish(event, &delta["stop_reason"]);
            event.usage = message_usage(&value["usage"], false).or(message_usage(&value["message"]["usage"], true));
            if let Some(usage) = &mut event.usage {
                usage.early |= kind == "content_block_delta";
            }
        }
        Route::CohereChat if is_body => {
            cohere_message(event, &value["message"], true);
            super::finish(event, &value["finish_reason"]);
            event.usage = cohere_usage(&value["usage"]);
        }
        Route::CohereChat => {
            let delta = &value["delta"];
            cohere_message(event, &delta["message"], false);
            super::finish(event, &delta["finish_reason"]);
            event.usage = cohere_usage(&delta["usage"]);
            event.error |= super::is_error(&delta["error"], 2);
        }
        Route::AudioTranscription | Route::AudioTranslation => {
            if is_body {
                mark(event, &[&value["text"]], Channels::CONTENT);
            } else {
                piece(event, kind, &value["delta"]);
                let text = [&value["text"]];
                if !past.has_deltas && value["text"].is_string() {
                    whole(event, event.end, whole_channel(event.end, kind), &text, &[]);
                }
                let is_typed = event.end || piece_channel(kind, ".delta").or(piece_channel(kind, ".done")).is_some();
                past.has_deltas |= is_typed && !event.channels.is_empty();
            }
            let total = event.choices == 0;
            event.usage = value["usage"].is_object().then(|| Usage { total, ..token_usage(&value["usage"]) });
        }
        _ => unreachable!("{route:?} has no typed events"),
    }
    if kind == "response.cancelled" && (!is_coded || event.finishes.is_empty()) {
        event.finishes.push(FinishReason::Canceled);
    }
    // A failed transcription of the user's audio is an error of the response only in a transcription session.
    let is_transcription_end =
        kind.strip_prefix(INPUT_TRANSCRIPTION).is_some_and(|what| ["completed", "failed"].contains(&what));
    event.error &= !is_transcription_end || transcribes;
}

/// Prefix of the event types for transcribed input.
const INPUT_TRANSCRIPTION: &str = "conversation.item.input_audio_transcription.";

/// Whether the session transcribes, if this value reports it (realtime).
pub(super) fn transcribes(route: Route, framing: Framing, value: &Value) -> Option<bool> {
    let has_sessions = matches!(route, Route::Responses | Route::Realtime) && framing != Framing::Json;
    value["session"]["type"].as_str().filter(|_| has_sessions).map(|word| word == "transcription")
}

/// In a transcription session the transcribed input is the response.
fn input_transcription(event: &mut StreamEvent, kind: &str, value: &Value, transcribes: bool) {
    match kind.strip_prefix(INPUT_TRANSCRIPTION) {
        Some("delta") if transcribes => delta_text(event, &value["delta"], Channels::CONTENT),
        Some("completed" | "failed") => event.end = transcribes,
        _ => {}
    }
}

/// True for the routes of dialects with typed events.
pub(super) fn is_named(route: Route) -> bool {
    matches!(
        route,
        Route::Responses
            | Route::Realtime
            | Route::Messages
            | Route::CohereChat
            | Route::AudioTranscription
            | Route::AudioTranslation
    )
}

/// True for keep-alive events.
pub(super) fn is_ping(route: Route, framing: Framing, value: &Value) -> bool {
    is_named(route) && framing != Framing::Json && value["type"] == "ping"
}

fn mark(event: &mut StreamEvent, texts: &[&Value], channel: Channels) {
    texts.iter().for_each(|text| super::mark(event, text, channel));
}

/// The text of a `delta`: a string, an object, or a list of either.
fn delta_text(event: &mut StreamEvent, delta: &Value, channel: Channels) {
    match delta {
        Value::Object(delta) => {
            ["text", "content"]
                .into_iter()
                .filter_map(|key| delta.get(key))
                .for_each(|text| delta_text(event, text, channel));
        }
        Value::Array(parts) => parts.iter().for_each(|part| delta_text(event, part, channel)),
        _ => super::mark_text(event, delta, channel),
    }
}

/// The event's type determines the channel of a `delta` string.
fn piece(event: &mut StreamEvent, kind: &str, delta: &Value) {
    if let Some(channel) = piece_channel(kind, ".delta") {
        delta_text(event, delta, channel);
    }
}

/// The channel of an event whose type ends with `suffix`.
fn piece_channel(kind: &str, suffix: &str) -> Option<Channels> {
    Some(match kind.strip_suffix(suffix)? {
        "transcript.text" | "transcription" => Channels::CONTENT,
        "session.output_audio" | "session.output_transcript" => Channels::AUDIO,
        name if !name.starts_with("response.") || name == "response.shell_call_output_content" => return None,
        name if name.starts_with("response.reasoning") => Channels::REASONING,
        name if name.contains("call") => Channels::TOOL,
        name if name.contains("audio") => Channels::AUDIO,
        "response.refusal" => Channels::REFUSAL,
        _ => Channels::CONTENT,
    })
}

/// The channel of whole texts in an event of this type; `None` if it does not repeat what earlier events sent.
fn whole_channel(ends: bool, kind: &str) -> Option<Channels> {
    if ends { Some(Channels::CONTENT) } else { piece_channel(kind, ".done") }
}

/// The objects in a list.
fn items(list: &Value) -> Vec<&Value> {
    list.as_array().into_iter().flatten().filter(|item| item.is_object()).collect()
}

/// The name and the arguments of a tool call.
fn call(event: &mut StreamEvent, item: &Value) {
    for key in ["name", "arguments", "input"] {
        super::mark_text(event, &item[key], Channels::TOOL);
    }
}

/// Texts and items that earlier events may have sent in pieces. `all`: they are the whole output.
fn whole(event: &mut StreamEvent, all: bool, channel: Option<Channels>, texts: &[&Value], items: &[&Value]) {
    let Some(channel) = channel else { return };
    let mut parts = texts.to_vec();
    for item in items {
        call(event, item);
        for key in ["content", "summary"] {
            match &item[key] {
                Value::Array(list) => parts.extend(list),
                one => parts.push(one),
            }
        }
    }
    let is_text = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    let keys = ["text", "refusal", "transcript"];
    let has_text = parts.iter().any(|part| is_text(part) || keys.iter().any(|key| is_text(&part[key])));
    let reasons = |part: &Value| {
        part["type"].as_str().is_some_and(|word| word.starts_with("reasoning") || word.starts_with("summary"))
    };
    let reasons = parts.iter().any(|part| reasons(part));
    if has_text && reasons {
        event.channels.insert(Channels::REASONING);
    }
    if has_text && (!reasons || all) {
        event.channels.insert(channel);
    }
}

/// Reads a response. `around`: the number of containers around its members.
fn response(event: &mut StreamEvent, response: &Value, around: usize) {
    event.error |= super::is_error(&response["error"], around) || response["object"] == "error";
    let reasons = [&response["incomplete_details"], &response["status_details"]];
    let reason = reasons.iter().rev().find_map(|details| details["reason"].as_str()).filter(|word| !word.is_empty());
    event.error |= reasons.iter().any(|details| super::is_error(&details["error"], around + 1));
    let status = response["status"].as_str().map(str::to_ascii_lowercase);
    let status_of = |words: &[&'static str]| words.iter().copied().find(|word| status.as_deref() == Some(word));
    event.pending |= status_of(&["in_progress", "queued"]).is_some();
    let known = status_of(&["completed", "incomplete", "failed", "cancelled", "canceled"]);
    let word = |word: Option<&str>| FinishReason::from_wire(word?.as_bytes());
    word(reason).or(word(known)).into_iter().for_each(|reason| event.finishes.push(reason));
    if response["usage"].is_object() {
        event.usage = Some(token_usage(&response["usage"]));
    }
}

/// `usage` with the key names of the Responses API or of chats. If several names of a count are present, the last
/// positive value wins.
pub(super) fn token_usage(usage: &Value) -> Usage {
    let mut read = Usage { total: true, ..Usage::default() };
    let mut outer_reasoning = None;
    let set = |place: &mut Option<u64>, value: &Value| *place = preferred(super::integer(value), *place);
    for (key, value) in usage.as_object().into_iter().flatten() {
        match key.as_str() {
            "input_tokens" | "prompt_tokens" | "promptTokens" | "inputTokens" => set(&mut read.input, value),
            "output_tokens" | "completion_tokens" | "completionTokens" | "outputTokens" => set(&mut read.output, value),
            "cached_tokens" | "prompt_cache_hit_tokens" | "cache_read_input_tokens" => set(&mut read.cached, value),
            "cache_creation_input_tokens" => set(&mut read.parts.cache_creation, value),
            "reasoning_tokens" => set(&mut outer_reasoning, value),
            "input_tokens_details" | "input_token_details" | "prompt_tokens_details" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    match key.as_str() {
                        "cached_tokens" => set(&mut read.cached, value),
                        "cache_write_tokens" | "created_cache_tokens" => set(&mut read.parts.cache_creation, value),
                        "audio_tokens" => set(&mut read.parts.input_audio, value),
                        "image_tokens" => set(&mut read.parts.input_image, value),
                        "video_tokens" => set(&mut read.parts.input_video, value),
                        "multimodal_tokens" => {
                            set(&mut read.parts.input_audio, &value["audio"]);
                            set(&mut read.parts.input_image, &value["image"]);
                            set(&mut read.parts.input_video, &value["video"]);
                        }
                        _ => {}
                    }
                }
            }
            "output_tokens_details" | "output_token_details" | "completion_tokens_details" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    match key.as_str() {
                        "reasoning_tokens" | "thinking_tokens" => set(&mut read.reasoning, value),
                        "audio_tokens" => set(&mut read.parts.output_audio, value),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Usage { reasoning: preferred(read.reasoning, outer_reasoning), ..read }
}

/// The first count, unless it is zero and the other is known.
pub(super) fn preferred(first: Option<u64>, other: Option<u64>) -> Option<u64> {
    first.filter(|count| *count > 0).or(other).or(first)
}

fn content_block(event: &mut StreamEvent, block: &Value) {
    mark(event, &[&block["text"]], Channels::CONTENT);
    mark(event, &[&block["thinking"]], Channels::REASONING);
    mark(event, &[&block["name"]], Channels::TOOL);
}

/// The input count is the sum of uncached, cached and cache creation tokens.
fn message_usage(usage: &Value, early: bool) -> Option<Usage> {
    let count = |name: &str| super::integer(&usage[name]);
    let cached = count("cache_read_input_tokens");
    let cache_creation = count("cache_creation_input_tokens");
    let input = count("input_tokens")
        .map(|input| input.saturating_add(cached.unwrap_or(0).saturating_add(cache_creation.unwrap_or(0))));
    let details = &usage["output_tokens_details"];
    usage.is_object().then(|| Usage {
        input,
        output: count("output_tokens").filter(|_| !early),
        cached,
        reasoning: super::integer(&details["reasoning_tokens"])
            .or(super::integer(&details["thinking_tokens"]))
            .filter(|_| !early),
        parts: TokenParts {
            cache_creation,
            output_audio: super::integer(&details["audio_tokens"]).filter(|_| !early),
            ..TokenParts::default()
        },
        total: true,
        early,
        cached_apart: true,
    })
}

/// In a body, contents and tool calls are lists; in an event each is a single element.
fn cohere_message(event: &mut StreamEvent, message: &Value, is_body: bool) {
    let list = |value: &Value| match (is_body, value) {
        (true, value) => value.as_array().cloned().unwrap_or_default(),
        (false, value) => vec![value.clone()],
    };
    for content in list(&message["content"]) {
        mark(event, &[&content["text"]], Channels::CONTENT);
        mark(event, &[&content["thinking"]], Channels::REASONING);
    }
    mark(event, &[&message["tool_plan"]], Channels::REASONING);
    // One call needs no list.
    let calls = if message["tool_calls"].is_object() {
        vec![message["tool_calls"].clone()]
    } else {
        list(&message["tool_calls"])
    };
    for call in calls {
        let function = &call["function"];
        mark(event, &[&function["name"], &function["arguments"]], Channels::TOOL);
    }
}

fn cohere_usage(usage: &Value) -> Option<Usage> {
    usage.is_object().then(|| Usage {
        input: super::integer(&usage["tokens"]["input_tokens"]),
        output: super::integer(&usage["tokens"]["output_tokens"]),
        cached: super::integer(&usage["cached_tokens"]),
        total: true,
        ..Usage::default()
    })
}
