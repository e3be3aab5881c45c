use super::{chat_event, decode};
use crate::{Channels, EngineFacts, FinishReason, Framing, Route, StreamEvent};

fn body(route: Route, json: &str) -> StreamEvent {
    let (events, _) = decode(route, Framing::Json, json.as_bytes());
    assert_eq!(events.len(), 1, "{json}");
    events[0]
}

fn delta(delta: &str) -> StreamEvent {
    chat_event(&format!(r#"{{"id":"c-1","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#))
}

#[test]
fn non_empty_text_sets_its_channel() {
    for (json, channels) in [
        (r#"{"content":"a"}"#, Channels::CONTENT),
        (r#"{"content":"\n"}"#, Channels::CONTENT),
        (r#"{"content":"\""}"#, Channels::CONTENT),
        (r#"{"reasoning":"a","content":null}"#, Channels::REASONING),
        (r#"{"reasoning_content":"a","content":""}"#, Channels::REASONING),
        (r#"{"reasoning_content":null,"content":"a"}"#, Channels::CONTENT),
        (r#"{"refusal":"no"}"#, Channels::REFUSAL),
        (r#"{"tool_calls":[{"index":0,"id":"x","function":{"name":"f"}}]}"#, Channels::TOOL),
        (r#"{"tool_calls":[{"index":0,"function":{"name":null,"arguments":"{"}}]}"#, Channels::TOOL),
        (r#"{"tool_calls":[{"index":0,"custom":{"input":"x"}}]}"#, Channels::TOOL),
        (r#"{"function_call":{"arguments":"{}"}}"#, Channels::TOOL),
        (r#"{"audio":{"id":"a","data":"UklG"}}"#, Channels::AUDIO),
        (r#"{"audio":{"transcript":"a"}}"#, Channels::AUDIO),
        (r#"{"content":"a","reasoning":"b"}"#, Channels(Channels::CONTENT.0 | Channels::REASONING.0)),
    ] {
        let event = delta(json);
        assert_eq!(event.channels, channels, "{json}");
        assert!(!event.empty_delta, "{json}");
        assert_eq!(event.choices, 1);
    }
}

#[test]
fn empty_deltas_differ_from_roles_and_absent_deltas() {
    for (json, empty_delta, role) in [
        (r#"{"content":""}"#, true, false),
        (r#"{}"#, true, false),
        (r#"{"reasoning_content":null}"#, true, false),
        (r#"{"tool_calls":[{"index":0,"id":"x","function":{"name":"","arguments":""}}]}"#, true, false),
        (r#"{"audio":{"id":"a"}}"#, true, false),
        (r#"{"role":"assistant","content":""}"#, false, true),
        (r#"{"role":"assistant","content":null}"#, false, true),
        (r#"{"role":"assistant"}"#, false, true),
        (r#"{"role":null,"content":""}"#, true, false),
        (r#"{"role":"assistant","content":"a"}"#, false, true),
        ("null", false, false),
    ] {
        let event = delta(json);
        assert_eq!((event.empty_delta, event.role), (empty_delta, role), "{json}");
    }
    let usage = chat_event(r#"{"choices":[],"usage":{"prompt_tokens":1}}"#);
    assert!(!usage.empty_delta && usage.choices == 0);
    let progress =
        chat_event(r#"{"choices":[{"delta":{"content":null}}],"prompt_progress":{"total":9,"processed":4}}"#);
    assert!(progress.progress && !progress.empty_delta);
}

#[test]
fn non_empty_finish_reasons_are_recorded() {
    let finishes = |json: &str| chat_event(json).finishes.iter().collect::<Vec<_>>();
    assert_eq!(finishes(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#), [FinishReason::Stop]);
    assert_eq!(finishes(r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#), [FinishReason::Error]);
    assert_eq!(finishes(r#"{"choices":[{"finish_reason":"\u0073top"}]}"#), [FinishReason::Stop]);
    assert_eq!(
        finishes(r#"{"choices":[{"finish_reason":"a word that is longer than any we know"}]}"#),
        [FinishReason::Other]
    );
    assert_eq!(
        finishes(r#"{"choices":[{"finish_reason":"length"},{"finish_reason":"tool_calls"}]}"#),
        [FinishReason::Length, FinishReason::ToolCalls]
    );
    assert_eq!(finishes(r#"{"choices":[{"finish_reason":""}]}"#), []);
    assert_eq!(finishes(r#"{"choices":[{"finish_reason":null}]}"#), []);
}

#[test]
fn choice_is_the_index_of_the_last_choice() {
    assert_eq!(chat_event(r#"{"choices":[{"index":1,"delta":{}}]}"#).choice, 1);
    assert_eq!(chat_event(r#"{"choices":[{"delta":{},"index":3}]}"#).choice, 3);
    assert_eq!(chat_event(r#"{"choices":[{"index":3},{}]}"#).choice, 0);
    assert_eq!(chat_event(r#"{"choices":[{"index":0},{"index":2}]}"#).choices, 2);
}

#[test]
fn usage_holds_the_keys_that_are_present() {
    let usage = |json: &str| chat_event(&format!(r#"{{"choices":[],"usage":{json}}}"#)).usage;
    assert_eq!(usage("null"), None);
    assert!(usage("{}").unwrap().total);
    let vllm = usage(
        r#"{"prompt_tokens":15,"total_tokens":74,"completion_tokens":59,"prompt_tokens_details":{"cached_tokens":8,"created_cache_tokens":0},"completion_tokens_details":{"reasoning_tokens":37}}"#,
    )
    .unwrap();
    assert_eq!((vllm.input, vllm.output, vllm.cached, vllm.reasoning), (Some(15), Some(59), Some(8), Some(37)));
    let sglang = usage(r#"{"prompt_tokens":13,"completion_tokens":146,"prompt_tokens_details":null,"reasoning_tokens":2,"completion_tokens_details":null}"#).unwrap();
    assert_eq!((sglang.cached, sglang.reasoning), (None, Some(2)));
    let odd = usage(r#"{"prompt_tokens":18446744073709551615,"completion_tokens":-1}"#).unwrap();
    assert_eq!((odd.input, odd.output), (Some(u64::MAX), None));
    let continuous = chat_event(r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"completion_tokens":4}}"#);
    assert!(!continuous.usage.unwrap().total);
}

#[test]
fn token_ids_and_logprobs_are_summed_over_choices() {
    let event = chat_event(
        r#"{"choices":[{"token_ids":[1,2,3],"logprobs":{"content":[{"token":"a","top_logprobs":[{"token":"b"}]},{"token":"c"}]}},{"token_ids":[4]}]}"#,
    );
    assert_eq!((event.token_ids, event.logprobs), (Some(4), Some(2)));
    let event = chat_event(r#"{"choices":[{"token_ids":[],"logprobs":{"content":[]}}]}"#);
    assert_eq!((event.token_ids, event.logprobs), (Some(0), Some(0)));
    let event = chat_event(r#"{"choices":[{"token_ids":null,"logprobs":null}],"prompt_token_ids":[1,2]}"#);
    assert_eq!((event.token_ids, event.logprobs), (None, None));
    let event = body(
        Route::Completions,
        r#"{"choices":[{"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-0.1,-2e-3]}}]}"#,
    );
    assert_eq!(event.logprobs, Some(2));
}

#[test]
fn vllm_and_llama_cpp_timings_are_decoded() {
    let vllm = chat_event(
        r#"{"choices":[],"metrics":{"time_to_first_token_ms":4.768186000092101,"generation_time_ms":101.25,"queue_time_ms":0.0370650000149908,"mean_itl_ms":null,"tokens_per_second":565.6,"speculative_decoding":{"mean_acceptance_length":3.1,"acceptance_histogram":[1,2],"num_draft_tokens":90,"num_accepted_draft_tokens":50}}}"#,
    )
    .timing
    .unwrap();
    assert_eq!((vllm.prefill_ms, vllm.decode_ms), (Some(4.768186000092101), Some(101.25)));
    assert_eq!(vllm.queue_ms, Some(0.0370650000149908));
    assert_eq!((vllm.draft_tokens, vllm.accepted_tokens), (Some(90), Some(50)));
    let llama = chat_event(
        r#"{"choices":[],"timings":{"cache_n":13,"prompt_n":1,"prompt_ms":0.344,"prompt_per_second":2906.9767441860467,"predicted_n":146,"predicted_ms":32.409,"draft_n":143,"draft_n_accepted":134}}"#,
    )
    .timing
    .unwrap();
    assert_eq!((llama.cached_tokens, llama.prompt_tokens, llama.predicted_tokens), (Some(13), Some(1), Some(146)));
    assert_eq!((llama.prompt_ms, llama.decode_ms), (Some(0.344), Some(32.409)));
    assert_eq!((llama.draft_tokens, llama.accepted_tokens), (Some(143), Some(134)));
    assert_eq!(chat_event(r#"{"choices":[],"metrics":null,"timings":null}"#).timing, None);
}

#[test]
fn numbers_are_exact_or_absent() {
    let long = "1".repeat(40);
    let event = chat_event(&format!(
        r#"{{"usage":{{"prompt_tokens":{long},"completion_tokens":1.5}},"metrics":{{"queue_time_ms":0.{long}e5,"generation_time_ms":1e999}}}}"#
    ));
    assert_eq!((event.usage.unwrap().input, event.usage.unwrap().output), (None, None));
    assert_eq!((event.timing.unwrap().queue_ms, event.timing.unwrap().decode_ms), (None, None));
    assert!(!event.malformed);
}

#[test]
fn whole_bodies_are_decoded_like_events() {
    let chat = body(
        Route::Chat,
        r#"{"id":"c-1","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":null,"refusal":null,"audio":null,"function_call":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"city\": \"Paris\"}"}}],"reasoning":null},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null},{"index":1,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":132,"total_tokens":164,"completion_tokens":32},"metrics":null}"#,
    );
    assert_eq!(chat.channels, Channels(Channels::TOOL.0 | Channels::CONTENT.0));
    assert_eq!((chat.choices, chat.role, chat.empty_delta, chat.finishes.len()), (2, true, false, 2));
    assert!(!chat.usage.unwrap().total);
    let completion = body(
        Route::Completions,
        r#"{"choices":[{"text":"1 2 3","index":0,"logprobs":null,"finish_reason":"length"}]}"#,
    );
    assert_eq!(completion.channels, Channels::CONTENT);
    let empty = body(Route::Completions, r#"{"choices":[{"text":"","finish_reason":""}]}"#);
    assert!(empty.empty_delta && empty.finishes.is_empty());
    assert!(body(Route::Chat, r#"{"choices":[{"message":{"content":"cut"#).malformed);
    assert!(body(Route::Chat, r#"{"choices":[]} {}"#).malformed);
    assert_eq!(decode(Route::Chat, Framing::Json, b"").0, []);
}

#[test]
fn errors_are_detected_by_their_envelope() {
    for (json, error, error_type) in [
        (
            r#"{"error": {"message": "Engine \"core\"", "type": "InternalServerError", "param": null, "code": 500}}"#,
            true,
            Some("InternalServerError"),
        ),
        (
            r#"{"error":{"code":400,"message":"m","type":"exceed_context_size_error","n_ctx":1024}}"#,
            true,
            Some("exceed_context_size_error"),
        ),
        (
            r#"{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}"#,
            true,
            Some("BadRequestError"),
        ),
        (r#"{"error":"Input validation error","error_type":"validation"}"#, true, Some("validation")),
        (r#"{"error_type":"overloaded","error":"m"}"#, true, Some("overloaded")),
        (r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#, true, Some("overloaded_error")),
        (r#"{"error":{"type":"inner"},"type":"outer"}"#, true, Some("inner")),
        (r#"{"error":"model not found"}"#, true, None),
        (r#"{"error":null,"choices":[]}"#, false, None),
        (r#"{"detail":"Not Found"}"#, false, None),
        (r#"{"type":"x","choices":[]}"#, false, None),
        (
            r#"{"error":{"type":"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"}}"#,
            true,
            Some("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuv"),
        ),
    ] {
        for (framing, text) in
            [(Framing::Json, json.to_owned()), (Framing::Sse, format!("data: {json}\n\ndata: [DONE]\n\n"))]
        {
            let (events, decoder) = decode(Route::Chat, framing, text.as_bytes());
            assert_eq!(events[0].error, error, "{json}");
            assert_eq!(decoder.error_type(), error_type, "{json}");
        }
    }
    let two = "data: {\"error\":{\"type\":\"first\"}}\n\ndata: {\"error\":{\"type\":\"second\"}}\n\n";
    assert_eq!(decode(Route::Chat, Framing::Sse, two.as_bytes()).1.error_type(), Some("first"));
    let late = "data: {\"type\":\"no error\"}\n\ndata: {\"error\":\"m\"}\n\n";
    assert_eq!(decode(Route::Chat, Framing::Sse, late.as_bytes()).1.error_type(), None);
}

#[test]
fn model_name_is_correct_or_absent() {
    for (written, read) in [
        (r#"tiny"#, Some("tiny".to_owned())),
        (r#"meta\/llama"#, Some("meta/llama".to_owned())),
        (r#"\u00e9\n\"\\\ud83d\ude42é"#, Some("é\n\"\\🙂é".to_owned())),
        (r#"\ud83d"#, None),
        (r#"\ud83dx"#, None),
        (r#"\ud83d\n"#, None),
        (r#"\ude42"#, None),
        (r#"\u12x4"#, None),
        (r#"\x"#, None),
        ("", None),
        (&"m".repeat(130), Some("m".repeat(128))),
        (&"é".repeat(65), Some("é".repeat(64))),
        (&format!("m{}", "é".repeat(65)), Some(format!("m{}", "é".repeat(63)))),
    ] {
        let text = format!("data: {{\"model\":\"{written}\"}}\n\n");
        assert_eq!(decode(Route::Chat, Framing::Sse, text.as_bytes()).1.model(), read.as_deref(), "{written}");
    }
    let (_, decoder) = decode(Route::Chat, Framing::Sse, b"data: {\"model\":\"a\xff\"}\n\n");
    assert_eq!(decoder.model(), None);
    let (_, decoder) = decode(Route::Chat, Framing::Sse, b"data: {\"id\":\"\",\"model\":\"x\n\ndata: {\"id\":\"b\",\"model\":\"y\"}\n\ndata: {\"id\":\"c\",\"model\":\"z\"}\n\n");
    assert_eq!((decoder.response_id(), decoder.model()), (Some("b"), Some("y")));
}

#[test]
fn string_end_is_the_same_for_kept_and_skipped_strings() {
    // The first model is kept; a later model is skipped. An invalid escape must not consume a quote or a backslash.
    for model in [r#""\u12""#, r#""\ud8\"x""#, r#""\ud83d\u1""#, r#""\u\u\\""#] {
        let event = format!("data: {{\"model\":{model},\"choices\":[]}}\n\n");
        for first in ["", "data: {\"model\":\"m\"}\n\n"] {
            let (events, _) = decode(Route::Chat, Framing::Sse, format!("{first}{event}").as_bytes());
            assert!(!events.is_empty() && events.iter().all(|event| !event.malformed), "{first}{model}");
        }
    }
}

#[test]
fn engine_marks_follow_unique_keys_and_values() {
    for (json, mark) in [
        (r#"{"system_fingerprint":"vllm-0.32.0-9bb3537e"}"#, EngineFacts::VLLM),
        (r#"{"choices":[],"prompt_token_ids":null}"#, EngineFacts::VLLM),
        (r#"{"kv_transfer_params":null}"#, EngineFacts::VLLM),
        (r#"{"choices":[{"matched_stop":null}]}"#, EngineFacts::SGLANG),
        (r#"{"system_fingerprint":"b0-unknown"}"#, EngineFacts::LLAMA_CPP),
        (r#"{"system_fingerprint":"b6710-74b8fc17f-and-much-more-of-it"}"#, EngineFacts::LLAMA_CPP),
        (r#"{"timings":{"predicted_n":1}}"#, EngineFacts::LLAMA_CPP),
        (r#"{"prompt_progress":{"total":1}}"#, EngineFacts::LLAMA_CPP),
        (r#"{"system_fingerprint":"fp_ollama"}"#, EngineFacts::OLLAMA),
        (r#"{"system_fingerprint":"fp_44709d6fcb"}"#, EngineFacts(0)),
        (r#"{"system_fingerprint":"b-1"}"#, EngineFacts(0)),
        (r#"{"system_fingerprint":"bad"}"#, EngineFacts(0)),
        (r#"{"system_fingerprint":null,"choices":[{"stop_reason":null}]}"#, EngineFacts(0)),
    ] {
        let (_, decoder) = decode(Route::Chat, Framing::Json, json.as_bytes());
        assert_eq!(decoder.engine(), mark, "{json}");
    }
    let (_, decoder) = decode(Route::Completions, Framing::Json, br#"{"choices":[{"prompt_token_ids":null}]}"#);
    assert_eq!(decoder.engine(), EngineFacts::VLLM);
}

#[test]
fn known_keys_at_wrong_places_are_ignored() {
    let event = chat_event(
        r#"{"x":{"choices":[{"delta":{"content":"a"}}],"error":{}},"content":"a","delta":{"content":"a"},"choices":{"delta":{"content":"a"}},"usage":[{"prompt_tokens":1}],"y":[[{"usage":{}}],"]}"]}"#,
    );
    assert_eq!(event, StreamEvent::default());
    let event = chat_event(r#"{"choices":[null,1,"x",[],{"delta":"x"},{"delta":{"content":{"x":"a"},"role":["a"]}}]}"#);
    assert_eq!((event.choices, event.channels, event.role), (2, Channels::default(), false));
    // Every JSON decoder takes an escaped key for the key.
    let content = chat_event(r#"{"choices":[{"delta":{"content":"a"}}]}"#);
    assert_eq!(chat_event(r#"{"choices":[{"delta":{"conten\u0074":"a"}}]}"#), content);
    assert_eq!(chat_event(r#"{"choices":[{"delta":{"content\ud83d":"a"}}]}"#).channels, Channels::default());
}

#[test]
fn non_object_json_is_an_empty_event() {
    for json in ["[1,{\"a\":2}]", "12", "null", "\"text\""] {
        assert_eq!(chat_event(json), StreamEvent::default(), "{json}");
    }
}

#[test]
fn unknown_route_response_is_not_decoded() {
    let (events, decoder) =
        decode(Route::Other, Framing::Sse, b"data: {\"id\":\"a\",\"choices\":[]}\n\ndata: [DONE]\n\n");
    assert_eq!((events.len(), decoder.response_id()), (0, None));
    assert_eq!(decode(Route::Other, Framing::Json, b"{}").0, []);
}

#[test]
fn deep_nesting_is_skipped() {
    let deep = format!(
        "{{\"x\":{}1{},\"choices\":[{{\"delta\":{{\"content\":\"a\"}}}}]}}",
        "[{\"a\":".repeat(5000),
        "}]".repeat(5000)
    );
    assert_eq!(chat_event(&deep).channels, Channels::CONTENT);
}
