//! Records of requests to further routes and servers, from request and response bytes.

use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::{CountSource, Outcome, QueueSource, Record};

use crate::endings::{Wire, chunk};

/// A connection with this request.
fn asked(path: &str, body: &str) -> Wire {
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    Wire::open().client(request.as_bytes())
}

fn response_complete(wire: Wire, status: &str, fields: &str, body: &str) -> Record {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{fields}\r\n",
        body.len()
    );
    one(wire.server(head.as_bytes()).server(body.as_bytes()), Close::Finished { first: Side::Client })
}

fn one(wire: Wire, close: Close) -> Record {
    let replayed = wire.close(close);
    assert_eq!((replayed.records.len(), replayed.in_flight), (1, 0));
    replayed.records[0].clone()
}

fn one_of(wire: Wire) -> Record {
    one(wire, Close::Finished { first: Side::Client })
}

const SSE: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const LAST: &[u8] = b"0\r\n\r\n";

#[test]
fn pooling_apis_are_ok_without_output() {
    const USAGE: &str = r#"{"id":"embd-a1c2c80ff5e5a5d2","data":[],"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0}}"#;
    for (path, operation) in [
        ("/v1/embeddings", "embeddings"),
        ("/v2/embed", "embeddings"),
        ("/v1/rerank", "rerank"),
        ("/score", "score"),
        ("/classify", "classify"),
        ("/pooling", "pooling"),
    ] {
        let record =
            response_complete(asked(path, r#"{"model":"m","input":"a"}"#), "200 OK", "server: uvicorn\r\n", USAGE);
        assert_eq!((record.labels.route.operation(), record.outcome), (operation, Outcome::Ok), "{path}");
        let input = record.tokens.input.expect("input tokens in usage");
        assert_eq!((input.tokens, input.source), (9, CountSource::Usage));
        assert_eq!((record.tokens.output, record.times.first_token, record.rate.exact), (None, None, None));
        assert_eq!(record.labels.request_model.as_deref(), Some("m"));
        assert_eq!((record.labels.engine, record.labels.streaming), (Some("vllm"), Some(false)));
    }
    let record = response_complete(
        asked("/v1/rerank", "{}"),
        "501 Not Implemented",
        "",
        r#"{"error":{"type":"not_supported_error"}}"#,
    );
    assert_eq!(
        (record.outcome, record.response.error_type.as_deref()),
        (Outcome::Http5xx, Some("not_supported_error"))
    );
}

/// One element of an SGLang array (0.5.23, python/sglang/srt/managers/tokenizer_manager.py and
/// entrypoints/openai/serving_rerank.py).
fn weighed(index: usize, tokens: u64) -> String {
    format!(
        r#"{{"score":0.5,"document":"d","index":{index},"meta_info":{{"id":"a{index}","finish_reason":{{"type":"length","length":0}},"prompt_tokens":{tokens},"weight_version":"default"}}}}"#
    )
}

#[test]
fn array_elements_are_summed_only_if_complete() {
    let all = format!("[{},{},{}]", weighed(2, 9), weighed(0, 5), weighed(1, 7));
    let best = format!("[{}]", weighed(2, 9));
    let two = r#"{"text":["a","b"]}"#;
    let of_texts = r#"[{"embedding":[0.5,-1e-3],"meta_info":{"prompt_tokens":4}},{"embedding":[0.1],"meta_info":{"prompt_tokens":6}}]"#;
    for (path, body, response, input, engine) in [
        ("/v1/rerank", r#"{"query":"q","documents":["a","b","c"]}"#, all.as_str(), Some(21), Some("sglang")),
        ("/v1/rerank", r#"{"query":"q","documents":["a","b","c"],"top_n":1}"#, &best, None, Some("sglang")),
        ("/v1/rerank", r#"{"query":"q","documents":["a"]}"#, &best, Some(9), Some("sglang")),
        ("/v1/rerank", r#"{"query":"q","documents":["a"]}"#, r#"[{"score":0.5,"index":0}]"#, None, None),
        ("/encode", two, of_texts, Some(10), None),
        ("/classify", two, of_texts, Some(10), None),
        ("/embedding", r#"{"content":"a"}"#, r#"[{"index":0,"embedding":[[0.1,0.2]]}]"#, None, None),
        ("/rerank", r#"{"query":"q","texts":["a"]}"#, r#"[{"index":0,"score":0.1}]"#, None, None),
        ("/embed", r#"{"inputs":"a"}"#, "[[0.1,0.2]]", None, None),
    ] {
        let record = response_complete(asked(path, body), "200 OK", "", response);
        assert_eq!(
            (record.outcome, record.request.choices, record.tokens.output),
            (Outcome::Ok, 1, None),
            "{path} {body}"
        );
        let reported = record.tokens.input.map(|count| (count.tokens, count.source));
        assert_eq!(reported, input.map(|tokens| (tokens, CountSource::NativeCounter)), "{path} {body}");
        assert_eq!(record.labels.engine, engine, "{path} {body}");
    }
}

#[test]
fn request_body_selects_the_api_on_a_shared_path() {
    for (body, operation) in [
        (r#"{"messages":[],"model":"m"}"#, "chat"),
        (r#"{"prompt":"a"}"#, "text_completion"),
        (r#"{"input":"a"}"#, "embeddings"),
        (r#"{"query":"a","documents":["b"]}"#, "rerank"),
        (r#"{"instances":[]}"#, "other"),
    ] {
        let response = r#"{"choices":[{"index":0,"message":{"content":"a"},"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let record = response_complete(asked("/invocations", body), "200 OK", "", response);
        assert_eq!((record.labels.route.operation(), record.outcome), (operation, Outcome::Ok), "{body}");
        let output = record.tokens.output.map(|count| count.tokens);
        assert_eq!(output, matches!(operation, "chat" | "text_completion").then_some(2), "{body}");
    }
}

/// SGLang's `/vertex_generate` wraps responses of its `/generate`.
#[test]
fn vertex_generate_predictions_are_counted() {
    let response = |tokens: u64| {
        format!(
            r#"{{"text":"a","output_ids":[1],"meta_info":{{"id":"r","finish_reason":{{"type":"length","length":{tokens}}},"prompt_tokens":3,"weight_version":"default","completion_tokens":{tokens},"cached_tokens":1}}}}"#
        )
    };
    let sampling = r#""parameters":{"sampling_params":{"max_new_tokens":9}}"#;
    let one = response_complete(
        asked("/vertex_generate", &format!(r#"{{"instances":[{{"text":"a"}}],{sampling}}}"#)),
        "200 OK",
        "",
        &format!(r#"{{"predictions":[{}]}}"#, response(5)),
    );
    assert_eq!((one.labels.route.operation(), one.labels.engine), ("text_completion", Some("sglang")));
    let counts = |record: &Record| (record.tokens.input.map(|n| n.tokens), record.tokens.output.map(|n| n.tokens));
    assert_eq!((one.outcome, counts(&one), one.request.max_tokens), (Outcome::Ok, (Some(3), Some(5)), Some(9)));
    let two = format!(r#"{{"instances":[{{"input_ids":[1]}},{{"input_ids":[2]}}],{sampling}}}"#);
    let body = format!(r#"{{"predictions":[{},{}]}}"#, response(5), response(2));
    let record = response_complete(asked("/vertex_generate", &two), "200 OK", "", &body);
    assert_eq!((record.outcome, counts(&record), record.request.choices), (Outcome::Ok, (Some(6), Some(7)), 2));
    assert_eq!(record.response.finish_reasons.len(), 2);
    // An incomplete array yields no sum.
    let record = response_complete(
        asked("/vertex_generate", &two),
        "200 OK",
        "",
        &format!(r#"{{"predictions":[{}]}}"#, response(5)),
    );
    assert_eq!(record.tokens.input, None);
    let stream = r#"{"instances":[{"text":"a"}],"parameters":{"stream":true}}"#;
    let event = format!("data: {}", response(4));
    let wire = asked("/vertex_generate", stream).server(SSE).events(&[&event, "data: [DONE]"]).server(LAST);
    let record = one_of(wire);
    assert_eq!((record.outcome, counts(&record), record.tokens.chunks), (Outcome::Ok, (Some(3), Some(4)), 1));
    let record =
        response_complete(asked("/vertex_generate", &two), "400 Bad Request", "", r#"{"error":{"message":"m"}}"#);
    assert_eq!(record.outcome, Outcome::Http4xx);
}

/// TGI's `/vertex` (3.3, router/src/vertex.rs) returns only texts.
#[test]
fn vertex_text_predictions_have_no_counts() {
    for (instances, operation) in [
        (r#"{"inputs":"a","parameters":{"max_new_tokens":7}}"#, "text_completion"),
        (r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":7}"#, "chat"),
    ] {
        let body = format!(r#"{{"instances":[{instances}]}}"#);
        let record = response_complete(asked("/vertex", &body), "200 OK", "", r#"{"predictions":["A fish."]}"#);
        assert_eq!((record.labels.route.operation(), record.outcome), (operation, Outcome::Ok));
        assert_eq!((record.tokens.output, record.tokens.input, record.request.max_tokens), (None, None, Some(7)));
        let record = response_complete(asked("/vertex", &body), "200 OK", "", r#"{"predictions":[""]}"#);
        assert_eq!(record.outcome, Outcome::NoOutput);
    }
    let mixed = r#"{"instances":[{"inputs":"a"},{"messages":[]}]}"#;
    let record = response_complete(asked("/vertex", mixed), "200 OK", "", r#"{"predictions":["a","b"]}"#);
    assert_eq!((record.labels.route.operation(), record.outcome), ("other", Outcome::Ok), "instances of two kinds");
}

/// SGLang 0.5.23, python/sglang/srt/entrypoints/openai/serving_transcription.py (`media_type="text/plain"`).
#[test]
fn plain_text_transcription_is_ok() {
    let path = "/v1/audio/transcriptions";
    let text = |content_type: &str, path: &str, body: &str| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n", body.len());
        one(asked(path, "").server(head.as_bytes()).server(body.as_bytes()), Close::Finished { first: Side::Client })
    };
    let srt = "1\n00:00:00,000 --> 00:00:01,000\nHello.\n";
    for (content_type, body, outcome) in [
        ("text/plain; charset=utf-8", "Hello.", Outcome::Ok),
        ("application/x-subrip", srt, Outcome::Ok),
        ("text/vtt", "WEBVTT\n\n00:00.000 --> 00:01.000\nHello.\n", Outcome::Ok),
        ("text/vtt", "WEBVTT\n\n", Outcome::NoOutput),
        ("text/plain", "\n", Outcome::NoOutput),
        ("text/plain", "", Outcome::NoOutput),
    ] {
        let record = text(content_type, path, body);
        assert_eq!((record.outcome, record.labels.streaming), (outcome, Some(false)), "{content_type} {body:?}");
        assert_eq!((record.tokens.output, record.times.first_token), (None, None), "no token count in the response");
    }
    assert_eq!(text("text/plain", "/v1/audio/translations", "Hello.").outcome, Outcome::Ok);
    assert_eq!(text("text/plain", "/v1/chat/completions", "Hello.").outcome, Outcome::Ok, "not a chat body");
}

/// vLLM 0.33, vllm/entrypoints/openai/responses/serving.py: with `background` the client fetches the response later.
#[test]
fn background_response_is_ok() {
    for (status, outcome) in [
        ("queued", Outcome::Ok),
        ("in_progress", Outcome::Ok),
        ("cancelled", Outcome::ErrorInStream),
        ("odd", Outcome::Ok),
    ] {
        let body = format!(
            r#"{{"id":"resp_1","object":"response","status":"{status}","background":true,"output":[],"usage":null}}"#
        );
        let record =
            response_complete(asked("/v1/responses", r#"{"input":"a","background":true}"#), "200 OK", "", &body);
        assert_eq!((record.outcome, record.tokens.output), (outcome, None), "{status}");
        assert_eq!(record.response.id.as_deref(), Some("resp_1"));
    }
    // A stream with only this event was truncated.
    const CREATED: &str = r#"data: {"type":"response.created","response":{"status":"in_progress"}}"#;
    let wire = asked("/v1/responses", r#"{"stream":true}"#).server(SSE).events(&[CREATED]).server(LAST);
    assert_eq!(one_of(wire).outcome, Outcome::NoOutput);
}

#[test]
fn triton_stream_ends_with_its_body() {
    const TOKEN: &str = r#"data: {"model_name":"m","model_version":"1","text_output":"a"}"#;
    const ERROR: &str = r#"data: {"error":"out of memory"}"#;
    let stream =
        || asked("/v2/models/m/generate_stream", r#"{"text_input":"a"}"#).server(SSE).events(&[TOKEN, TOKEN, TOKEN]);
    let closed = Close::Finished { first: Side::Client };
    let whole = one(stream().server(LAST), closed);
    assert_eq!((whole.outcome, whole.labels.engine), (Outcome::Ok, Some("triton")));
    assert_eq!(whole.tokens.output.map(|n| (n.tokens, n.source)), Some((3, CountSource::Deltas)));
    assert_eq!((whole.tokens.input, whole.tokens.chunks), (None, 3));
    assert_eq!(one(stream(), Close::Finished { first: Side::Server }).outcome, Outcome::Truncated);
    assert_eq!(one(stream(), closed).outcome, Outcome::ClientAbortMidStream);
    assert_eq!(one(stream().events(&[ERROR]).server(LAST), closed).outcome, Outcome::ErrorInStream);
    let body = r#"{"model_name":"m","model_version":"1","text_output":"abc"}"#;
    let record = response_complete(asked("/v2/models/m/versions/1/generate", "{}"), "200 OK", "", body);
    assert_eq!((record.outcome, record.tokens.output), (Outcome::Ok, None), "no token count in the response");
}

#[test]
fn vllm_token_route_is_counted_exactly() {
    const FIRST: &str =
        r#"data: {"request_id":"g","choices":[{"index":0,"token_ids":[1,2,3]}],"output_mode":"tokens","usage":null}"#;
    const END: &str = r#"data: {"request_id":"g","choices":[{"index":0,"token_ids":[4],"finish_reason":"length"}]}"#;
    let wire = asked("/inference/v1/generate", r#"{"token_ids":[5],"stream":true}"#).server(SSE);
    let record = one(wire.events(&[FIRST, END, "data: [DONE]"]).server(LAST), Close::Finished { first: Side::Client });
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((4, CountSource::TokenIds)));
    assert_eq!((record.outcome, record.tokens.first), (Outcome::Ok, Some(3)));
}

#[test]
fn tensorrt_llm_empty_delta_is_a_token_and_error_truncates() {
    const ROLE: &str = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant"}}]} "#;
    const EMPTY: &str =
        r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":""},"avg_decoded_tokens_per_iter":1.0}]}"#;
    const TEXT: &str = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"a"},"avg_decoded_tokens_per_iter":1.0}]}"#;
    let head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let wire = asked("/v1/chat/completions", r#"{"stream":true}"#).server(head).events(&[ROLE, EMPTY, TEXT]);
    let record = one(wire, Close::Finished { first: Side::Server });
    assert_eq!((record.outcome, record.labels.engine), (Outcome::Truncated, Some("tensorrt_llm")));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((2, CountSource::Deltas)));
    assert!(record.times.first_token < record.times.first_visible);
}

#[test]
fn dynamo_reports_queue_time_in_band() {
    const TEXT: &str =
        r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}"#;
    const END: &str = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"nvext":{"timing":{"prefill_wait_time_ms":12.5}}}"#;
    let wire =
        asked("/v1/chat/completions", r#"{"stream":true}"#).server(SSE).server(&chunk("event: request_id\n: \"a\""));
    let record = one(wire.events(&[TEXT, END, "data: [DONE]"]).server(LAST), Close::Finished { first: Side::Client });
    let queue = record.engine.queue.expect("a queue time");
    assert_eq!((queue.value.as_micros(), queue.source), (12_500, QueueSource::InBand));
    assert_eq!((record.labels.engine, record.outcome, record.response.events), (Some("dynamo"), Outcome::Ok, 3));
}
