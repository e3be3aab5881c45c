//! Reads the contents of one event from its parsed JSON.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::truth::Api;

/// Content of one choice in an event.
#[derive(Default)]
pub(super) struct Stated {
    pub(super) choice: u64,
    /// The choice carried a token.
    pub(super) token: bool,
    /// Number of tokens; only if the engine sends a running counter.
    pub(super) tokens: Option<u64>,
    /// The choice carried visible text.
    pub(super) visible: bool,
    pub(super) finish: Option<String>,
}

/// Reads an event. `stepwise`: each chunk except the one with the role is a step of the engine. `counters`: the
/// previous counter of each choice.
pub(super) fn stated(api: Api, json: &Value, stepwise: bool, counters: &mut BTreeMap<u64, u64>) -> Vec<Stated> {
    match api {
        Api::Chat | Api::Completions | Api::VllmGenerate | Api::Transcription => {
            json["choices"].as_array().into_iter().flatten().map(|choice| chat(choice, stepwise)).collect()
        }
        Api::Responses => vec![responses(json)],
        Api::Messages => vec![messages(json)],
        Api::Generate => {
            let meta = &json["meta_info"];
            counted(json, &meta["completion_tokens"], &json["text"], &meta["finish_reason"]["type"], counters)
        }
        Api::LlamaCompletion => {
            let stop = if json["stop_type"] == "none" { &Value::Null } else { &json["stop_type"] };
            counted(json, &json["tokens_predicted"], &json["content"], stop, counters)
        }
        Api::Ollama => vec![ollama(json)],
        Api::TgiStream => vec![tgi(json)],
        Api::Triton => {
            let token = full(&json["text_output"]);
            vec![Stated { token, visible: token, ..Stated::default() }]
        }
        Api::Cohere => vec![cohere(json)],
    }
}

fn full(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn finish(reason: &Value) -> Option<String> {
    let word = match reason.as_str()? {
        "end_turn" | "eos" | "eos_token" | "word" | "COMPLETE" => "stop",
        "max_tokens" | "max_output_tokens" | "limit" => "length",
        "tool_use" => "tool_calls",
        word => word,
    };
    (!word.is_empty()).then(|| word.to_owned())
}

fn chat(choice: &Value, stepwise: bool) -> Stated {
    let delta = &choice["delta"];
    let visible = full(&delta["content"]) || full(&choice["text"]);
    let tool = delta["tool_calls"].as_array().into_iter().flatten();
    let tool = tool.map(|t| &t["function"]).any(|f| full(&f["name"]) || full(&f["arguments"]));
    let thinks = full(&delta["reasoning"]) || full(&delta["reasoning_content"]);
    let held_back = stepwise && !full(&delta["role"]);
    let ids = choice["token_ids"].as_array().is_some_and(|ids| !ids.is_empty());
    Stated {
        choice: choice["index"].as_u64().unwrap_or(0),
        token: visible || tool || thinks || held_back || ids,
        visible,
        finish: finish(&choice["finish_reason"]),
        ..Stated::default()
    }
}

fn responses(json: &Value) -> Stated {
    let kind = json["type"].as_str().unwrap_or_default();
    let delta = kind.ends_with(".delta") && full(&json["delta"]);
    let call = kind == "response.output_item.added" && full(&json["item"]["name"]);
    let ended = ["response.completed", "response.incomplete", "response.failed"].contains(&kind);
    let response = &json["response"];
    let reason = &response["incomplete_details"]["reason"];
    Stated {
        token: delta || call,
        visible: delta && kind == "response.output_text.delta",
        finish: ended.then(|| finish(if full(reason) { reason } else { &response["status"] })).flatten(),
        ..Stated::default()
    }
}

fn messages(json: &Value) -> Stated {
    let (block, delta) = (&json["content_block"], &json["delta"]);
    let visible = full(&block["text"]) || full(&delta["text"]);
    let hidden = [&block["thinking"], &block["name"], &delta["thinking"], &delta["partial_json"]].into_iter().any(full);
    Stated { token: visible || hidden, visible, finish: finish(&delta["stop_reason"]), ..Stated::default() }
}

/// Reads an event with a running counter. The increment of the counter is the number of tokens, with or without text.
fn counted(
    json: &Value,
    counter: &Value,
    text: &Value,
    reason: &Value,
    counters: &mut BTreeMap<u64, u64>,
) -> Vec<Stated> {
    let choice = json["index"].as_u64().unwrap_or(0);
    let Some(now) = counter.as_u64() else { return Vec::new() };
    let before = counters.insert(choice, now).unwrap_or(0);
    let token = now > before;
    vec![Stated { choice, token, tokens: Some(now - before), visible: token && full(text), finish: finish(reason) }]
}

fn ollama(json: &Value) -> Stated {
    let message = &json["message"];
    let visible = full(&message["content"]) || full(&json["response"]);
    let thinks = full(&message["thinking"]) || full(&json["thinking"]);
    let tool = message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    Stated { token: visible || thinks || tool, visible, finish: finish(&json["done_reason"]), ..Stated::default() }
}

/// Reads a TGI event. TGI sends one event per token, including tokens without text.
fn tgi(json: &Value) -> Stated {
    let token = &json["token"];
    let visible = full(&token["text"]) && token["special"] != true;
    Stated { token: token.is_object(), visible, finish: finish(&json["details"]["finish_reason"]), ..Stated::default() }
}

fn cohere(json: &Value) -> Stated {
    let delta = &json["delta"];
    let message = &delta["message"];
    let visible = full(&message["content"]["text"]);
    let function = &message["tool_calls"]["function"];
    let hidden = [&message["content"]["thinking"], &message["tool_plan"], &function["name"], &function["arguments"]];
    let token = visible || hidden.into_iter().any(full);
    Stated { token, visible, finish: finish(&delta["finish_reason"]), ..Stated::default() }
}
