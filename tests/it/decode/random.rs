//! Random streams compared with the model, and random bytes.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tokometer_decode::{Framing, Route};

use super::{cut, decode, model};

/// Any JSON value, also with known keys in the wrong places.
pub(super) fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((select(KEYS), inner), 0..4).prop_map(|pairs| Value::from(
                pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>()
            )),
        ]
    })
}

const KEYS: &[&str] = &[
    "id",
    "model",
    "object",
    "choices",
    "index",
    "delta",
    "message",
    "content",
    "text",
    "role",
    "usage",
    "error",
    "type",
    "x",
    "finish_reason",
    "a longer key than any that means something to us",
];

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z \"\\\\{}\\[\\],:\n\t\r/é漢🙂\u{1}]{0,12}",
        Just("[DONE]".to_owned()),
        Just("word ".repeat(40)),
    ]
}

pub(super) fn counts() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(0)),
        (0..u64::MAX).prop_map(Value::from),
        (0u64..300).prop_map(Value::from)
    ]
}

fn times() -> impl Strategy<Value = Value> {
    prop_oneof![Just(Value::Null), (0.0..1e7).prop_map(Value::from)]
}

pub(super) fn object(pairs: Vec<(&str, Option<Value>)>) -> Value {
    pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect::<Map<_, _>>().into()
}

fn images() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(Value::from),
        vec(text(), 0..3).prop_map(|list| list.into_iter().map(|url| json!({"image_url": {"url": url}})).collect()),
        text().prop_map(|data| json!({"b64_json": data})),
    ]
}

prop_compose! {
    fn message()(
        role in option::of(prop_oneof![Just(json!("assistant")), Just(json!(""))]),
        content in option::of(prop_oneof![Just(Value::Null), text().prop_map(Value::from)]),
        reasoning in option::of(prop_oneof![Just(Value::Null), text().prop_map(Value::from)]),
        reasoning_content in option::of(text()),
        refusal in option::of(text()),
        calls in option::of(vec((option::of(text()), option::of(text())), 0..3)),
        audio in option::of(text()),
        images in option::weighted(0.2, images()),
        camel in option::weighted(0.2, text()),
        odd in option::of(anything()),
    ) -> Value {
        let calls = calls.map(|calls| calls.into_iter().map(|(name, arguments)| json!({
            "index": 0, "id": "call", "function": object(vec![
                ("name", name.map(Value::from)), ("arguments", arguments.map(Value::from)),
            ]),
        })).collect::<Vec<_>>().into());
        object(vec![
            ("role", role), ("content", content), ("reasoning", reasoning),
            ("reasoning_content", reasoning_content.map(Value::from)), ("refusal", refusal.map(Value::from)),
            ("tool_calls", calls), ("images", images), ("reasoningContent", camel.map(Value::from)), ("audio", audio.map(|data| json!({"id": "a", "data": data}))), ("odd", odd),
        ])
    }
}

prop_compose! {
    fn choice()(
        index in option::of(0u32..3),
        delta in option::of(message()),
        message in option::of(message()),
        text in option::of(text()),
        finish in option::of(select(vec![json!(null), json!(""), json!("stop"), json!("length"), json!("tool_calls"), json!("x")])),
        camel in option::weighted(0.2, select(vec![json!(null), json!("stop"), json!("CANCELLED")])),
        token_ids in option::of(prop_oneof![Just(Value::Null), vec(0u32..100_000, 0..5).prop_map(Value::from)]),
        logprobs in option::of(prop_oneof![
            Just(Value::Null),
            vec(anything(), 0..3).prop_map(|list| json!({"content": list})),
            vec(text(), 0..3).prop_map(|list| json!({"tokens": list, "token_logprobs": [0.5]})),
            (vec(text(), 0..3), vec(text(), 0..3)).prop_map(|(a, b)| json!({"content": a, "tokens": b})),
        ]),
    ) -> Value {
        object(vec![
            ("index", index.map(Value::from)), ("delta", delta), ("message", message), ("text", text.map(Value::from)),
            ("finish_reason", finish), ("finishReason", camel), ("token_ids", token_ids), ("logprobs", logprobs),
        ])
    }
}

prop_compose! {
    fn chunk()(
        choices in option::weighted(0.9, vec(choice(), 0..3)),
        usage in option::weighted(0.3, (counts(), counts(), counts(), counts(), counts(), counts())),
        metrics in option::weighted(0.2, (times(), times(), counts())),
        timings in option::weighted(0.2, (times(), counts())),
        error in option::weighted(0.1, anything()),
        progress in option::weighted(0.1, anything()),
        kind in select(vec!["chat.completion.chunk", "error"]),
        zodd in option::of(anything()),
        odd in option::of(anything()),
    ) -> Value {
        // An event has `metrics` or `timings`, not both: they share fields, and no server sends both.
        let timings = if metrics.is_some() { None } else { timings };
        object(vec![
            ("id", Some(json!("chatcmpl-1"))), ("object", Some(json!(kind))), ("model", Some(json!("m"))),
            ("choices", choices.map(Value::from)),
            ("usage", usage.map(|(input, output, cached, reasoning, outer, second)| json!({
                "input_tokens": second,
                "prompt_tokens": input, "completion_tokens": output, "reasoning_tokens": outer,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": reasoning},
            }))),
            ("metrics", metrics.map(|(queue, itl, drafts)| json!({
                "queue_time_ms": queue, "mean_itl_ms": itl, "speculative_decoding": {"num_draft_tokens": drafts},
            }))),
            ("timings", timings.map(|(ms, n)| json!({"predicted_ms": ms, "predicted_n": n, "prompt_ms": ms, "cache_n": n}))),
            ("error", error), ("prompt_progress", progress), ("zodd", zodd), ("odd", odd),
        ])
    }
}

/// The formatting of an event.
#[derive(Clone, Debug)]
struct Style {
    pretty: bool,
    space: &'static str,
    end: &'static str,
    trailing: &'static str,
    before: &'static str,
    after: &'static str,
    /// Texts for the first choice; the event is sent once for each.
    texts: Vec<String>,
}

prop_compose! {
    fn style()(
        pretty in prop::bool::weighted(0.2),
        space in select(vec![" ", "", "  "]),
        end in select(vec!["\n", "\n", "\r\n", "\r"]),
        trailing in select(vec!["", "", " ", "\t "]),
        before in select(vec!["", ": keep-alive\n\n", ":\n\n", "event: x\n", "id: 1\nretry: 5\n", "data\n", "dat: {\n", "event: x\n\n"]),
        after in select(vec!["", "event: x\n", ": data: y\n"]),
        texts in vec(text(), 1..6),
    ) -> Style {
        Style { pretty, space, end, trailing, before, after, texts }
    }
}

fn written(events: &[(Value, Style)], bom: bool, ends_well: bool) -> Vec<u8> {
    let mut body = String::new();
    if bom {
        body.push('\u{feff}');
    }
    for (value, style) in events {
        // Consecutive events that differ only in a text, so that the decoder's prediction is used.
        for text in &style.texts {
            let mut value = value.clone();
            for pointer in ["/choices/0/delta/content", "/choices/0/text"] {
                if let Some(place) = value.pointer_mut(pointer) {
                    *place = text.as_str().into();
                }
            }
            let json = if style.pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            body.push_str(style.before);
            for line in json.unwrap().lines() {
                body.push_str(&format!("data:{}{line}{}{}", style.space, style.trailing, style.end));
            }
            body.push_str(style.after);
            body.push_str(style.end);
        }
    }
    body.push_str(if ends_well { "data: [DONE]\n\n" } else { "data: [DON" });
    body.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_streams_match_the_model(
        events in vec((chunk(), style()), 1..5),
        bom: bool,
        ends_well: bool,
        route in select(vec![Route::Chat, Route::Completions, Route::VllmGenerate]),
        places in vec(any::<usize>(), 0..6),
    ) {
        let body = written(&events, bom, ends_well);
        let expected = model::events(route, Framing::Sse, &body);
        let (whole, a) = decode(route, Framing::Sse, [body.as_slice()]);
        model::assert_same("whole", &whole, &expected);
        let (pieces, b) = decode(route, Framing::Sse, cut(&body, &places));
        prop_assert_eq!(&pieces, &whole);
        let (bytes, c) = decode(route, Framing::Sse, body.chunks(1));
        prop_assert_eq!(&bytes, &whole);
        for other in [b, c] {
            prop_assert_eq!(other.error_type(), a.error_type());
            prop_assert_eq!(other.engine(), a.engine());
            prop_assert_eq!(other.model(), a.model());
        }
    }

    #[test]
    fn random_bodies_match_the_model(
        value in chunk(),
        pretty: bool,
        route in select(vec![Route::Chat, Route::Completions, Route::VllmGenerate]),
    ) {
        let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
        let expected = model::events(route, Framing::Json, &body);
        let (whole, _) = decode(route, Framing::Json, [body.as_slice()]);
        model::assert_same("whole", &whole, &expected);
        let (bytes, _) = decode(route, Framing::Json, body.chunks(1));
        prop_assert_eq!(bytes, whole);
    }

    /// Invalid input never panics and decodes the same at every split.
    #[test]
    fn random_bytes_decode_the_same_at_every_split(
        parts in vec(prop_oneof![
            vec(any::<u8>(), 0..8),
            select(vec![
                "data:", "data: ", "\n", "\n\n", "\r", "\r\n", "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u12", "\"choices\":[",
                "{\"delta\":{\"content\":\"", "\"usage\":{\"prompt_tokens\":", "nul", "null", "1e5", "[DONE]", "\"id\":\"\\ud83d\\ude42\\ud83d",
                "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
            ]).prop_map(|text| text.as_bytes().to_vec()),
        ], 0..40),
        framing in select(vec![Framing::Sse, Framing::Json]),
        places in vec(any::<usize>(), 0..4),
    ) {
        let body = parts.concat();
        let (whole, a) = decode(Route::Chat, framing, [body.as_slice()]);
        let (bytes, b) = decode(Route::Chat, framing, body.chunks(1));
        prop_assert_eq!(&bytes, &whole);
        let (pieces, _) = decode(Route::Chat, framing, cut(&body, &places));
        prop_assert_eq!(&pieces, &whole);
        prop_assert_eq!(a.response_id(), b.response_id());
    }
}
