//! Random streams of the dialects with typed events, compared with the model.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tokometer_decode::{Framing, ResponseDecoder, Route, StreamEvent};

use super::random::{anything, counts, object, text};
use super::{cut, decode, model};

const ROUTES: [Route; 5] =
    [Route::Responses, Route::Messages, Route::CohereChat, Route::AudioTranscription, Route::AudioTranslation];

fn kind() -> impl Strategy<Value = Value> {
    let known = select(vec![
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.function_call_arguments.delta",
        "response.refusal.delta",
        "response.output_audio.delta",
        "response.odd.delta",
        "response.completed",
        "response.failed",
        "response.cancelled",
        "response.create",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.input_audio_transcription.failed",
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
        "message-end",
        "ping",
        "error",
        "transcript.text.delta",
        "transcript.text.done",
        "a longer word than any of those that mean something in any of these dialects",
        "",
    ]);
    prop_oneof![8 => known.prop_map(Value::from), 1 => anything().boxed()]
}

fn word_of_session() -> impl Strategy<Value = Value> {
    prop_oneof![4 => select(vec!["realtime", "transcription"]).prop_map(Value::from), 1 => anything().boxed()]
}

/// Usually a count, sometimes any value.
fn count() -> impl Strategy<Value = Value> {
    prop_oneof![6 => counts(), 1 => anything().boxed()]
}

fn word() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => select(vec![
            "completed", "incomplete", "in_progress", "queued", "failed", "cancelled", "max_output_tokens", "end_turn",
            "tool_use", "COMPLETE", "x", "",
        ]).prop_map(Value::from),
        1 => anything().boxed(),
    ]
}

fn string() -> impl Strategy<Value = Value> {
    prop_oneof![4 => text().prop_map(Value::from), 1 => anything().boxed()]
}

prop_compose! {
    /// `usage` with the keys of all dialects. If a count has an older and a newer name, only one of them is present.
    fn usage()(
        newer: bool,
        input in option::of(count().boxed()),
        output in option::of(count().boxed()),
        cached in option::of(count().boxed()),
        written in option::of(count().boxed()),
        audio in option::of(count().boxed()),
        image in option::of(count().boxed()),
        video in option::of(count().boxed()),
        thought in option::of(count().boxed()),
        spoken in option::of(count().boxed()),
        odd in option::of(anything().boxed()),
    ) -> Value {
        let both = |a, b| if newer { a } else { b };
        object(vec![
            (both("input_tokens", "prompt_tokens"), input.clone()),
            (both("output_tokens", "completion_tokens"), output.clone()),
            ("cache_read_input_tokens", cached.clone()),
            ("cache_creation_input_tokens", written.clone()),
            ("cached_tokens", cached.clone()),
            ("tokens", input.clone().map(|input| json!({"input_tokens": input, "output_tokens": output.clone()}))),
            (both("input_tokens_details", "prompt_tokens_details"), Some(object(vec![
                ("cached_tokens", cached),
                (both("cache_write_tokens", "created_cache_tokens"), written),
                ("audio_tokens", audio.filter(|_| newer)),
                ("video_tokens", video.clone().filter(|_| newer)),
                ("multimodal_tokens", image.filter(|_| !newer).map(|image| json!({"image": image, "video": video}))),
            ]))),
            (both("output_tokens_details", "completion_tokens_details"), Some(object(vec![
                (both("reasoning_tokens", "thinking_tokens"), thought),
                ("audio_tokens", spoken),
            ]))),
            ("odd", odd),
        ])
    }
}

prop_compose! {
    /// A part of an event with the keys of all dialects, so that each dialect is tested with the keys of the others.
    fn part()(
        texts in vec(option::of(string().boxed()), 8),
        usage in option::of(usage().boxed()),
        status in option::of(word().boxed()),
        reason in option::of(word().boxed()),
        stop in option::of(word().boxed()),
        error in option::weighted(0.1, anything().boxed()),
        odd in option::of(anything().boxed()),
    ) -> Value {
        let [text, thinking, json, name, arguments, plan, id, model] = texts.try_into().unwrap();
        object(vec![
            ("text", text.clone()), ("thinking", thinking.clone()), ("partial_json", json), ("name", name.clone()),
            ("arguments", arguments.clone()), ("tool_plan", plan), ("id", id), ("model", model),
            ("message", Some(object(vec![
                ("content", Some(object(vec![("text", text), ("thinking", thinking)]))),
                ("tool_calls", Some(json!({"function": {"name": name, "arguments": arguments}}))),
                ("usage", usage.clone()),
            ]))),
            ("usage", usage), ("status", status), ("incomplete_details", reason.map(|reason| json!({"reason": reason}))),
            ("stop_reason", stop.clone()), ("finish_reason", stop), ("error", error), ("odd", odd),
        ])
    }
}

prop_compose! {
    fn event()(
        kind in option::weighted(0.9, kind().boxed()),
        delta in option::of(prop_oneof![string().boxed(), part().boxed()]),
        response in option::weighted(0.3, part().boxed()),
        message in option::weighted(0.3, part().boxed()),
        block in option::weighted(0.3, part().boxed()),
        item in option::weighted(0.3, part().boxed()),
        usage in option::weighted(0.3, usage().boxed()),
        choice in option::weighted(0.3, (string().boxed(), word().boxed())),
        text in option::weighted(0.3, string().boxed()),
        status in option::weighted(0.3, word().boxed()),
        error in option::weighted(0.1, anything().boxed()),
        object_kind in option::weighted(0.1, select(vec!["error", "response"])),
        number in 0u32..1000,
    ) -> Vec<(&'static str, Option<Value>)> {
        // An event has either `usage` or these two parts, because each part may contain another `usage`.
        let message = if usage.is_some() { None } else { message };
        let response = if usage.is_some() { None } else { response };
        vec![
            ("type", kind), ("delta", delta), ("response", response), ("message", message), ("content_block", block),
            ("item", item), ("usage", usage),
            ("choices", choice.map(|(text, finish)| json!([{"delta": {"content": text}, "finish_reason": finish}]))),
            ("text", text), ("status", status), ("stop_reason", None), ("error", error),
            ("object", object_kind.map(Value::from)), ("sequence_number", Some(number.into())),
        ]
    }
}

/// The members as JSON, rotated by `first`: `type` may come before or after the data that it describes.
fn written(members: &[(&'static str, Option<Value>)], first: usize) -> String {
    let mut members: Vec<_> = members.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).collect();
    let at = first % members.len().max(1);
    members.rotate_left(at);
    let members: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_typed_streams_match_the_model(
        events in vec((event().boxed(), any::<usize>(), vec(text(), 1..5)), 1..5),
        route in select(ROUTES.as_slice()),
        places in vec(any::<usize>(), 0..6),
    ) {
        let mut body = String::new();
        for (event, first, texts) in &events {
            // Consecutive events that differ only in a text and in their number, so that the decoder's prediction is
            // used.
            for (place, text) in texts.iter().enumerate() {
                let mut event = event.clone();
                for (key, value) in &mut event {
                    match (*key, value) {
                        ("delta", Some(Value::String(delta))) => *delta = text.clone(),
                        ("delta", Some(Value::Object(delta))) if delta.contains_key("text") => {
                            delta.insert("text".to_owned(), text.as_str().into());
                        }
                        ("sequence_number", Some(number)) => *number = place.into(),
                        _ => {}
                    }
                }
                body.push_str(&format!("event: x\ndata: {}\n\n", written(&event, *first)));
            }
        }
        let expected = model::events(route, Framing::Sse, body.as_bytes());
        let (whole, a) = decode(route, Framing::Sse, [body.as_bytes()]);
        model::assert_same("whole", &whole, &expected);
        let (pieces, b) = decode(route, Framing::Sse, cut(body.as_bytes(), &places));
        prop_assert_eq!(&pieces, &whole);
        let (bytes, c) = decode(route, Framing::Sse, body.as_bytes().chunks(1));
        prop_assert_eq!(&bytes, &whole);
        for other in [b, c] {
            prop_assert_eq!(other.error_type(), a.error_type());
            prop_assert_eq!(other.response_id(), a.response_id());
            prop_assert_eq!((other.model(), other.engine()), (a.model(), a.engine()));
        }
    }

    #[test]
    fn random_typed_bodies_match_the_model(
        event in event().boxed(),
        part in part().boxed(),
        flat: bool,
        first: usize,
        route in select(ROUTES.as_slice()),
    ) {
        let body = if flat { part.to_string() } else { written(&event, first) };
        let expected = model::events(route, Framing::Json, body.as_bytes());
        let (whole, _) = decode(route, Framing::Json, [body.as_bytes()]);
        model::assert_same("whole", &whole, &expected);
        let (bytes, _) = decode(route, Framing::Json, body.as_bytes().chunks(1));
        prop_assert_eq!(bytes, whole);
    }

    /// Realtime: the session type determines the meaning of some later messages.
    #[test]
    fn random_realtime_sessions_match_the_model(
        messages in vec((event().boxed(), any::<usize>(), option::weighted(0.2, word_of_session())), 1..8),
        size in 1usize..40,
    ) {
        let messages: Vec<String> = messages.into_iter().map(|(mut event, first, session)| {
            event.push(("session", session.map(|word| json!({"type": word, "model": "m"}))));
            written(&event, first)
        }).collect();
        let expected = model::events(Route::Realtime, Framing::Messages, messages.join("\n").as_bytes());
        for size in [usize::MAX, size, 1] {
            let mut decoder = ResponseDecoder::new(Route::Realtime, Framing::Messages);
            let mut events: Vec<StreamEvent> = Vec::new();
            for message in &messages {
                message.as_bytes().chunks(size).for_each(|piece| decoder.feed(piece, &mut |event| events.push(*event)));
                decoder.end_message(&mut |event| events.push(*event));
            }
            model::assert_same(&format!("pieces of {size}"), &events, &expected);
        }
    }
}
