//! Values that another value of the same response contradicts, supersedes or makes unknown, and output in a place that
//! the API does not document. Each response is read in one piece and split at every byte.

use tokometer_observe::measure::{CountSource, Outcome, QueueSource};

use crate::odd_servers::{AT_LEAST, CHAT, DONE, EXACT, SSE, STOP, counted, delta, responses, sse, total, used};
use crate::odd_shapes::cut;

const JSON: &str = "content-type: application/json\r\n";

/// The queue time in milliseconds, with its source.
fn queue(path: &str, headers: &str, body: &str) -> Option<(f64, QueueSource)> {
    let replayed = responses(path, headers, body);
    replayed.records[0].engine.queue.map(|queue| (queue.value.as_secs_f64() * 1e3, queue.source))
}

#[test]
fn timings_without_a_value_keep_the_earlier_one() {
    let timed = |last: &str| {
        let first = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}],"metrics":{"queue_time_ms":7.5,"time_to_first_token_ms":2}}"#;
        sse(&[first, STOP, last, &total(9, 1), DONE])
    };
    for last in [r#""metrics":{}"#, r#""metrics":{"queue_time_ms":null}"#, r#""metrics":{"generation_time_ms":3}"#] {
        let body = timed(&format!(r#"{{"id":"c","choices":[],{last}}}"#));
        assert_eq!(queue(CHAT, SSE, &body), Some((7.5, QueueSource::InBand)), "{last}");
        assert_eq!(responses(CHAT, SSE, &body).records[0].engine.timing.prefill_ms, Some(2.0), "{last}");
    }
    let body = timed(r#"{"id":"c","choices":[],"metrics":{"queue_time_ms":8}}"#);
    assert_eq!(queue(CHAT, SSE, &body), Some((8.0, QueueSource::InBand)));
    // The finish reason may stand for a token that the counter lacks.
    let token = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}],"timings":{"predicted_n":1}}"#;
    let stop = r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{}}"#;
    assert_eq!(counted(CHAT, SSE, &sse(&[token, stop, DONE])), (Outcome::Ok, Some((1, CountSource::Deltas))));
}

#[test]
fn log_probabilities_under_two_names_count_once() {
    for lists in [
        r#""content":[{"token":"a","logprob":-1}],"tokens":["a"],"token_logprobs":[-1]"#,
        r#""tokens":["a"],"token_logprobs":[-1],"content":[{"token":"a","logprob":-1}]"#,
        r#""content":[],"tokens":["a"]"#,
        r#""tokens":[],"content":[{"token":"a"}]"#,
        r#""content":null,"tokens":["a"]"#,
    ] {
        let token =
            format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"a"}},"logprobs":{{{lists}}}}}]}}"#);
        assert_eq!(counted(CHAT, SSE, &sse(&[&token, &token, STOP, &total(9, 2), DONE])), EXACT(2), "{lists}");
        let body = format!(
            r#"{{"choices":[{{"index":0,"message":{{"content":"a"}},"logprobs":{{{lists}}},"finish_reason":"stop"}}],"usage":{}}}"#,
            used(9, 1)
        );
        assert_eq!(counted(CHAT, JSON, &body), EXACT(1), "{lists}");
    }
}

#[test]
fn camel_case_keys_of_a_choice_are_read() {
    let reasons = |body: &str| responses(CHAT, SSE, body).records[0].response.finish_reasons.len();
    for reason in [
        r#""finishReason":"stop""#,
        r#""finishReason":"stop","finish_reason":"stop""#,
        r#""finish_reason":"stop","finishReason":"stop""#,
        r#""finish_reason":null,"finishReason":{"type":"stop"}"#,
    ] {
        for (path, token) in [(CHAT, r#""delta":{"content":"a"}"#), ("/v1/completions", r#""text":"a""#)] {
            let choice = |more: &str| format!(r#"{{"id":"c","choices":[{{"index":0,{token},{more}}}]}}"#);
            let body = sse(&[&choice(r#""finish_reason":null"#), &choice(reason)]);
            assert_eq!(counted(path, SSE, &body), AT_LEAST(2), "{path} {reason}");
        }
        let body = sse(&[&delta("a"), &format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{}},{reason}}}]}}"#)]);
        assert_eq!(reasons(&body), 1, "{reason}");
    }
    for text in [
        r#"{"reasoningContent":"Hm"}"#,
        r#"{"toolCalls":[{"function":{"name":"f","arguments":""}}]}"#,
        r#"{"functionCall":{"name":"f"}}"#,
    ] {
        let token = format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{text}}}]}}"#);
        assert_eq!(counted(CHAT, SSE, &sse(&[&token, STOP, DONE])), AT_LEAST(1), "{text}");
    }
}

#[test]
fn prompt_progress_next_to_output_is_no_mere_progress() {
    let progress = r#""prompt_progress":{"total":9,"cache":0,"processed":9,"time_ms":3}"#;
    let event =
        |delta: &str, more: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{delta}{more}}}],{progress}}}"#);
    let (role, token) = (event(r#"{"role":"assistant","content":null}"#, ""), event(r#"{"content":"a"}"#, ""));
    let last = event("{}", r#","finish_reason":"stop""#);
    assert_eq!(counted(CHAT, SSE, &sse(&[&role, &token, &delta("b"), STOP, DONE])), AT_LEAST(2));
    assert_eq!(counted(CHAT, SSE, &sse(&[&role, &delta("a"), &last])), AT_LEAST(1));
    let usage = format!(r#"{{"id":"c","choices":[],{progress},"usage":{}}}"#, used(9, 1));
    assert_eq!(counted(CHAT, SSE, &sse(&[&role, &token, STOP, &usage])), EXACT(1));
}

#[test]
fn lightllm_is_not_named_as_the_engine_whose_format_it_adopted() {
    let event = |more: &str| {
        format!(r#"{{"token":{{"id":5,"text":"a","logprob":-1,"special":false}},"generated_text":null{more}}}"#)
    };
    for (finished, engine) in
        [(r#","finished":false"#, None), (r#","finished":true,"finish_reason":"stop""#, None), ("", Some("tgi"))]
    {
        let body = sse(&[&event(finished)]);
        let replayed = responses("/generate_stream", SSE, &body);
        assert_eq!(replayed.records[0].labels.engine, engine, "{finished}");
        assert_eq!(counted("/generate_stream", SSE, &body).1.map(|output| output.0), Some(1), "{finished}");
    }
}

#[test]
fn error_type_is_the_first_of_its_keys_with_a_value() {
    for (path, error, name) in [
        (CHAT, r#"{"error":{"type":"","message":"m"}}"#, None),
        (CHAT, r#"{"error_type":"outer","error":{"type":"","message":"m"}}"#, Some("outer")),
        (CHAT, r#"{"error":{"type":"inner","message":""},"error_type":"outer"}"#, Some("inner")),
        ("/v1/responses", r#"{"type":"error","code":"event","error":{"type":"","code":""}}"#, Some("event")),
        ("/v1/responses", r#"{"type":"error","code":"event","error":{"code":"inner","type":null}}"#, Some("inner")),
        ("/v1/responses", r#"{"type":"x","error":{"code":"inner","type":""}}"#, Some("inner")),
    ] {
        let replayed = responses(path, SSE, &sse(&[error]));
        let record = &replayed.records[0];
        assert_eq!(record.outcome, Outcome::ErrorInStream, "{error}");
        assert_eq!(record.response.error_type.as_deref(), name, "{error}");
    }
    // Always present, without a value.
    for error in [r#"{"type":"","code":"","message":""}"#, r#"{"type":null,"code":0}"#] {
        let token = format!(r#"{{"type":"response.output_text.delta","delta":"a","error":{error}}}"#);
        let end = format!(r#"{{"type":"response.completed","response":{{"status":"completed","error":{error}}}}}"#);
        assert_eq!(counted("/v1/responses", SSE, &sse(&[&token, &end])), AT_LEAST(1), "{error}");
    }
}

#[test]
fn images_are_output_without_tokens() {
    let chat = |delta: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{delta}}}]}}"#);
    let url = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}"#;
    for piece in [
        format!(r#"{{"content":"","images":[{url}]}}"#),
        r#"{"content":null,"images":["AAAA"]}"#.to_owned(),
        r#"{"images":[{"b64_json":"AAAA"}]}"#.to_owned(),
        format!(r#"{{"content":[{url}]}}"#),
        r#"{"content":{"type":"image_url","image_url":"http://x/a.png"}}"#.to_owned(),
    ] {
        assert_eq!(counted(CHAT, SSE, &sse(&[&chat(&piece), STOP, DONE])), (Outcome::Ok, None), "{piece}");
        let with_text = sse(&[&delta("a"), &chat(&piece), STOP, DONE]);
        assert_eq!(counted(CHAT, SSE, &with_text), AT_LEAST(1), "{piece}");
        let body = format!(r#"{{"choices":[{{"index":0,"message":{piece}}}]}}"#);
        assert_eq!(counted(CHAT, JSON, &body), (Outcome::Ok, None), "{piece}");
    }
    for piece in [r#"{"content":"","images":[]}"#, r#"{"images":null}"#, r#"{"content":[{"type":"image_url"}]}"#] {
        assert_eq!(counted(CHAT, SSE, &sse(&[&chat(piece), STOP, DONE])), (Outcome::NoOutput, None), "{piece}");
    }
    let line = |image: &str, done: bool| {
        format!(r#"{{"model":"m","created_at":"t","response":"",{image}"completed":4,"total":4,"done":{done}}}"#) + "\n"
    };
    let lines = |image: &str| line("", false) + &line(image, true);
    let ndjson = "content-type: application/x-ndjson\r\n";
    assert_eq!(counted("/api/generate", ndjson, &lines(r#""image":"AAAA","#)), (Outcome::Ok, None));
    assert_eq!(counted("/api/generate", ndjson, &lines(r#""image":"","#)), (Outcome::NoOutput, None));
    let left = cut(CHAT, &[&chat(r#"{"images":["AAAA"]}"#)]).1;
    assert_eq!(left, (Outcome::ClientAbortMidStream, None));
}

#[test]
fn output_in_the_place_of_the_sibling_api_is_read() {
    let text = |text: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"text":{text},"finish_reason":null}}]}}"#);
    let stop = r#"{"id":"c","choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#;
    for piece in [r#""a""#, r#"["a"]"#, r#"{"text":"a"}"#] {
        assert_eq!(counted(CHAT, SSE, &sse(&[&text(piece), &text(piece), stop, DONE])), AT_LEAST(2), "{piece}");
    }
    assert_eq!(counted(CHAT, SSE, &sse(&[&text(r#""""#), stop, DONE])), (Outcome::NoOutput, None));
    // The same text under several keys is one token.
    for choice in [
        r#""delta":{"content":"a"},"text":"a""#,
        r#""text":"a","delta":{"content":"a"}"#,
        r#""message":{"content":"a"},"text":"a""#,
    ] {
        let event = format!(r#"{{"id":"c","choices":[{{"index":0,{choice}}}]}}"#);
        assert_eq!(counted(CHAT, SSE, &sse(&[&event, &event, STOP, DONE])), AT_LEAST(2), "{choice}");
    }
    // The last event repeats the whole text.
    let whole = r#"{"id":"c","choices":[{"index":0,"message":{"content":"aa"},"finish_reason":"stop"}]}"#;
    assert_eq!(counted(CHAT, SSE, &sse(&[&text(r#""a""#), &text(r#""a""#), whole, DONE])), AT_LEAST(2));
    let body = sse(&[&delta("a"), &delta("b"), STOP, DONE]);
    for path in ["/v1/completions", "/completions"] {
        assert_eq!(counted(path, SSE, &body), AT_LEAST(2), "{path}");
    }
}

#[test]
fn zero_cache_counts_next_to_a_zero_input_are_no_counts() {
    let counts = |body: &str, path: &str| {
        let tokens = &responses(path, SSE, body).records[0].tokens;
        (tokens.input.map(|count| count.tokens), tokens.cached, tokens.parts.cache_creation)
    };
    let messages = |last: &str| {
        let start = r#"{"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":5,"cache_read_input_tokens":4,"cache_creation_input_tokens":1}}}"#;
        let block = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#;
        let end = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{{{last}"output_tokens":7}}}}"#
        );
        counts(&sse(&[start, block, &end, r#"{"type":"message_stop"}"#]), "/v1/messages")
    };
    for last in [
        r#""input_tokens":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,"#,
        r#""input_tokens":0,"cache_read_input_tokens":0,"#,
        r#""cache_read_input_tokens":0,"cache_creation_input_tokens":0,"#,
        r#""input_tokens":0,"#,
        "",
    ] {
        assert_eq!(messages(last), (Some(10), Some(4), Some(1)), "{last}");
    }
    let nothing_cached = r#""input_tokens":10,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,"#;
    assert_eq!(messages(nothing_cached), (Some(10), Some(0), Some(0)));
    let cached = |prompt: u64, cached: u64| {
        format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#
        )
    };
    let chat = |last: &str| counts(&sse(&[&delta("a"), STOP, &cached(9, 4), last, DONE]), CHAT);
    assert_eq!(chat(&cached(0, 0)), (Some(9), Some(4), None));
    assert_eq!(chat(&cached(9, 0)), (Some(9), Some(0), None));
}

/// Dynamo, lib/llm/src/protocols/anthropic/stream_converter.rs: the input is an estimate until the backend reports usage.
#[test]
fn estimated_input_of_dynamo_is_no_count_wherever_it_is_repeated() {
    let usage = |input: u64, output: u64| {
        format!(r#""usage":{{"input_tokens":{input},"output_tokens":{output},"cache_creation_input_tokens":0}}"#)
    };
    let start = format!(r#"{{"type":"message_start","message":{{"id":"msg_1","model":"m",{}}}}}"#, usage(40, 0));
    let block = |usage: &str| {
        format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"a"}},{usage}}}"#)
    };
    let end = |usage: &str| format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},{usage}}}"#);
    let stop = r#"{"type":"message_stop"}"#.to_owned();
    let read = |events: &[String]| {
        let events = events.iter().map(String::as_str).collect::<Vec<_>>();
        let record = &responses("/v1/messages", SSE, &sse(&events)).records[0];
        let (input, output) = (record.tokens.input, record.tokens.output);
        (record.labels.engine, input.map(|n| n.tokens), output.map(|n| (n.tokens, n.source)))
    };
    let two = [start.clone(), block(&usage(40, 1)), block(&usage(40, 2))];
    let dynamo = Some("dynamo");
    // Aborted, without counts of the backend, with its counts at the end, and with its counts in every event.
    assert_eq!(read(&two), (dynamo, None, Some((2, CountSource::Deltas))));
    let guessed = [&two[..], &[end(&usage(40, 2)), stop.clone()]].concat();
    assert_eq!(read(&guessed), (dynamo, None, Some((2, CountSource::Deltas))));
    let counted = [&two[..], &[end(&usage(31, 7)), stop.clone()]].concat();
    assert_eq!(read(&counted), (dynamo, Some(31), Some((7, CountSource::Usage))));
    let running = [start.clone(), block(&usage(31, 1)), block(&usage(31, 2)), end(&usage(31, 2)), stop.clone()];
    assert_eq!(read(&running), (dynamo, Some(31), Some((2, CountSource::Usage))));
    // Other engines count the prompt before the output.
    let other = [start, block(r#""x":1"#), end(r#""usage":{"output_tokens":2}"#), stop];
    assert_eq!(read(&other), (None, Some(40), Some((2, CountSource::Usage))));
}

#[test]
fn queue_time_of_ollama_needs_the_duration_of_every_work() {
    let of = |durations: &str| {
        let lines = format!(
            "{{\"model\":\"m\",\"message\":{{\"content\":\"a\"}},\"done\":false}}\n\
             {{\"model\":\"m\",\"message\":{{\"content\":\"\"}},\"done\":true,\"done_reason\":\"stop\",\
             \"total_duration\":9000000000,\"load_duration\":1000000000,{durations}}}\n"
        );
        queue("/api/chat", "content-type: application/x-ndjson\r\n", &lines)
    };
    let remainder = |ms| Some((ms, QueueSource::Remainder));
    for (durations, queue) in [
        (
            r#""prompt_eval_count":4,"prompt_eval_duration":2000000000,"eval_count":2,"eval_duration":5000000000"#,
            remainder(1e3),
        ),
        (r#""prompt_eval_count":4,"prompt_eval_duration":2000000000,"eval_count":200,"eval_duration":0"#, None),
        (r#""prompt_eval_count":4,"prompt_eval_duration":2000000000,"eval_count":200"#, None),
        (r#""prompt_eval_count":4,"prompt_eval_duration":2000000000,"eval_count":1"#, remainder(6e3)),
        (r#""prompt_eval_count":400,"eval_count":2,"eval_duration":5000000000"#, None),
        (
            r#""prompt_eval_count":400,"prompt_eval_cached_count":399,"eval_count":2,"eval_duration":5000000000"#,
            remainder(3e3),
        ),
    ] {
        assert_eq!(of(durations), queue, "{durations}");
    }
}

#[test]
fn queue_time_above_the_total_of_the_same_response_is_refused() {
    let sglang = |times: &str| {
        let meta = format!(
            r#"{{"id":"g","finish_reason":{{"type":"stop"}},"prompt_tokens":4,"completion_tokens":1,{times}}}"#
        );
        queue("/generate", JSON, &format!(r#"{{"text":"a","meta_info":{meta}}}"#))
    };
    assert_eq!(sglang(r#""queue_time":2.5,"e2e_latency":3"#), Some((2500.0, QueueSource::InBand)));
    assert_eq!(sglang(r#""queue_time":2.5"#), Some((2500.0, QueueSource::InBand)));
    assert_eq!(sglang(r#""queue_time":3.5,"e2e_latency":3"#), None);
    let dynamo = |times: &str| {
        let last = format!(r#"{{"id":"c","choices":[],"nvext":{{"timing":{{{times}}}}}}}"#);
        queue(CHAT, SSE, &sse(&[&delta("a"), STOP, &last, DONE]))
    };
    assert_eq!(dynamo(r#""prefill_wait_time_ms":5,"total_time_ms":9"#), Some((5.0, QueueSource::InBand)));
    assert_eq!(dynamo(r#""total_time_ms":9,"prefill_wait_time_ms":48000"#), None);
}
