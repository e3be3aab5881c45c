//! The naive model of the engines' own routes.

use super::named::preferred;
use serde_json::Value;
use tokometer_decode::{Channels, Counter, EngineTiming, FinishReason, Route, StreamEvent, Usage};

/// The event for this JSON value; `None` if the route is not an engine's own.
pub(super) fn of_value(route: Route, value: &Value) -> Option<StreamEvent> {
    type Read = fn(&mut Sums, &Value);
    // The functions that read a single response and an element of an array of responses.
    let (read, of_many): (Read, Option<Read>) = match route {
        Route::Generate => (generate, Some(generate)),
        Route::TgiStream | Route::TgiCompat => (tgi, Some(tgi)),
        Route::LlamaCompletion | Route::Infill => (llama_cpp, Some(llama_cpp)),
        Route::OllamaChat | Route::OllamaGenerate => (ollama, None),
        Route::TritonGenerate => (triton, None),
        Route::Embeddings | Route::Rerank | Route::Score | Route::Classify | Route::Pooling => {
            (input_only, Some(one_of_several))
        }
        _ => return None,
    };
    let mut sums = Sums { around: 1 + usize::from(value.is_array()), ..Sums::default() };
    match (value, of_many) {
        (Value::Array(responses), Some(read)) => {
            responses.iter().filter(|response| response.is_object()).for_each(|response| read(&mut sums, response));
        }
        _ => read(&mut sums, value),
    }
    Some(sums.event())
}

/// The values collected from all responses of a body.
#[derive(Default)]
struct Sums {
    event: StreamEvent,
    /// The number of containers around the members of a response.
    around: usize,
    timing: EngineTiming,
    timed: bool,
    special: bool,
    /// A choice of an OpenAI completion has a text, possibly empty.
    empty_delta: bool,
    usage: Option<Usage>,
    inputs: Vec<u64>,
    outputs: Vec<u64>,
    cached: Option<u64>,
    reasoning: Option<u64>,
    running: bool,
}

impl Sums {
    fn event(mut self) -> StreamEvent {
        let responses = self.event.choices.max(1) as usize;
        let sum = |counts: &[u64]| counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        let whole = |counts: &[u64]| (counts.len() == responses).then(|| sum(counts));
        let input = whole(&self.inputs);
        let zero = self.outputs.is_empty() && input.is_some() && self.timing.load_ms.is_some();
        let output = if zero { Some(0) } else { whole(&self.outputs) };
        if !self.inputs.is_empty() || !self.outputs.is_empty() {
            let (cached, reasoning, running) = (self.cached, self.reasoning, self.running);
            self.event.counter = Some(Counter { input, output, cached, reasoning, running });
        }
        if self.special {
            self.event.channels = Channels::default();
        }
        self.event.timing = self.timed.then_some(self.timing);
        if let Some(usage) = self.usage {
            self.event.usage = Some(Usage { total: self.event.choices == 0, ..usage });
        }
        let is_silent = self.event.channels.is_empty() && !self.event.image;
        let is_empty = is_silent && self.event.finishes.is_empty() && self.usage.is_none();
        self.event.progress &= is_empty;
        self.event.empty_delta = self.empty_delta && !self.event.progress && !self.event.role && is_silent;
        self.event
    }

    fn says(&mut self, text: &Value, channel: Channels) {
        super::mark(&mut self.event, text, channel);
    }

    /// Reads the index of a response among several.
    fn index(&mut self, response: &Value) {
        if let Some(index) = super::integer(&response["index"]).and_then(|index| u32::try_from(index).ok()) {
            self.event.choice = index;
        }
    }

    fn finish(&mut self, word: &Value) {
        super::finish(&mut self.event, word);
    }

    fn input(&mut self, count: &Value) {
        self.inputs.extend(super::integer(count));
    }

    fn output(&mut self, count: &Value, running: bool) {
        self.running |= running && super::integer(count).is_some();
        self.outputs.extend(super::integer(count));
    }

    /// Counts a response; `ended` is true if it is complete.
    fn response(&mut self, ended: bool) {
        self.event.choices += 1;
        self.event.ended |= ended;
    }

    fn error(&mut self, response: &Value) {
        self.event.error |= super::is_error(&response["error"], self.around);
    }
}

/// Stores a time in milliseconds. `milliseconds` is the length of the written unit.
fn time(place: &mut Option<f64>, timed: &mut bool, written: &Value, milliseconds: f64) {
    if let Some(value) = super::float(written) {
        *place = Some(value * milliseconds);
        *timed = true;
    }
}

fn generate(sums: &mut Sums, response: &Value) {
    sums.says(&response["text"], Channels::CONTENT);
    sums.index(response);
    sums.error(response);
    sums.event.error |= response["object"] == "error";
    generated_text(sums, response);
    sums.input(&response["prompt_tokens"]);
    sums.output(&response["count_output_tokens"], false);
    meta_info(sums, &response["meta_info"]);
    for predicted in predictions(response).filter(|predicted| predicted.is_object()) {
        sums.says(&predicted["text"], Channels::CONTENT);
        meta_info(sums, &predicted["meta_info"]);
    }
}

/// The array in which `/vertex_generate` and `/vertex` wrap their responses.
pub(super) fn predictions(response: &Value) -> impl Iterator<Item = &Value> {
    response["predictions"].as_array().into_iter().flatten()
}

/// Reads a response in an array.
fn one_of_several(sums: &mut Sums, response: &Value) {
    meta_info(sums, &response["meta_info"]);
}

fn meta_info(sums: &mut Sums, meta: &Value) {
    if meta.is_object() {
        sums.response(false);
    }
    sums.finish(&meta["finish_reason"]["type"]);
    sums.input(&meta["prompt_tokens"]);
    sums.output(&meta["completion_tokens"], true);
    for (sum, key) in [(&mut sums.cached, "cached_tokens"), (&mut sums.reasoning, "reasoning_tokens")] {
        if let Some(count) = super::integer(&meta[key]) {
            *sum = Some(sum.unwrap_or(0).saturating_add(count));
        }
    }
    time(&mut sums.timing.queue_ms, &mut sums.timed, &meta["queue_time"], 1e3);
    time(&mut sums.timing.total_ms, &mut sums.timed, &meta["e2e_latency"], 1e3);
}

fn generated_text(sums: &mut Sums, response: &Value) {
    if let Some(text @ (Value::Null | Value::String(_) | Value::Array(_))) = response.get("generated_text") {
        sums.response(!text.is_null());
    }
    sums.says(&response["generated_text"], Channels::CONTENT);
    let details = &response["details"];
    sums.finish(&details["finish_reason"]);
    sums.input(&details["input_length"]);
    sums.output(&details["generated_tokens"], false);
}

fn tgi(sums: &mut Sums, response: &Value) {
    let token = &response["token"];
    if token.is_object() {
        sums.event.token_ids = Some(sums.event.token_ids.unwrap_or(0) + 1);
    }
    sums.special |= token["special"] == true;
    sums.says(&token["text"], Channels::CONTENT);
    predictions(response).for_each(|text| sums.says(text, Channels::CONTENT));
    generated_text(sums, response);
    sums.finish(&response["finish_reason"]);
    sums.error(response);
}

fn llama_cpp(sums: &mut Sums, response: &Value) {
    sums.says(&response["content"], Channels::CONTENT);
    sums.error(response);
    sums.event.error |= response["object"] == "error";
    let choices = response["choices"].as_array().into_iter().flatten().filter(|choice| choice.is_object());
    sums.empty_delta |= choices.fold(false, |delta, choice| super::completion_choice(&mut sums.event, choice) | delta);
    sums.usage =
        Some(&response["usage"]).filter(|usage| usage.is_object()).map(super::named::token_usage).or(sums.usage);
    // Objects are sorted by key, so `index` follows `choices`.
    sums.index(response);
    if let Some(stop) = response["stop"].as_bool() {
        sums.response(stop);
    }
    if response["stop_type"].as_str().is_some_and(|word| word != "none") {
        sums.finish(&response["stop_type"]);
    }
    for (key, reason) in [
        ("stopped_eos", FinishReason::Stop),
        ("stopped_limit", FinishReason::Length),
        ("stopped_word", FinishReason::Stop),
    ] {
        if response[key] == true {
            sums.event.finishes.push(reason);
        }
    }
    sums.input(&response["tokens_evaluated"]);
    sums.output(&response["tokens_predicted"], true);
    sums.event.progress |= response["prompt_progress"].is_object();
    if let Some(timing) = super::timing(&Value::Null, &response["timings"]) {
        sums.timed = true;
        let of_last = |last: Option<u64>, before: Option<u64>| last.or(before);
        sums.timing = EngineTiming {
            prompt_ms: timing.prompt_ms.or(sums.timing.prompt_ms),
            decode_ms: timing.decode_ms.or(sums.timing.decode_ms),
            cached_tokens: of_last(timing.cached_tokens, sums.timing.cached_tokens),
            prompt_tokens: of_last(timing.prompt_tokens, sums.timing.prompt_tokens),
            predicted_tokens: of_last(timing.predicted_tokens, sums.timing.predicted_tokens),
            draft_tokens: of_last(timing.draft_tokens, sums.timing.draft_tokens),
            accepted_tokens: of_last(timing.accepted_tokens, sums.timing.accepted_tokens),
            ..sums.timing
        };
    }
}

fn ollama(sums: &mut Sums, response: &Value) {
    let message = &response["message"];
    sums.event.role = message["role"].as_str().is_some_and(|role| !role.is_empty());
    sums.says(&message["content"], Channels::CONTENT);
    sums.says(&response["response"], Channels::CONTENT);
    super::image(&mut sums.event, &message["images"]);
    super::image(&mut sums.event, &response["image"]);
    for place in [message, response] {
        sums.says(&place["thinking"], Channels::REASONING);
        for call in place["tool_calls"].as_array().into_iter().flatten() {
            for function in [&call["function"], &call["custom"]] {
                ["name", "arguments", "input"].iter().for_each(|key| sums.says(&function[key], Channels::TOOL));
            }
        }
    }
    sums.error(response);
    if let Some(done) = response["done"].as_bool() {
        sums.response(done);
    }
    sums.finish(&response["done_reason"]);
    sums.event.logprobs = response["logprobs"].as_array().map(|list| list.len() as u32);
    sums.input(&response["prompt_eval_count"]);
    sums.output(&response["eval_count"], false);
    time(&mut sums.timing.total_ms, &mut sums.timed, &response["total_duration"], 1e-6);
    time(&mut sums.timing.load_ms, &mut sums.timed, &response["load_duration"], 1e-6);
    time(&mut sums.timing.prompt_ms, &mut sums.timed, &response["prompt_eval_duration"], 1e-6);
    time(&mut sums.timing.decode_ms, &mut sums.timed, &response["eval_duration"], 1e-6);
}

fn triton(sums: &mut Sums, response: &Value) {
    sums.says(&response["text_output"], Channels::CONTENT);
    sums.error(response);
}

/// The keys of `usage` that are read on routes without output, apart from the total.
const INPUT_USAGE: [&str; 8] = [
    "prompt_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "input_tokens",
    "input_tokens_details",
    "promptTokens",
    "inputTokens",
];

/// The input count has one of several formats; no engine sends two of them.
fn input_only(sums: &mut Sums, response: &Value) {
    sums.error(response);
    sums.event.error |= response["object"] == "error";
    meta_info(sums, &response["meta_info"]);
    sums.input(&response["prompt_eval_count"]);
    let total = sums.event.choices == 0;
    let (computed, billed) = (&response["meta"]["tokens"], &response["meta"]["billed_units"]);
    if response["usage"].is_object() {
        let read = INPUT_USAGE.iter().map(|key| ((*key).to_owned(), response["usage"][key].clone())).collect();
        let usage = super::named::token_usage(&Value::Object(read));
        let input = preferred(usage.input, super::integer(&response["usage"]["total_tokens"]));
        sums.event.usage = Some(Usage { input, total, ..usage });
    } else if computed.is_object() || billed.is_object() {
        let input = preferred(super::integer(&computed["input_tokens"]), super::integer(&billed["input_tokens"]));
        sums.event.usage = Some(Usage { input, total, ..Usage::default() });
    }
}
