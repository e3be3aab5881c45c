//! Whole exchanges of routes and servers beside the OpenAI ones: requests and answers in, records out.

use tokometer::measure::CountSource;
use tokometer::measure::Outcome;
use tokometer::measure::QueueSource;
use tokometer::measure::Record;
use tokometer::relay::Close;
use tokometer::relay::Side;

use crate::endings::Wire;
use crate::endings::chunk;

/// A connection on which this was asked.
fn asked(path: &str, body: &str) -> Wire {
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    Wire::open().client(request.as_bytes())
}

fn answered(wire: Wire, status: &str, fields: &str, body: &str) -> Record {
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

const SSE: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const LAST: &[u8] = b"0\r\n\r\n";

#[test]
fn embeddings_and_the_like_take_input_and_are_ok_without_output() {
    const USAGE: &str = r#"{"id":"embd-a1c2c80ff5e5a5d2","data":[],"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0}}"#;
    for (path, operation) in [
        ("/v1/embeddings", "embeddings"),
        ("/v2/embed", "embeddings"),
        ("/v1/rerank", "rerank"),
        ("/score", "score"),
        ("/classify", "classify"),
        ("/pooling", "pooling"),
    ] {
        let record = answered(asked(path, r#"{"model":"m","input":"a"}"#), "200 OK", "server: uvicorn\r\n", USAGE);
        assert_eq!((record.labels.route.operation(), record.outcome), (operation, Outcome::Ok), "{path}");
        let input = record.input_tokens.expect("usage tells it");
        assert_eq!((input.tokens, input.source), (9, CountSource::Usage));
        assert_eq!((record.output_tokens, record.first_token, record.decode_rate), (None, None, None));
        assert_eq!(record.labels.request_model.as_deref(), Some("m"));
        assert_eq!((record.labels.engine, record.labels.streaming), (Some("vllm"), Some(false)));
    }
    let record =
        answered(asked("/v1/rerank", "{}"), "501 Not Implemented", "", r#"{"error":{"type":"not_supported_error"}}"#);
    assert_eq!((record.outcome, record.error_type.as_deref()), (Outcome::Http5xx, Some("not_supported_error")));
}

#[test]
fn the_body_says_what_is_asked_where_several_apis_share_a_path() {
    for (body, operation) in [
        (r#"{"messages":[],"model":"m"}"#, "chat"),
        (r#"{"prompt":"a"}"#, "text_completion"),
        (r#"{"input":"a"}"#, "embeddings"),
        (r#"{"query":"a","documents":["b"]}"#, "rerank"),
        (r#"{"instances":[]}"#, "other"),
    ] {
        let answer = r#"{"choices":[{"index":0,"message":{"content":"a"},"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let record = answered(asked("/invocations", body), "200 OK", "", answer);
        assert_eq!((record.labels.route.operation(), record.outcome), (operation, Outcome::Ok), "{body}");
        let output = record.output_tokens.map(|count| count.tokens);
        assert_eq!(output, matches!(operation, "chat" | "text_completion").then_some(2), "{body}");
    }
}

#[test]
fn tritons_stream_ends_with_its_body() {
    const TOKEN: &str = r#"data: {"model_name":"m","model_version":"1","text_output":"a"}"#;
    const ERROR: &str = r#"data: {"error":"out of memory"}"#;
    let stream =
        || asked("/v2/models/m/generate_stream", r#"{"text_input":"a"}"#).server(SSE).events(&[TOKEN, TOKEN, TOKEN]);
    let closed = Close::Finished { first: Side::Client };
    let whole = one(stream().server(LAST), closed);
    assert_eq!((whole.outcome, whole.labels.engine), (Outcome::Ok, Some("triton")));
    assert_eq!(whole.output_tokens.map(|n| (n.tokens, n.source)), Some((3, CountSource::Deltas)));
    assert_eq!((whole.input_tokens, whole.chunks), (None, 3));
    assert_eq!(one(stream(), Close::Finished { first: Side::Server }).outcome, Outcome::Truncated);
    assert_eq!(one(stream(), closed).outcome, Outcome::ClientAbortMidStream);
    assert_eq!(one(stream().events(&[ERROR]).server(LAST), closed).outcome, Outcome::ErrorInStream);
    let body = r#"{"model_name":"m","model_version":"1","text_output":"abc"}"#;
    let record = answered(asked("/v2/models/m/versions/1/generate", "{}"), "200 OK", "", body);
    assert_eq!((record.outcome, record.output_tokens), (Outcome::Ok, None), "how many tokens, nobody told");
}

#[test]
fn vllms_token_route_is_counted_exactly() {
    const FIRST: &str =
        r#"data: {"request_id":"g","choices":[{"index":0,"token_ids":[1,2,3]}],"output_mode":"tokens","usage":null}"#;
    const END: &str = r#"data: {"request_id":"g","choices":[{"index":0,"token_ids":[4],"finish_reason":"length"}]}"#;
    let wire = asked("/inference/v1/generate", r#"{"token_ids":[5],"stream":true}"#).server(SSE);
    let record = one(wire.events(&[FIRST, END, "data: [DONE]"]).server(LAST), Close::Finished { first: Side::Client });
    assert_eq!(record.output_tokens.map(|n| (n.tokens, n.source)), Some((4, CountSource::TokenIds)));
    assert_eq!((record.outcome, record.first_tokens), (Outcome::Ok, Some(3)));
}

#[test]
fn tensorrt_llms_empty_delta_is_a_token_and_its_error_is_a_cut() {
    const ROLE: &str = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant"}}]} "#;
    const EMPTY: &str =
        r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":""},"avg_decoded_tokens_per_iter":1.0}]}"#;
    const TEXT: &str = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"a"},"avg_decoded_tokens_per_iter":1.0}]}"#;
    let head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let wire = asked("/v1/chat/completions", r#"{"stream":true}"#).server(head).events(&[ROLE, EMPTY, TEXT]);
    let record = one(wire, Close::Finished { first: Side::Server });
    assert_eq!((record.outcome, record.labels.engine), (Outcome::Truncated, Some("tensorrt_llm")));
    assert_eq!(record.output_tokens.map(|n| (n.tokens, n.source)), Some((2, CountSource::Deltas)));
    assert!(record.first_token < record.first_visible);
}

#[test]
fn dynamo_tells_its_queue_time_in_band() {
    const TEXT: &str =
        r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}"#;
    const END: &str = r#"data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"nvext":{"timing":{"prefill_wait_time_ms":12.5}}}"#;
    let wire =
        asked("/v1/chat/completions", r#"{"stream":true}"#).server(SSE).server(&chunk("event: request_id\n: \"a\""));
    let record = one(wire.events(&[TEXT, END, "data: [DONE]"]).server(LAST), Close::Finished { first: Side::Client });
    let queue = record.queue.expect("it was told");
    assert_eq!((queue.value.as_micros(), queue.source), (12_500, QueueSource::InBand));
    assert_eq!((record.labels.engine, record.outcome, record.events), (Some("dynamo"), Outcome::Ok, 3));
}
