//! Responses of servers that deviate from the APIs they implement, as reported by users of these servers. Each case is
//! read in one piece and split at every byte.

use tokometer::replay::Replayed;
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::{CountSource, Message, Outcome, Record, Unread};

use crate::endings::Wire;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const SSE: &str = "content-type: text/event-stream\r\n";
const CLOSED: Close = Close::Finished { first: Side::Client };

pub(crate) fn request(path: &str) -> Vec<u8> {
    let body = r#"{"model":"m","stream":true}"#;
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The response with these header lines and this body, delivered in one piece, then in two pieces for every split.
/// All deliveries must lead to the same record.
pub(crate) fn responses(path: &str, headers: &str, body: &str) -> Replayed {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}content-length: {}\r\n\r\n", body.len());
    let deliver = |first: &str, second: &str| {
        let wire = Wire::open().client(&request(path)).server(head.as_bytes()).server(first.as_bytes());
        wire.server(second.as_bytes()).close(CLOSED)
    };
    let whole = deliver(body, "");
    assert_eq!(whole.records.len(), 1, "{whole:?}");
    for place in (1..body.len()).filter(|place| body.is_char_boundary(*place)) {
        let (first, second) = body.split_at(place);
        let split = deliver(first, second);
        assert_eq!(summary(&split.records[0]), summary(&whole.records[0]), "split at {place}: {body}");
        assert_eq!(split.unread, whole.unread, "split at {place}: {body}");
    }
    whole
}

type Summary = (Outcome, Option<bool>, Option<u64>, Option<CountSource>, Option<u64>, Option<u64>, u64);

fn summary(record: &Record) -> Summary {
    let output = record.tokens.output;
    (
        record.outcome,
        record.labels.streaming,
        output.map(|count| count.tokens),
        output.map(|count| count.source),
        record.tokens.input.map(|count| count.tokens),
        record.tokens.cached,
        record.tokens.chunks,
    )
}

/// The outcome, and the output tokens with their source.
pub(crate) type Counted = (Outcome, Option<(u64, CountSource)>);

pub(crate) fn counted(path: &str, headers: &str, body: &str) -> Counted {
    let replayed = responses(path, headers, body);
    let record = &replayed.records[0];
    (record.outcome, record.tokens.output.map(|count| (count.tokens, count.source)))
}

pub(crate) fn sse(events: &[&str]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

pub(crate) fn delta(text: &str) -> String {
    format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#)
}

fn delta_with(usage: &str) -> String {
    format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"a"}}}}],"usage":{usage}}}"#)
}

pub(crate) const STOP: &str = r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
pub(crate) const DONE: &str = "[DONE]";

pub(crate) fn used(input: u64, output: u64) -> String {
    format!(r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}}}"#, input + output)
}

pub(crate) fn total(input: u64, output: u64) -> String {
    format!(r#"{{"id":"c","choices":[],"usage":{}}}"#, used(input, output))
}

/// A stream of four tokens, with these events before and after.
fn around(before: &[&str], after: &[&str]) -> String {
    let tokens = ["The", " quick", " brown", " fox"].map(delta);
    let tokens = tokens.iter().map(String::as_str);
    sse(&before.iter().copied().chain(tokens).chain(after.iter().copied()).collect::<Vec<_>>())
}

pub(crate) const EXACT: fn(u64) -> Counted = |n| (Outcome::Ok, Some((n, CountSource::Usage)));
pub(crate) const AT_LEAST: fn(u64) -> Counted = |n| (Outcome::Ok, Some((n, CountSource::Deltas)));

#[test]
fn body_is_read_by_its_content_if_its_type_is_missing_or_wrong() {
    let stream = around(&[], &[STOP, &total(9, 4), DONE]);
    for headers in [
        "",
        "content-type: application/json\r\n",
        "content-type: text/plain; charset=utf-8\r\n",
        "content-type: application/octet-stream\r\n",
        "content-type: application/x-ndjson\r\n",
    ] {
        for start in ["", "\n", ": ping\n\n", "event: message\n", "id: 1\n", "retry: 10\n"] {
            assert_eq!(counted(CHAT, headers, &format!("{start}{stream}")), EXACT(4), "{headers:?} {start:?}");
        }
    }
    let body = r#" {"id":"c","choices":[{"index":0,"message":{"content":"a b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    for headers in ["", SSE, "content-type: text/plain\r\n", "content-type: application/octet-stream\r\n"] {
        let replayed = responses(CHAT, headers, body);
        let record = &replayed.records[0];
        assert_eq!((record.outcome, record.labels.streaming), (Outcome::Ok, Some(false)), "{headers:?}");
        assert_eq!(record.tokens.output.map(|count| count.tokens), Some(2), "{headers:?}");
    }
}

#[test]
fn unreadable_response_is_ok_without_counts() {
    let lines = "{\"piece\": \"a\"}\n{\"piece\": \"b\"}\n";
    for (path, headers, body) in [
        ("/v1/completions", SSE, sse(&[r#"{"value":"a"}"#, r#"{"value":"b"}"#])),
        (CHAT, SSE, sse(&[r#"{"value":"a"}"#, DONE])),
        (CHAT, SSE, sse(&["hello", "world"])),
        (CHAT, "content-type: application/jsonlines\r\n", lines.to_owned()),
        (CHAT, "content-type: application/json\r\n", r#"{"answer": "a b"}"#.to_owned()),
        (CHAT, "content-type: text/html\r\n", "<p>a b</p>".to_owned()),
        (CHAT, "", "a b".to_owned()),
    ] {
        let replayed = responses(path, headers, &body);
        let record = &replayed.records[0];
        assert_eq!((record.outcome, record.unread), (Outcome::Ok, true), "{headers:?} {body}");
        assert_eq!((record.tokens.output, record.times.first_token), (None, None), "{headers:?} {body}");
        assert_eq!(replayed.unread, [(Message::Response, Unread::UnknownFormat)], "{headers:?} {body}");
    }
}

#[test]
fn empty_response_is_still_no_output() {
    let role = r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
    for (headers, body) in [
        (SSE, sse(&[role, STOP, &total(9, 0), DONE])),
        (SSE, sse(&[DONE])),
        (SSE, String::new()),
        ("", String::new()),
        ("content-type: application/json\r\n", r#"{"id":"c","choices":[{"message":{"content":""}}]}"#.to_owned()),
    ] {
        let replayed = responses(CHAT, headers, &body);
        let (record, unread) = (&replayed.records[0], &replayed.unread);
        assert_eq!(record.outcome, Outcome::NoOutput, "{headers:?} {body}");
        assert_eq!(*unread, [], "{headers:?} {body}");
    }
}

#[test]
fn engine_that_gives_up_is_an_error() {
    let abort = r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#;
    assert_eq!(counted(CHAT, SSE, &around(&[], &[abort, DONE])).0, Outcome::ErrorInStream);
    let body = r#"{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"abort"}]}"#;
    assert_eq!(counted(CHAT, "content-type: application/json\r\n", body).0, Outcome::ErrorInStream);
    let sglang = |finish: &str| {
        format!(
            r#"{{"text":"a","meta_info":{{"id":"x","finish_reason":{finish},"prompt_tokens":3,"completion_tokens":1}}}}"#
        )
    };
    let given_up = sglang(r#"{"type":"abort","message":"Prefill out of memory","status_code":500}"#);
    let stream = sse(&[&sglang("null"), &given_up, DONE]);
    let replayed = responses("/generate", SSE, &stream);
    let record = &replayed.records[0];
    assert_eq!(record.outcome, Outcome::ErrorInStream);
    assert_eq!(record.response.finish_reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>(), ["abort"]);
}

#[test]
fn error_is_recognised_by_the_name_of_its_event() {
    for end in [
        "event: error\n: worker disconnected\n\n",
        "event: error\ndata: {\"message\":\"CUDA out of memory\",\"code\":500}\n\n",
        "event:error\ndata: out of memory\n\n",
        "data: {\"message\":\"m\"}\nevent: error\r\n\r\n",
        "error: {\"code\":500,\"message\":\"m\"}\n\n",
        "error: {\"code\":500,\"message\":\"m\"}\n",
    ] {
        for done in ["", "data: [DONE]\n\n"] {
            let body = format!("{}{end}{done}", around(&[], &[]));
            assert_eq!(counted(CHAT, SSE, &body).0, Outcome::ErrorInStream, "{end:?}");
        }
    }
    for fine in ["event: errors\n", "event: message\n", "error\n", "errors: x\n", "event: error : x\n"] {
        let body = format!("{}{fine}data: {STOP}\n\ndata: [DONE]\n\n", around(&[], &[]));
        assert_eq!(counted(CHAT, SSE, &body), AT_LEAST(4), "{fine:?}");
    }
}

#[test]
fn empty_error_next_to_tokens_is_no_error() {
    for empty in [r#""""#, "{}", "{ }", "null", "false"] {
        let event = delta("a").replace(r#"{"id""#, &format!(r#"{{"error":{empty},"id""#));
        let body = sse(&[&event, STOP, &total(1, 1), DONE]);
        assert_eq!(counted(CHAT, SSE, &body), EXACT(1), "{empty}");
    }
    for full in [r#""m""#, r#"{"message":"m"}"#] {
        let event = delta("a").replace(r#"{"id""#, &format!(r#"{{"error":{full},"id""#));
        assert_eq!(counted(CHAT, SSE, &sse(&[&event, DONE])).0, Outcome::ErrorInStream, "{full}");
    }
}

#[test]
fn usage_is_exact_only_as_the_last_word() {
    // A preview before the output, or totals between tokens.
    assert_eq!(counted(CHAT, SSE, &around(&[&total(12, 0)], &[STOP, DONE])), AT_LEAST(4));
    assert_eq!(counted(CHAT, SSE, &around(&[&total(12, 900)], &[STOP, DONE])), AT_LEAST(900));
    assert_eq!(counted(CHAT, SSE, &around(&[&delta("a"), &total(12, 1)], &[STOP, DONE])), AT_LEAST(5));
    assert_eq!(counted(CHAT, SSE, &around(&[&total(12, 4)], &[STOP, &total(12, 6), DONE])), EXACT(6));
    // A total below what the events prove.
    let stop = STOP.replace("]}", &format!("],\"usage\":{}}}", used(9, 6)));
    assert_eq!(counted(CHAT, SSE, &around(&[], &[&stop, &total(9, 0), DONE])), EXACT(6));
    assert_eq!(counted(CHAT, SSE, &around(&[], &[STOP, &total(9, 1), DONE])), AT_LEAST(4));
    // Usage in an event with an empty choice after the finish reason.
    for last in [r#"{"index":0,"delta":{}}"#, r#"{"index":0,"delta":{},"finish_reason":null}"#] {
        let last = format!(r#"{{"id":"c","choices":[{last}],"usage":{}}}"#, used(65, 251));
        assert_eq!(counted(CHAT, SSE, &around(&[], &[STOP, &last, DONE])), EXACT(251), "{last}");
    }
    // The same usage in every event, and usage in every event of a stream that is cut off.
    let flat = sse(&[&delta_with(&used(35, 1)), &delta_with(&used(35, 1)), &delta_with(&used(35, 1)), STOP, DONE]);
    assert_eq!(counted(CHAT, SSE, &flat), AT_LEAST(3));
}

#[test]
fn running_usage_is_a_count_only_if_the_last_event_has_it() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let cut = |counts: &[u64]| {
        let events: Vec<String> = counts.iter().map(|n| format!("data: {}", delta_with(&used(35, *n)))).collect();
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let replayed =
            Wire::open().client(&request(CHAT)).server(head).events(&events).close(Close::Reset(Side::Client));
        let record = &replayed.records[0];
        assert_eq!(record.outcome, Outcome::ClientAbortMidStream);
        record.tokens.output.map(|count| (count.tokens, count.source))
    };
    // The engine may have made more tokens than the client received.
    assert_eq!(cut(&[1, 2, 5, 6]), Some((6, CountSource::Deltas)));
    let events: Vec<String> = [1, 2, 5, 6].map(|n| delta_with(&used(35, n))).into();
    let stop = STOP.replace("]}", &format!("],\"usage\":{}}}", used(35, 7)));
    let ended = |stop: &str| {
        let events: Vec<&str> = events.iter().map(String::as_str).chain([stop, DONE]).collect();
        counted(CHAT, SSE, &sse(&events))
    };
    assert_eq!(ended(&stop), EXACT(7));
    // The finish reason may stand for a token that is not counted yet.
    assert_eq!(ended(STOP), AT_LEAST(6));
    assert_eq!(cut(&[1, 1, 1, 1]), Some((4, CountSource::Deltas)));
    assert_eq!(cut(&[0, 0, 0]), Some((3, CountSource::Deltas)));
    assert_eq!(cut(&[900, 900, 900]), Some((900, CountSource::Deltas)));
}

#[test]
fn text_in_other_json_types_is_a_token() {
    let chat = |delta: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{delta}}}]}}"#);
    for text in [
        r#"{"content":[{"type":"text","text":"Hi"}]}"#,
        r#"{"content":[{"type":"text","text":""},{"type":"text","text":"Hi"}]}"#,
        r#"{"content":["Hi"]}"#,
        r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm"}]}]}"#,
        r#"{"content":[{"type":"thinking","thinking":"Hm"}]}"#,
        r#"{"reasoning_content":["Hm"]}"#,
        r#"{"content":"","reasoning_details":[{"type":"reasoning.text","text":"Hm"}]}"#,
        r#"{"tool_calls":{"index":0,"function":{"name":null,"arguments":"{\""}}}"#,
        r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}"#,
    ] {
        let replayed = responses(CHAT, SSE, &sse(&[&chat(text), &chat(text), STOP, DONE]));
        let record = &replayed.records[0];
        assert_eq!((record.outcome, record.tokens.chunks), (Outcome::Ok, 2), "{text}");
        assert!(record.times.first_token.is_some(), "{text}");
    }
    for empty in [r#"{"content":[]}"#, r#"{"content":[{"type":"text","text":""}]}"#, r#"{"tool_calls":{}}"#] {
        let replayed = responses(CHAT, SSE, &sse(&[&chat(empty), STOP, DONE]));
        assert_eq!((replayed.records[0].tokens.chunks, replayed.records[0].outcome), (0, Outcome::NoOutput), "{empty}");
    }
    let triton = r#"{"model_name":"e","model_version":"1","text_output":["a","b"]}"#;
    let replayed = responses("/v2/models/e/generate_stream", SSE, &sse(&[triton, triton]));
    assert_eq!((replayed.records[0].outcome, replayed.records[0].tokens.chunks), (Outcome::Ok, 2));
}

/// Input and cached tokens of a response.
fn input(path: &str, headers: &str, body: &str) -> (Option<u64>, Option<u64>) {
    let replayed = responses(path, headers, body);
    let record = &replayed.records[0];
    assert_eq!(record.outcome, Outcome::Ok, "{body}");
    (record.tokens.input.map(|count| count.tokens), record.tokens.cached)
}

#[test]
fn counts_under_other_names_are_read() {
    let ended = |usage: &str| sse(&[&delta("a"), STOP, &format!(r#"{{"choices":[],"usage":{usage}}}"#), DONE]);
    for usage in [
        r#"{"prompt_tokens":40,"completion_tokens":1,"cached_tokens":32}"#,
        r#"{"prompt_tokens":40,"completion_tokens":1,"prompt_cache_hit_tokens":32,"prompt_cache_miss_tokens":8}"#,
        r#"{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":32}}"#,
        r#"{"prompt\u005ftokens":40,"completion_tokens":1,"cached_tokens":32,"rate":NaN,"x":[Infinity,-Infinity]}"#,
        r#"{"rate":-Infinity,"input_tokens":40,"output_tokens":1,"cached_tokens":32,"y":Infinity}"#,
    ] {
        assert_eq!(input(CHAT, SSE, &ended(usage)), (Some(40), Some(32)), "{usage}");
    }
    // A part cannot exceed the whole.
    assert_eq!(
        input(CHAT, SSE, &ended(r#"{"prompt_tokens":4,"completion_tokens":1,"cached_tokens":32}"#)),
        (Some(4), None)
    );
    let kimi = STOP.replace(r#""finish_reason":"stop""#, &format!(r#""finish_reason":"stop","usage":{}"#, used(9, 1)));
    assert_eq!(counted(CHAT, SSE, &sse(&[&delta("a"), &kimi, DONE])), EXACT(1));
    let groq = format!(
        r#"{{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"x_groq":{{"id":"r","usage":{}}}}}"#,
        used(9, 1)
    );
    assert_eq!(counted(CHAT, SSE, &sse(&[&delta("a"), &groq, DONE])), EXACT(1));
    let line = |rest: &str| {
        format!(
            "{{\"model\":\"m\",\"created_at\":\"t\",\"message\":{{\"role\":\"assistant\",\"content\":\"a\"}},{rest}}}\n"
        )
    };
    let ollama = line(r#""done":false"#)
        + &line(
            r#""done":true,"done_reason":"stop","total_duration":300,"load_duration":10,"prompt_eval_count":40,"prompt_eval_cached_count":32,"eval_count":5"#,
        );
    assert_eq!(input("/api/chat", "content-type: application/x-ndjson\r\n", &ollama), (Some(40), Some(32)));
}

#[test]
fn counts_that_a_later_usage_omits_are_kept() {
    let typed = |kind: &str, rest: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{rest}}}\n\n");
    let start = typed(
        "message_start",
        r#""message":{"id":"msg_1","model":"m","usage":{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}}"#,
    ) + &typed("content_block_delta", r#""index":0,"delta":{"type":"text_delta","text":"a"}"#);
    for usage in [
        r#"{"input_tokens":25,"output_tokens":9}"#,
        r#"{"input_tokens":25,"cache_read_input_tokens":null,"cache_creation_input_tokens":null,"output_tokens":9}"#,
        r#"{"output_tokens":9}"#,
        r#"{"input_tokens":25,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":9}"#,
    ] {
        let end = typed("message_delta", &format!(r#""delta":{{"stop_reason":"end_turn"}},"usage":{usage}"#));
        let body = format!("{start}{end}{}", typed("message_stop", r#""x":1"#));
        assert_eq!(input("/v1/messages", SSE, &body), (Some(135), Some(100)), "{usage}");
        assert_eq!(counted("/v1/messages", SSE, &body), EXACT(9), "{usage}");
    }
}

#[test]
fn token_that_arrives_after_the_client_left_is_not_counted() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut wire = Wire::open().client(&request(CHAT)).server(head);
    let left = wire.now;
    wire.observer.finished(tokometer_observe::input::Direction::Request, left);
    let event = format!("data: {}", delta("a"));
    let replayed = wire.events(&[&event]).close(Close::Reset(Side::Client));
    let record = &replayed.records[0];
    assert_eq!(record.outcome, Outcome::ClientAbortBeforeFirstToken);
    assert_eq!((record.tokens.output, record.times.first_token, record.times.last_token), (None, None, None));
}
