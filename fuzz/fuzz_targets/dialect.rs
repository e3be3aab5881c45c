//! Both decoders report the same events and facts at any split, on every decoded route and framing. For JSON that was
//! rewritten by `serde_json`, they also match the naive model of the decoder's own tests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tokometer_fuzz::cut::Cut;
use tokometer_decode::{ResponseText, EngineFacts, Framing, RequestDecoder, RequestFacts, ResponseDecoder, ResponseInfo, Route, StreamEvent, TextLimits, TextMemory};
use tokometer_fuzz::work::Work;
use tokometer_models::decode as model;

/// The events of a response, each with the response's properties at that point.
#[derive(Debug, Default, PartialEq)]
struct Reported {
    events: Vec<StreamEvent>,
    stated: Vec<(Option<String>, EngineFacts)>,
}

impl Reported {
    fn event(&mut self, event: &StreamEvent, stated: &ResponseInfo<'_>) {
        self.events.push(*event);
        self.stated.push((stated.model().map(str::to_owned), stated.engine()));
    }
}

fn respond(route: Route, framing: Framing, pieces: &[&[u8]]) -> (Reported, ResponseDecoder) {
    let mut decoder = ResponseDecoder::new(route, framing);
    let mut reported = Reported::default();
    for piece in pieces {
        decoder.feed_to(piece, &mut |event, info| reported.event(event, info));
    }
    decoder.finish_to(&mut |event, info| reported.event(event, info));
    (reported, decoder)
}

/// Returns the text of a response. Asserts that the decoder reports the `expected` events although it keeps the text.
fn keep(route: Route, framing: Framing, pieces: &[&[u8]], expected: &Reported) -> Box<ResponseText> {
    let mut decoder = ResponseDecoder::new(route, framing);
    let memory = TextMemory::default();
    decoder.keep_text(TextLimits { response_bytes: 1 << 12, memory_bytes: 1 << 13 }, &memory);
    let mut reported = Reported::default();
    for piece in pieces {
        decoder.feed_to(piece, &mut |event, info| reported.event(event, info));
    }
    decoder.finish_to(&mut |event, info| reported.event(event, info));
    assert_eq!(reported, *expected, "{route:?} {framing:?} with its text kept");
    assert!(memory.held() <= 1 << 13);
    decoder.take_text().expect("the text was requested")
}

/// The events of messages, each fed in pieces of this size.
fn converse(messages: &[Vec<u8>], size: usize) -> (Reported, ResponseDecoder) {
    let mut decoder = ResponseDecoder::new(Route::Realtime, Framing::Messages);
    let mut reported = Reported::default();
    for message in messages {
        message.chunks(size).for_each(|piece| decoder.feed_to(piece, &mut |event, info| reported.event(event, info)));
        decoder.end_message_to(&mut |event, info| reported.event(event, info));
    }
    (reported, decoder)
}

/// Checks that the events are the same at any split of the messages, and returns them.
fn converse_every_way(body: &[u8]) -> Vec<StreamEvent> {
    let messages: Vec<Vec<u8>> = body.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let (reported, decoder) = converse(&messages, usize::MAX);
    for size in [1, 7] {
        let (again, other) = converse(&messages, size);
        assert_eq!(reported, again, "messages in pieces of {size}");
        assert_eq!((decoder.response_id(), decoder.model()), (other.response_id(), other.model()));
        assert_eq!(decoder.error_type(), other.error_type());
    }
    reported.events
}

/// Checks that the events are the same at any split, and returns them.
fn respond_every_way(route: Route, framing: Framing, cut: &Cut) -> Vec<StreamEvent> {
    let [whole, ways @ ..] = cut.ways();
    let (reported, decoder) = respond(route, framing, &whole);
    let text = keep(route, framing, &whole, &reported);
    for pieces in ways {
        let (again, other) = respond(route, framing, &pieces);
        let again_text = keep(route, framing, &pieces, &reported);
        assert_eq!((text.runs(), text.first()), (again_text.runs(), again_text.first()), "{route:?} {framing:?}");
        assert_eq!(reported, again, "{route:?} {framing:?}, {} reads", pieces.len());
        assert_eq!(decoder.response_id(), other.response_id());
        assert_eq!(decoder.model(), other.model());
        assert_eq!(decoder.error_type(), other.error_type());
    }
    reported.events
}

fn ask(route: Route, pieces: &[&[u8]]) -> RequestDecoder {
    let mut decoder = RequestDecoder::new(route);
    for piece in pieces {
        decoder.feed(piece);
    }
    decoder
}

/// Sampling parameters that the decoder reads.
const SAMPLED: [&str; 3] = ["n", "max_new_tokens", "num_predict"];

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// The members of a request, including those of its sampling parameters, in text order.
fn flat(body: &Value) -> Vec<(&str, &Value)> {
    let sampled = |value| members(value).filter(|(key, _)| SAMPLED.contains(key));
    let mut found = Vec::new();
    for (key, value) in members(body) {
        match key {
            "sampling_params" | "options" => found.extend(sampled(value)),
            "parameters" => members(value).for_each(|(key, value)| match key {
                "sampling_params" => found.extend(sampled(value)),
                "n" | "max_new_tokens" => found.push((key, value)),
                _ => {}
            }),
            "max_new_tokens" | "num_predict" => {}
            _ => found.push((key, value)),
        }
    }
    found
}

/// The expected facts of a request. If several names of one parameter are present, the last one in the text counts. The
/// limits on output tokens and the kind of a prefill, which depend on route and engine, are taken from `found`; the unit tests of the
/// request decoder check them for every route and engine.
fn expected_facts<'a>(route: Route, body: &'a Value, found: &RequestFacts<'_>) -> RequestFacts<'a> {
    let mut n = None;
    let (mut prompts, mut documents, mut tokens) = (0, 0, false);
    for (key, value) in flat(body) {
        match key {
            "n" | "n_cmpl" if value.is_number() => n = value.as_u64(),
            "prompt" | "text" | "input_ids" => {
                let items = || value.as_array().into_iter().flatten();
                prompts += items()
                    .filter(|prompt| prompt.is_string() || prompt.is_array() || prompt.is_object())
                    .count() as u64;
                tokens |= items().any(|item| item.is_number() && !item.to_string().starts_with('-'));
            }
            "documents" if body.get("messages").is_none() => {
                documents += value.as_array().map_or(0, Vec::len) as u64;
            }
            _ => {}
        }
    }
    let prompts = documents + if tokens { 0 } else { prompts };
    let instances = body["instances"].as_array().map_or(0, Vec::len) as u64;
    // A number or literal at the end may be incomplete: only the end of the request completes it, which is not reported
    // to the decoder.
    let complete = body.is_string() || body.is_array() || body.is_object();
    let streams_unasked = matches!(route, Route::OllamaChat | Route::OllamaGenerate);
    RequestFacts {
        model: body["model"]
            .as_str()
            .and_then(|model| model.get(..model.floor_char_boundary(128)))
            .filter(|m| !m.is_empty()),
        stream: body["stream"]
            .as_bool()
            .or(body["parameters"]["stream"].as_bool().filter(|_| instances > 0))
            .or((complete && streams_unasked).then_some(true)),
        n,
        max_tokens: found.max_tokens,
        echo: body["echo"].as_bool(),
        prompts: [instances, prompts].into_iter().find(|number| *number > 0),
        api: None,
        prefill_leg: found.prefill_leg,
        context_only: found.context_only,
        complete,
    }
}

/// A value that decoder and model interpret in the same way. If several names for one number are present, the decoder
/// uses the last or the sum, the model uses its own order; no engine sends two of them.
fn plain(json: &[u8]) -> Option<Value> {
    let mut value: Value = serde_json::from_slice(json).ok()?;
    let is_present = |key: &str| !value[key].is_null();
    let others: &[&str] = match () {
        () if is_present("usage") => {
            &["meta", "meta_info", "prompt_eval_count", "tokens_evaluated", "tokens_predicted"]
        }
        () if is_present("meta") => &["meta_info", "prompt_eval_count"],
        () => &[],
    };
    let timings = value["metrics"].is_object().then_some("timings");
    if let Some(members) = value.as_object_mut() {
        others.iter().copied().chain(timings).for_each(|key| {
            members.remove(key);
        });
    }
    Some(value)
}

/// The JSON in a body, rewritten by `serde_json` as events and as lines: without repeated keys or unnecessary escapes.
fn rewritten(body: &[u8]) -> (Vec<u8>, Vec<u8>, Vec<Value>) {
    let (mut events, mut lines) = (Vec::new(), Vec::new());
    let mut values = Vec::new();
    for line in body.split(|byte| *byte == b'\n') {
        let data = line.strip_prefix(b"data: ").unwrap_or(line);
        if data == b"[DONE]" {
            events.extend_from_slice(b"data: [DONE]\n\n");
        } else if let Some(value) = plain(data) {
            events.extend_from_slice(format!("data: {value}\n\n").as_bytes());
            lines.extend_from_slice(format!("{value}\n").as_bytes());
            values.push(value);
        }
    }
    (events, lines, values)
}

/// The routes with different dialects.
const ROUTES: [Route; 15] = [
    Route::Chat,
    Route::Completions,
    Route::Responses,
    Route::Messages,
    Route::CohereChat,
    Route::AudioTranscription,
    Route::AudioTranslation,
    Route::VllmGenerate,
    Route::TritonGenerate,
    Route::Embeddings,
    Route::Rerank,
    Route::Generate,
    Route::TgiStream,
    Route::LlamaCompletion,
    Route::OllamaChat,
];

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let cut = Cut::of(input);
    let (events, lines, values) = rewritten(&cut.body);
    converse_every_way(&cut.body);
    let reported = converse_every_way(&lines);
    model::assert_same("messages", &reported, &model::events(Route::Realtime, Framing::Messages, &lines));
    for route in ROUTES {
        for framing in [Framing::Sse, Framing::Ndjson, Framing::Json] {
            respond_every_way(route, framing, &cut);
        }
        for (framing, body) in [(Framing::Sse, &events), (Framing::Ndjson, &lines)] {
            let reported = respond_every_way(route, framing, &Cut::of(body));
            model::assert_same("stream", &reported, &model::events(route, framing, body));
        }
        for value in plain(&cut.body).iter().chain(&values) {
            let text = value.to_string();
            let (reported, _) = respond(route, Framing::Json, &[text.as_bytes()]);
            model::assert_same("body", &reported.events, &model::events(route, Framing::Json, text.as_bytes()));
            let asked = ask(route, &[text.as_bytes()]);
            let found = asked.facts();
            assert_eq!(found, expected_facts(route, value, &found));
        }
        let [whole, ways @ ..] = cut.ways();
        let decoder = ask(route, &whole);
        for pieces in ways {
            assert_eq!(decoder.facts(), ask(route, &pieces).facts(), "a request in {} reads", pieces.len());
        }
    }
});
