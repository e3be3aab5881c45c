use crate::{RequestDecoder, RequestFacts, Route};

fn check(body: &str, expected: RequestFacts<'_>) {
    for size in [body.len().max(1), 1, 7] {
        let mut decoder = RequestDecoder::new(Route::Chat);
        for piece in body.as_bytes().chunks(size) {
            decoder.feed(piece);
        }
        assert_eq!(decoder.facts(), expected, "{body} in pieces of {size}");
    }
}

#[test]
fn chat_parameters_are_decoded() {
    check(
        r#"{"model": "tiny", "messages": [{"role": "user", "content": "{\"model\": \"no\", \"n\": 9}", "n": 9}], "temperature": 0, "stream": true, "max_tokens": 200, "n": 2, "stream_options": {"include_usage": true, "continuous_usage_stats": false}, "return_token_ids": true}"#,
        RequestFacts {
            model: Some("tiny"),
            stream: Some(true),
            n: Some(2),
            max_tokens: Some(200),
            complete: true,
            ..RequestFacts::default()
        },
    );
}

#[test]
fn max_completion_tokens_overrides_max_tokens() {
    let facts = RequestFacts { max_tokens: Some(5), complete: true, ..RequestFacts::default() };
    check(r#"{"max_completion_tokens":5,"max_tokens":7}"#, facts);
    check(r#"{"max_tokens":7,"max_completion_tokens":5}"#, facts);
    check(r#"{"max_tokens":5,"max_completion_tokens":null}"#, facts);
}

#[test]
fn prefill_leg_has_remote_decode_and_one_token() {
    let leg = |remote: &str, tokens: &str, prefill_leg| {
        let max_tokens = Some(tokens.parse().unwrap());
        check(
            &format!(r#"{{"max_tokens":{tokens},"kv_transfer_params":{{"do_remote_prefill":false,{remote}"n":2}}}}"#),
            RequestFacts { max_tokens, prefill_leg, complete: true, ..RequestFacts::default() },
        );
    };
    leg(r#""do_remote_decode":true,"#, "1", true);
    leg(r#""do_remote_decode":true,"#, "2", false);
    leg(r#""do_remote_decode":false,"#, "1", false);
    leg("", "1", false);
    let elsewhere = RequestFacts { max_tokens: Some(1), complete: true, ..RequestFacts::default() };
    check(
        r#"{"max_tokens":1,"do_remote_decode":true,"x":{"kv_transfer_params":{"do_remote_decode":true}}}"#,
        elsewhere,
    );
}

#[test]
fn prompts_in_an_array_are_counted() {
    for (prompt, prompts) in [
        (r#""one""#, None),
        (r#"["one"]"#, Some(1)),
        (r#"["one","t\"w,o"]"#, Some(2)),
        (r#"[[1,2],[3,[4]]]"#, Some(2)),
        (r#"[1,2,3]"#, None),
        (r#"[]"#, None),
    ] {
        check(
            &format!(r#"{{"prompt":{prompt},"echo":true}}"#),
            RequestFacts { prompts, echo: Some(true), complete: true, ..RequestFacts::default() },
        );
    }
}

#[test]
fn truncated_or_invalid_request_is_incomplete() {
    let facts = RequestFacts { model: Some("m"), ..RequestFacts::default() };
    check(r#"{"model":"m","messages":["#, facts);
    check(r#"{"model":"m","messages":}"#, facts);
    check("", RequestFacts::default());
    check(
        r#"{"stream":null,"stream_options":null,"n":null,"model":7}"#,
        RequestFacts { complete: true, ..RequestFacts::default() },
    );
}

#[test]
fn unknown_route_request_is_not_decoded() {
    let mut decoder = RequestDecoder::new(Route::Other);
    decoder.feed(br#"{"model":"m"}"#);
    assert_eq!(decoder.facts().model, None);
}

#[test]
fn api_is_determined_by_the_body_keys() {
    for (json, api) in [
        (r#"{"messages":[{"role":"user","content":"prompt"}]}"#, Some(Route::Chat)),
        (r#"{"stream":true,"prompt":"messages"}"#, Some(Route::Completions)),
        (r#"{"input":["a"]}"#, Some(Route::Embeddings)),
        (r#"{"query":"a","documents":["b"]}"#, Some(Route::Rerank)),
        (r#"{"query":"a"}"#, None),
        (r#"{"text_1":"a","text_2":"b"}"#, Some(Route::Score)),
        (r#"{"inputs":"a","parameters":{}}"#, Some(Route::TgiCompat)),
        (r#"{"instances":[{"inputs":"a"}]}"#, Some(Route::TgiCompat)),
        (r#"{"instances":[{"messages":[]},{"messages":[]}]}"#, Some(Route::Chat)),
        (
            r#"{"parameters":{"sampling_params":{}},"instances":[{"text":"messages"}],"input":"a"}"#,
            Some(Route::Generate),
        ),
        (r#"{"instances":[{"inputs":"a"},{"messages":[]}]}"#, None),
        (r#"{"instances":[]}"#, None),
        (r#"{"instances":[7,["text"]]}"#, None),
        (r#"{"parameters":{"messages":[]}}"#, None),
        ("[]", None),
    ] {
        let mut decoder = RequestDecoder::new(Route::Invocations);
        json.as_bytes().chunks(1).for_each(|byte| decoder.feed(byte));
        assert_eq!(decoder.facts().api, api, "{json}");
    }
}

#[test]
fn instances_count_as_prompts_with_their_own_limits() {
    for (json, prompts, max_tokens, stream) in [
        (
            r#"{"instances":[{"text":"a"},{"text":"b"}],"parameters":{"stream":true,"sampling_params":{"max_new_tokens":9,"n":3}}}"#,
            Some(2),
            Some(9),
            Some(true),
        ),
        (r#"{"instances":[{"inputs":"a","parameters":{"max_new_tokens":5}}]}"#, Some(1), Some(5), None),
        (r#"{"instances":[{"messages":[],"max_tokens":6}]}"#, Some(1), Some(6), None),
        (r#"{"instances":[{"messages":[],"max_tokens":6},{"messages":[],"max_tokens":7}]}"#, Some(2), None, None),
        (r#"{"prompt":"a","parameters":{"stream":true}}"#, None, None, None),
    ] {
        let mut decoder = RequestDecoder::new(Route::Invocations);
        json.as_bytes().chunks(1).for_each(|byte| decoder.feed(byte));
        let facts = decoder.facts();
        assert_eq!((facts.prompts, facts.max_tokens, facts.stream), (prompts, max_tokens, stream), "{json}");
        assert_eq!(facts.n, json.contains("\"n\"").then_some(3), "{json}");
    }
}

#[test]
fn documents_to_rank_are_counted() {
    for (documents, prompts) in [(r#"["a","b","c"]"#, Some(3)), (r#"[{"text":"a"}]"#, Some(1)), (r#""a""#, None)] {
        let mut decoder = RequestDecoder::new(Route::Rerank);
        decoder.feed(format!(r#"{{"query":"q","documents":{documents}}}"#).as_bytes());
        assert_eq!(decoder.facts().prompts, prompts, "{documents}");
    }
    // vLLM and llama.cpp pass `documents` to the chat template.
    let mut decoder = RequestDecoder::new(Route::Chat);
    decoder.feed(br#"{"documents":[{"text":"a"},{"text":"b"}],"messages":[]}"#);
    assert_eq!(decoder.facts().prompts, None);
}

/// llama.cpp's server (README, `prompt`) accepts text, tokens, a mix of both, and lists of any of these.
#[test]
fn token_list_with_or_without_text_is_one_prompt() {
    for (prompt, prompts) in [
        (r#"[12,34]"#, None),
        (r#"[12,"a b",34,"c"]"#, None),
        (r#"["a","b"]"#, Some(2)),
        (r#"[[12,34],"a"]"#, Some(2)),
        (r#"[{"prompt_string":"a"},{"prompt_string":"b"}]"#, Some(2)),
    ] {
        let mut decoder = RequestDecoder::new(Route::Completions);
        format!(r#"{{"prompt":{prompt}}}"#).as_bytes().chunks(1).for_each(|byte| decoder.feed(byte));
        assert_eq!(decoder.facts().prompts, prompts, "{prompt}");
    }
}
