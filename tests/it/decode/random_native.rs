//! Random responses of the engines' own routes, compared with the model.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tokometer_decode::{Framing, Route};

use super::{cut, decode, model};

const ROUTES: [Route; 13] = [
    Route::Generate,
    Route::TgiStream,
    Route::TgiCompat,
    Route::LlamaCompletion,
    Route::Infill,
    Route::OllamaChat,
    Route::OllamaGenerate,
    Route::TritonGenerate,
    Route::Embeddings,
    Route::Rerank,
    Route::Score,
    Route::Classify,
    Route::Pooling,
];

/// A value of a type that no server sends for such a key.
fn odd() -> impl Strategy<Value = Value> {
    select(vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(18_446_744_073_709_551_615u64),
        json!(""),
        json!("x"),
        json!([]),
        json!([{"text": "a", "meta_info": {"completion_tokens": 3, "prompt_tokens": 2}, "stop": true}]),
        json!({"predictions": [{"text": "a", "meta_info": {"completion_tokens": 3}}, "a", {"predictions": ["a"]}]}),
        json!({}),
        json!({"type": "stop", "text": "a", "special": true, "content": "b"}),
    ])
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("")),
        "[a-z \"\\\\{}\\[\\],:\n\té漢🙂\u{1}]{0,12}".prop_map(Value::from),
        Just(json!("word ".repeat(40))),
    ]
}

fn count() -> impl Strategy<Value = Value> {
    prop_oneof![(0u64..300).prop_map(Value::from), any::<u64>().prop_map(Value::from)]
}

fn word() -> impl Strategy<Value = Value> {
    select(&["", "stop", "length", "abort", "eos", "eos_token", "word", "limit", "none", "load", "unload", "x"])
        .prop_map(Value::from)
}

fn time() -> impl Strategy<Value = Value> {
    prop_oneof![(0.0..1e7).prop_map(Value::from), (0u64..1_000_000_000_000).prop_map(Value::from)]
}

/// A value that may be absent or of an unexpected type.
fn maybe(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Value>> {
    option::weighted(0.7, prop_oneof![8 => value, 1 => odd()])
}

fn object(pairs: Vec<(&str, Option<Value>)>) -> Value {
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect::<Map<_, _>>().into()
}

prop_compose! {
    fn generated()(
        text in maybe(text()),
        index in maybe((0u64..3).prop_map(Value::from)),
        (finish, prompt, completion) in (maybe(word()), maybe(count()), maybe(count())),
        (cached, reasoning, queue) in (maybe(count()), maybe(count()), maybe(time())),
        (token, special) in (maybe(text()), maybe(any::<bool>().prop_map(Value::from))),
        (whole, reason, generated, length) in (maybe(text()), maybe(word()), maybe(count()), maybe(count())),
        is in select(vec!["sglang", "tgi"]),
        (error, kind) in (option::weighted(0.1, odd()), option::weighted(0.1, Just(json!("error")))),
    ) -> Value {
        let finish = finish.map(|word| json!({"type": word, "length": 20}));
        let (meta, token, text) = if is == "sglang" {
            let meta = object(vec![
                ("id", Some(json!("r"))), ("finish_reason", finish), ("prompt_tokens", prompt), ("completion_tokens", completion),
                ("cached_tokens", cached), ("reasoning_tokens", reasoning), ("queue_time", queue.clone()), ("e2e_latency", queue), ("weight_version", Some(json!("d"))),
            ]);
            (Some(meta), None, text)
        } else {
            (None, Some(object(vec![("id", Some(json!(1))), ("text", token), ("special", special)])), None)
        };
        let details = object(vec![("finish_reason", reason), ("generated_tokens", generated), ("input_length", length)]);
        object(vec![
            ("text", text), ("output_ids", Some(json!([1, 2, [3]]))), ("meta_info", meta), ("index", index), ("token", token),
            ("generated_text", whole.filter(|_| is == "tgi")), ("details", Some(details).filter(|_| is == "tgi")),
            ("error", error), ("object", kind),
        ])
    }
}

/// Responses in a `predictions` array, which answers a request with `instances`.
fn predicted() -> impl Strategy<Value = Value> {
    vec(prop_oneof![4 => generated().boxed(), 2 => text().boxed(), 1 => odd().boxed()], 0..3)
        .prop_map(|predictions| json!({"predictions": predictions}))
}

prop_compose! {
    fn completed()(
        (index, content, stop) in (maybe((0u64..3).prop_map(Value::from)), maybe(text()), maybe(any::<bool>().prop_map(Value::from))),
        (predicted, evaluated, stop_type) in (maybe(count()), maybe(count()), maybe(word())),
        (eos, limit) in (option::weighted(0.2, odd()), option::weighted(0.2, odd())),
        timings in option::weighted(0.3, (time(), count())),
        (progress, error) in (option::weighted(0.1, odd()), option::weighted(0.1, odd())),
    ) -> Value {
        object(vec![
            ("index", index), ("content", content), ("tokens", Some(json!([5]))), ("stop", stop), ("model", Some(json!("m"))),
            ("tokens_predicted", predicted), ("tokens_evaluated", evaluated), ("stop_type", stop_type),
            ("stopped_eos", eos), ("stopped_limit", limit), ("prompt_progress", progress), ("error", error),
            ("timings", timings.map(|(ms, n)| json!({"prompt_ms": ms, "predicted_n": n, "cache_n": n}))),
        ])
    }
}

prop_compose! {
    fn chatted()(
        (role, content, thinking) in (maybe(word()), maybe(text()), maybe(text())),
        (response, outer, images) in (maybe(text()), maybe(text()), option::of(odd())),
        calls in option::weighted(0.2, vec((text(), odd()), 0..3)),
        (done, reason, error) in (maybe(any::<bool>().prop_map(Value::from)), maybe(word()), option::weighted(0.1, odd())),
        (total, load, prompt, eval) in (maybe(time()), maybe(time()), maybe(time()), maybe(time())),
        (input, output, logprobs) in (maybe(count()), maybe(count()), option::weighted(0.2, vec(odd(), 0..3))),
    ) -> Value {
        let calls = calls.map(|calls| calls.into_iter().map(|(name, arguments)| {
            json!({"function": {"name": name, "arguments": arguments}})
        }).collect::<Vec<_>>());
        let message = object(vec![
            ("role", role), ("content", content), ("thinking", thinking), ("tool_calls", calls.clone().map(Value::from)),
            ("images", images.clone()),
        ]);
        object(vec![
            ("model", Some(json!("m"))), ("created_at", Some(json!("2026-11-21T09:59:08.063572009Z"))),
            ("message", Some(message)), ("response", response), ("thinking", outer), ("tool_calls", calls.map(Value::from)),
            ("done", done), ("done_reason", reason), ("error", error), ("total_duration", total), ("load_duration", load),
            ("prompt_eval_duration", prompt), ("eval_duration", eval), ("prompt_eval_count", input), ("eval_count", output),
            ("logprobs", logprobs.map(Value::from)), ("image", images),
        ])
    }
}

prop_compose! {
    /// Responses of Triton, and of embeddings and similar APIs, each with one kind of input count.
    fn counted()(
        (text, index, kind, error) in (maybe(text()), maybe(count()), option::weighted(0.1, Just(json!("error"))), option::weighted(0.1, odd())),
        (input, output, cached) in (maybe(count()), maybe(count()), maybe(count())),
        (tokens, billed) in (option::of(maybe(count())), option::of(maybe(count()))),
        is in select(vec!["triton", "openai", "sglang", "ollama", "cohere"]),
    ) -> Value {
        let only = |name: &str, value: Value| Some(value).filter(|_| is == name);
        let details = object(vec![("cached_tokens", cached.clone())]);
        let of_cohere = |count: Option<Value>| object(vec![("input_tokens", count)]);
        object(vec![
            ("id", Some(json!("embd-0a1b2c3d0a1b2c3d"))), ("object", kind), ("index", index), ("error", error),
            ("data", Some(json!([{"embedding": [0.5, -1e-3], "index": 0}]))),
            ("model_version", only("triton", json!("1"))), ("text_output", text.filter(|_| is == "triton")),
            ("usage", only("openai", object(vec![
                ("prompt_tokens", input.clone()), ("completion_tokens", output.clone()), ("prompt_tokens_details", Some(details)),
                ("total_tokens", output.clone()),
            ]))),
            ("meta_info", only("sglang", object(vec![
                ("prompt_tokens", input.clone()), ("completion_tokens", output), ("cached_tokens", cached),
            ]))),
            ("prompt_eval_count", input.filter(|_| is == "ollama")),
            ("meta", only("cohere", object(vec![
                ("billed_units", billed.map(of_cohere)), ("tokens", tokens.map(of_cohere)),
            ]))),
        ])
    }
}

/// A response of any dialect, independent of the route.
fn reply() -> impl Strategy<Value = Value> {
    prop_oneof![generated().boxed(), predicted().boxed(), completed().boxed(), chatted().boxed(), counted().boxed()]
}

fn written(events: &[Value], framing: Framing, end: &str) -> Vec<u8> {
    let lines = events.iter().map(|event| match framing {
        Framing::Sse => format!("data: {event}{end}{end}"),
        _ => format!("{event}{end}"),
    });
    lines.collect::<String>().into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_native_streams_match_the_model(
        route in select(ROUTES.to_vec()),
        framing in select(vec![Framing::Sse, Framing::Ndjson]),
        events in vec((reply(), 1usize..3), 1..6),
        end in select(vec!["\n", "\n", "\r\n"]),
        places in vec(any::<usize>(), 0..6),
    ) {
        // Some events are repeated, so that the decoder's prediction is used.
        let events: Vec<Value> = events.into_iter().flat_map(|(event, times)| vec![event; times]).collect();
        let body = written(&events, framing, end);
        let expected = model::events(route, framing, &body);
        let (whole, a) = decode(route, framing, [body.as_slice()]);
        model::assert_same("whole", &whole, &expected);
        let (pieces, b) = decode(route, framing, cut(&body, &places));
        prop_assert_eq!(&pieces, &whole);
        let (bytes, c) = decode(route, framing, body.chunks(1));
        prop_assert_eq!(&bytes, &whole);
        for other in [b, c] {
            prop_assert_eq!(other.engine(), a.engine());
            prop_assert_eq!((other.model(), other.response_id()), (a.model(), a.response_id()));
        }
    }

    #[test]
    fn random_native_bodies_match_the_model(
        route in select(ROUTES.to_vec()),
        responses in vec(prop_oneof![4 => reply(), 1 => odd()], 0..4),
        many: bool,
        pretty: bool,
    ) {
        let mut value = match responses.first() {
            Some(first) if !many => first.clone(),
            _ => Value::from(responses),
        };
        // On llama.cpp's routes, `usage` is OpenAI's format, which has no arrays and none of llama.cpp's own counts.
        if matches!(route, Route::LlamaCompletion | Route::Infill) && value.is_array() {
            let responses = value.as_array_mut().into_iter().flatten();
            responses.filter_map(Value::as_object_mut).for_each(|response| drop(response.remove("usage")));
        }
        let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
        let expected = model::events(route, Framing::Json, &body);
        let (whole, _) = decode(route, Framing::Json, [body.as_slice()]);
        model::assert_same("whole", &whole, &expected);
        let (bytes, _) = decode(route, Framing::Json, body.chunks(1));
        prop_assert_eq!(bytes, whole);
    }
}
