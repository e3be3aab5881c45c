//! Values in other JSON shapes, under other keys or with other framing than the documented ones, and calls that abort
//! requests. Each response is read in one piece and split at every byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer::replay::Notebook;
use tokometer_observe::input::{Close, Connection, Direction, Observe, Side};
use tokometer_observe::measure::{CountSource, Outcome};
use tokometer_observe::observer::{Observers, Settings};

use crate::endings::Wire;
use crate::odd_servers::{
    AT_LEAST, CHAT, Counted, DONE, EXACT, SSE, STOP, counted, delta, request, responses, sse, total, used,
};

const COMPLETIONS: &str = "/v1/completions";

fn chat(delta: &str) -> String {
    format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{delta}}}]}}"#)
}

/// The events with tokens, and the outcome.
fn chunks(path: &str, headers: &str, body: &str) -> (u64, Outcome) {
    let replayed = responses(path, headers, body);
    (replayed.records[0].tokens.chunks, replayed.records[0].outcome)
}

#[test]
fn text_in_every_json_type_is_a_token() {
    for text in [
        r#"{"content":{"type":"text","text":"Hi"}}"#,
        r#"{"content":{"type":"text","text":{"content":"Hi"}}}"#,
        r#"{"content":null,"reasoning":{"text":"Hm"}}"#,
        r#"{"thinking":"Hm"}"#,
        r#"{"thinking_blocks":[{"type":"thinking","thinking":"Hm","signature":"s"}]}"#,
        r#"{"reasoning_details":{"type":"reasoning.text","text":"Hm"}}"#,
        r#"{"tool_calls":[{"name":"f","arguments":"{"}]}"#,
        r#"{"tool_calls":[{"function":{"arguments":{"a":1}}}]}"#,
        r#"{"function_call":{"name":"f"}}"#,
        r#"{"audio":{"transcript":"Hi"}}"#,
        r#"{"refusal":"No"}"#,
    ] {
        assert_eq!(chunks(CHAT, SSE, &sse(&[&chat(text), &chat(text), STOP, DONE])), (2, Outcome::Ok), "{text}");
    }
    for text in [r#"["Hi"]"#, r#"{"text":"Hi"}"#, r#"[{"text":"Hi"}]"#] {
        let event = format!(r#"{{"id":"c","choices":[{{"index":0,"text":{text}}}]}}"#);
        assert_eq!(chunks(COMPLETIONS, SSE, &sse(&[&event, STOP, DONE])), (1, Outcome::Ok), "{text}");
    }
    let piece = |delta: &str| format!(r#"{{"type":"response.output_text.delta","delta":{delta}}}"#);
    let end = r#"{"type":"response.completed","response":{"status":"completed"}}"#;
    for delta in [r#""a""#, r#"{"text":"a"}"#, r#"{"content":"a"}"#, r#"[{"text":"a"}]"#] {
        assert_eq!(chunks("/v1/responses", SSE, &sse(&[&piece(delta), end])), (1, Outcome::Ok), "{delta}");
    }
}

#[test]
fn whole_text_without_deltas_has_the_first_token() {
    let path = "/v1/responses";
    let created = r#"{"type":"response.created","response":{"status":"in_progress","output":[]}}"#;
    let item = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ab"}]}"#;
    let text = r#"{"type":"response.output_text.done","text":"ab"}"#;
    let done = format!(r#"{{"type":"response.output_item.done","item":{item}}}"#);
    let end = |usage: &str| {
        format!(r#"{{"type":"response.completed","response":{{"status":"completed","output":[{item}]{usage}}}}}"#)
    };
    for events in [vec![created, text, &done, &end("")], vec![created, &done, &end("")], vec![created, &end("")]] {
        let replayed = responses(path, SSE, &sse(&events));
        let record = &replayed.records[0];
        assert_eq!((record.tokens.chunks, record.outcome), (1, Outcome::Ok), "{events:?}");
        assert!(record.time_to_first_token().is_some(), "{events:?}");
    }
    let usage = r#","usage":{"input_tokens":3,"output_tokens":20}"#;
    assert_eq!(counted(path, SSE, &sse(&[created, text, &done, &end(usage)])), EXACT(20));
    // No output at all.
    let empty = r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#;
    assert_eq!(chunks(path, SSE, &sse(&[created, empty])), (0, Outcome::NoOutput));
}

#[test]
fn message_next_to_a_delta_repeats_the_text() {
    let event = |delta: &str, so_far: &str, more: &str| {
        let message = format!(r#""message":{{"role":"assistant","content":"{so_far}"}}"#);
        let delta = format!(r#""delta":{{"role":"assistant","content":"{delta}"}}"#);
        let choices = [format!("{message},{delta}"), format!("{delta},{message}")];
        choices.map(|choice| format!(r#"{{"id":"c","choices":[{{"index":0,{choice}{more}}}],"usage":{}}}"#, used(5, 2)))
    };
    let stop = r#","finish_reason":"stop""#;
    for order in [0, 1] {
        let [first, second, last] = [event("a", "a", ""), event("b", "ab", ""), event("", "ab", stop)];
        let body = sse(&[&first[order], &second[order], &last[order]]);
        assert_eq!(chunks(CHAT, SSE, &body), (2, Outcome::Ok), "{order}");
        assert_eq!(counted(CHAT, SSE, &body), EXACT(2), "{order}");
    }
    // Some servers send `message` in every event instead of `delta`.
    let event = r#"{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":null}]}"#;
    assert_eq!(chunks(CHAT, SSE, &sse(&[event, event, STOP, DONE])), (2, Outcome::Ok));
}

#[test]
fn counts_in_other_places_and_types_are_read() {
    let ended = |last: &str| sse(&[&delta("a"), &delta("b"), STOP, last, DONE]);
    for usage in [
        r#"{"prompt_tokens":9.0,"completion_tokens":4.0}"#,
        r#"{"prompt_tokens":"9","completion_tokens":"4"}"#,
        r#"{"promptTokens":9,"completionTokens":4}"#,
        r#"{"inputTokens":9,"outputTokens":4,"totalTokens":13}"#,
        r#"{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":null}"#,
    ] {
        let replayed = responses(CHAT, SSE, &ended(&format!(r#"{{"choices":[],"usage":{usage}}}"#)));
        let record = &replayed.records[0];
        assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((4, CountSource::Usage)), "{usage}");
        assert_eq!(record.tokens.input.map(|count| count.tokens), Some(9), "{usage}");
    }
    let of_choice = |choice: &str| format!(r#"{{"id":"c","choices":[{{"index":0,{choice}}}]}}"#);
    for last in [
        of_choice(&format!(r#""delta":{{}},"usage":{}"#, used(9, 4))),
        of_choice(&format!(r#""delta":{{"usage":{}}}"#, used(9, 4))),
    ] {
        assert_eq!(counted(CHAT, SSE, &ended(&last)), EXACT(4), "{last}");
    }
    // No count: negative, a fraction, or no number.
    for usage in [r#"{"completion_tokens":-4}"#, r#"{"completion_tokens":3.5}"#, r#"{"completion_tokens":"many"}"#] {
        let expected: Counted = (Outcome::Ok, Some((2, CountSource::Deltas)));
        assert_eq!(counted(CHAT, SSE, &ended(&format!(r#"{{"choices":[],"usage":{usage}}}"#))), expected, "{usage}");
    }
}

#[test]
fn finish_reasons_in_every_form_end_the_stream() {
    let stop =
        |reason: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":{reason}}}]}}"#);
    let outcome = |reason: &str| {
        let events = [delta("a"), delta("b"), stop(reason)];
        counted(CHAT, SSE, &sse(&events.each_ref().map(String::as_str))).0
    };
    for reason in
        [r#""STOP""#, r#""Length""#, r#""MAX_TOKENS""#, r#"{"type":"stop","matched":2}"#, r#""SAFETY""#, r#""x""#]
    {
        assert_eq!(outcome(reason), Outcome::Ok, "{reason}");
    }
    for reason in [
        r#""abort""#,
        r#""aborted""#,
        r#""ABORT""#,
        r#""cancelled""#,
        r#""error""#,
        r#""timeout""#,
        r#""insufficient_system_resource""#,
        r#""network_error""#,
        r#"{"type":"abort","message":"x"}"#,
    ] {
        assert_eq!(outcome(reason), Outcome::ErrorInStream, "{reason}");
    }
    // Not finished: the stream is cut off.
    for reason in [r#""null""#, r#""none""#, r#""""#, r#""not_finished""#, "null"] {
        assert_eq!(outcome(reason), Outcome::Truncated, "{reason}");
    }
}

#[test]
fn stream_with_unusual_framing_is_read() {
    let events = [&delta("a"), &delta("b"), STOP, &total(9, 2)];
    let joined = |start: &str, end: &str| events.map(|event| format!("{start}{event}{end}")).concat();
    for body in [
        joined("data:", "\r\r"),
        joined("data: ", "\n") + "data: [DONE]\n\n",
        joined("data: ", "\r\n") + "data: [DONE]",
        joined("id: 7\nretry: 3\nevent: message\ndata: ", "\n\n: ping\n\n") + "data: [done]\n\n",
        format!("\u{feff}{}", joined("data: ", "\n\n")),
        joined("", "\n"),
        joined("", "\r\n"),
    ] {
        for headers in
            [SSE, "", "content-type: text/plain\r\n", "content-type: application/x-ndjson; charset=utf-8\r\n"]
        {
            // JSON lines need no declaration, and neither do events.
            assert_eq!(counted(CHAT, headers, &body), EXACT(2), "{headers:?} {body:?}");
        }
    }
    let lines = "{\"model\":\"m\",\"message\":{\"content\":\"a\"},\"done\":false}\n\
        {\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"total_duration\":9,\
        \"load_duration\":1,\"prompt_eval_count\":4,\"eval_count\":2}\n";
    for headers in ["", "content-type: application/json\r\n", "content-type: text/plain\r\n"] {
        assert_eq!(
            counted("/api/chat", headers, lines),
            (Outcome::Ok, Some((2, CountSource::NativeCounter))),
            "{headers:?}"
        );
    }
    let body = format!("\u{feff}{{\"choices\":[{{\"message\":{{\"content\":\"a\"}}}}],\"usage\":{}}}\n", used(3, 1));
    for headers in ["", "content-type: application/json; charset=utf-8\r\n"] {
        let replayed = responses(CHAT, headers, &body);
        let record = &replayed.records[0];
        assert_eq!((record.outcome, record.labels.streaming), (Outcome::Ok, Some(false)), "{headers:?}");
        assert_eq!(record.tokens.output.map(|count| count.tokens), Some(1), "{headers:?}");
    }
}

#[test]
fn errors_are_told_from_keys_that_are_always_present() {
    let with = |error: &str| format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"a"}}}}],{error}}}"#);
    for error in [
        r#""error":null"#,
        r#""error":"""#,
        r#""error":{}"#,
        r#""error":{"message":"","code":null}"#,
        r#""error":{"message":null,"type":"","param":null,"code":0}"#,
        r#""error":{"code":0.0,"message":"","details":[],"inner":{"a":[{}],"b":""},"retry":false}"#,
        r#""error":{"code":0,"message":"success"}"#,
        r#""error":{"message":"OK","code":"200"}"#,
        r#""base_resp":{"status_code":0,"status_msg":"success"}"#,
    ] {
        let body = sse(&[&with(error), &with(error), STOP, &total(9, 2), DONE]);
        assert_eq!(counted(CHAT, SSE, &body), EXACT(2), "{error}");
    }
    for error in [
        r#"{"error":"broken"}"#,
        r#"{"error":{"message":"broken","code":500}}"#,
        r#"{"error":{"detail":"broken"}}"#,
        r#"{"error":{"message":"","code":500}}"#,
        r#"{"error":{"message":"","code":"","type":"broken"}}"#,
        r#"{"error":{"message":"","details":[{"reason":"broken"}]}}"#,
        r#"{"error":{"message":"","an_unknown_key_with_more_than_36_letters":true}}"#,
        r#"{"choices":[{"index":0,"delta":{"content":""},"error":{"code":502,"message":"broken"}}]}"#,
        r#"{"x_groq":{"id":"r","error":"broken"},"choices":[]}"#,
        r#"{"choices":null,"base_resp":{"status_code":1004,"status_msg":"broken"}}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"error":{"message":"broken"}}"#,
    ] {
        assert_eq!(counted(CHAT, SSE, &sse(&[&delta("a"), error, DONE])).0, Outcome::ErrorInStream, "{error}");
        let json = "content-type: application/json\r\n";
        assert_eq!(counted(CHAT, json, error).0, Outcome::ErrorInStream, "{error}");
    }
}

#[test]
fn event_streams_of_other_apis_are_streams() {
    let body = sse(&[r#"{"type":"speech.audio.delta","audio":"UklG"}"#, r#"{"type":"speech.audio.done"}"#]);
    for path in ["/v1/audio/speech", "/v1/images/generations"] {
        let replayed = responses(path, SSE, &body);
        let record = &replayed.records[0];
        assert_eq!((record.outcome, record.labels.streaming), (Outcome::Ok, Some(true)), "{path}");
        let whole = responses(path, "content-type: application/json\r\n", "{}");
        assert_eq!(whole.records[0].labels.streaming, Some(false), "{path}");
    }
}

/// One connection per item, observed together.
struct Connections {
    observers: Observers,
    notebook: Notebook,
    now: Instant,
}

impl Connections {
    fn new() -> Connections {
        let notebook = Notebook::default();
        let observers = Observers::new(Settings::default(), 1, Arc::new(notebook.clone()));
        Connections { observers, notebook, now: Instant::now() }
    }

    fn open(&mut self, id: u64) -> Box<dyn tokometer_observe::input::Observer> {
        let accepted = self.now;
        let connection = Connection { id, peer: None, listener: 0, upstream: Arc::from("sim"), accepted };
        self.observers.accepted(&connection).expect("observing is enabled")
    }

    fn tick(&mut self) -> Instant {
        self.now += Duration::from_millis(1);
        self.now
    }

    /// Sends this call on a connection of its own, and the server's response.
    fn call(&mut self, path: &str, body: &str, status: u16) {
        let mut observer = self.open(100);
        let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        for half in [&request.as_bytes()[..request.len() - 3], &request.as_bytes()[request.len() - 3..]] {
            observer.seen(Direction::Request, half, self.tick());
        }
        let response = format!("HTTP/1.1 {status} -\r\ncontent-length: 0\r\n\r\n");
        observer.seen(Direction::Response, response.as_bytes(), self.tick());
        observer.closed(Close::Finished { first: Side::Client }, self.tick());
    }
}

/// The outcome of a stream with the id `r-17`, that the engine aborts after this call.
fn aborted(path: &str, body: &str, status: u16, events: &[&str]) -> Outcome {
    let abort = r#"{"id":"r-17","choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#;
    ended_after((path, body, status), CHAT, events, &[abort, DONE])
}

/// The outcome of a stream that has the first events before this call, and the last events after it.
fn ended_after((path, body, status): (&str, &str, u16), api: &str, events: &[&str], last: &[&str]) -> Outcome {
    let mut connections = Connections::new();
    let mut stream = connections.open(1);
    let asked = r#"{"model":"m","stream":true}"#;
    let request = format!("POST {api} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{asked}", asked.len());
    stream.seen(Direction::Request, request.as_bytes(), connections.tick());
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.seen(Direction::Response, format!("{head}{}", sse(events)).as_bytes(), connections.tick());
    connections.call(path, body, status);
    stream.seen(Direction::Response, sse(last).as_bytes(), connections.tick());
    let at = connections.tick();
    stream.finished(Direction::Response, at);
    stream.closed(Close::Finished { first: Side::Server }, at);
    drop(stream);
    let replayed = connections.notebook.take();
    let found = replayed.records.iter().find(|record| record.connection == 1).expect("a record");
    found.outcome
}

#[test]
fn request_that_a_client_aborted_by_a_call_is_a_client_abort() {
    let token = r#"{"id":"r-17","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    for (path, body) in [
        ("/abort_request", r#"{"rid": "r-17"}"#),
        ("/abort_request", r#"{"rid": "r-", "abort_all": false}"#),
        ("/abort_request", r#"{"rid": "", "abort_all": true}"#),
        ("/abort_requests", r#"{"request_ids": ["other", "r-17-0"]}"#),
        ("/inference/v1/abort_requests", r#"{"request_ids": ["r-17"]}"#),
    ] {
        assert_eq!(aborted(path, body, 200, &[token]), Outcome::ClientAbortMidStream, "{path} {body}");
        assert_eq!(aborted(path, body, 200, &[]), Outcome::ClientAbortBeforeFirstToken, "{path} {body}");
    }
    for (path, body, status) in [
        ("/abort_request", r#"{"rid": "other"}"#, 200),
        ("/abort_request", r#"{"rid": "r-17"}"#, 404),
        ("/abort_request", r#"{"rid": "r-17"#, 200),
        ("/tokenize", r#"{"rid": "r-17"}"#, 200),
    ] {
        assert_eq!(aborted(path, body, status, &[token]), Outcome::ErrorInStream, "{path} {body}");
    }
}

/// Responses API: without the call, only the engine can have canceled a response whose client is connected.
#[test]
fn canceled_response_is_an_error_unless_a_client_canceled_it() {
    let created = r#"{"type":"response.created","response":{"id":"resp_7","status":"in_progress"}}"#;
    let token = r#"{"type":"response.output_text.delta","delta":"a"}"#;
    let canceled = |kind: &str, status: &str| {
        format!(r#"{{"type":"response.{kind}","response":{{"id":"resp_7","status":"{status}"}}}}"#)
    };
    for last in [
        canceled("cancelled", "cancelled"),
        canceled("done", "cancelled"),
        canceled("incomplete", "canceled"),
        canceled("cancelled", ""),
    ] {
        for (path, status, outcome) in [
            ("/v1/responses/resp_7/cancel", 200, Outcome::ClientAbortMidStream),
            ("/v1/responses/resp_8/cancel", 200, Outcome::ErrorInStream),
            ("/v1/responses/resp_7/cancel", 404, Outcome::ErrorInStream),
            ("/v1/responses/resp_7", 200, Outcome::ErrorInStream),
        ] {
            let call = (path, "", status);
            assert_eq!(ended_after(call, "/v1/responses", &[created, token], &[&last]), outcome, "{path} {last}");
        }
    }
    let before = (("/v1/responses/resp_7/cancel", "", 200), &canceled("cancelled", "cancelled"));
    let outcome = ended_after(before.0, "/v1/responses", &[created], &[before.1]);
    assert_eq!(outcome, Outcome::ClientAbortBeforeFirstToken);
}

#[test]
fn response_to_an_idle_client_is_no_fault() {
    let request = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}");
    let ok = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    for farewell in [
        "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.0 408 Request Time-out\r\nconnection: close\r\n\r\n<html>408</html>",
        "HTTP/1.1 503 -\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
    ] {
        let wire = Wire::open().client(request.as_bytes()).server(ok).server(farewell.as_bytes());
        let replayed = wire.close(Close::Finished { first: Side::Server });
        assert_eq!((replayed.records.len(), replayed.detached.as_slice()), (1, [].as_slice()), "{farewell}");
    }
    // Any other response belongs to a request that was not recognised.
    let replayed = Wire::open().client(request.as_bytes()).server(ok).server(ok);
    assert_eq!(replayed.close(Close::Finished { first: Side::Server }).records.len(), 2);
}

const JSON: &str = "content-type: application/json\r\n";

/// The input tokens, and the outcome with the output tokens.
fn counts(path: &str, headers: &str, body: &str) -> (Option<u64>, Counted) {
    let input = responses(path, headers, body).records[0].tokens.input.map(|count| count.tokens);
    (input, counted(path, headers, body))
}

/// A chat of two tokens with these last events.
fn ended_by(last: &[&str]) -> String {
    let (a, b) = (delta("a"), delta("b"));
    sse(&[&[&*a, &*b, STOP], last, &[DONE]].concat())
}

/// new-api, dto/openai_response.go: both names of each count are always sent.
#[test]
fn zero_does_not_replace_a_count_under_another_name() {
    for usage in [
        r#"{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"input_tokens":0,"output_tokens":0}"#,
        r#"{"input_tokens":0,"output_tokens":0,"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}"#,
        r#"{"prompt_tokens":0,"completion_tokens":0,"input_tokens":9,"output_tokens":4}"#,
    ] {
        let last = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        assert_eq!(counts(CHAT, SSE, &ended_by(&[&last])), (Some(9), EXACT(4)), "{usage}");
    }
}

#[test]
fn zero_input_is_no_count() {
    assert_eq!(counts(CHAT, SSE, &ended_by(&[&total(0, 4)])), (None, EXACT(4)));
    assert_eq!(counts(CHAT, SSE, &ended_by(&[&total(9, 4), &total(0, 4)])), (Some(9), EXACT(4)));
    let body = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":0,"completion_tokens":4}}"#;
    assert_eq!(counts(CHAT, JSON, body), (None, EXACT(4)));
}

/// llama.cpp before September 2025 sends `prompt_n` without `cache_n`.
#[test]
fn computed_prompt_tokens_without_cached_ones_are_not_the_prompt() {
    let last = |cached: &str| {
        format!(
            r#"{{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"timings":{{"prompt_n":1,{cached}"prompt_ms":30.9,"predicted_n":35,"predicted_ms":9.5}}}}"#
        )
    };
    let native: Counted = (Outcome::Ok, Some((35, CountSource::NativeCounter)));
    let body = |cached: &str| sse(&[&delta("a"), &last(cached), DONE]);
    assert_eq!(counts(CHAT, SSE, &body("")), (None, native));
    assert_eq!(counts(CHAT, SSE, &body(r#""cache_n":8,"#)), (Some(9), native));
}

#[test]
fn count_that_the_events_contradict_is_a_lower_bound() {
    // xAI excludes the reasoning from the output.
    let usage = r#"{"prompt_tokens":10120,"completion_tokens":1499,"total_tokens":14428,"completion_tokens_details":{"reasoning_tokens":2809}}"#;
    let last = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    assert_eq!(counts(CHAT, SSE, &ended_by(&[&last])), (Some(10120), AT_LEAST(2809)));
    let body = format!(r#"{{"choices":[{{"message":{{"content":"a"}},"finish_reason":"stop"}}],"usage":{usage}}}"#);
    assert_eq!(counts(CHAT, JSON, &body), (Some(10120), AT_LEAST(2809)));
    let timed = r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{"predicted_n":1}}"#;
    let tokens = ["a", "b", "c", "d"].map(delta);
    let events = tokens.iter().map(String::as_str).chain([timed, DONE]).collect::<Vec<_>>();
    assert_eq!(counted(CHAT, SSE, &sse(&events)), AT_LEAST(4));
}

#[test]
fn zero_output_of_a_body_with_output_is_no_count() {
    for message in [r#"{"content":"a"}"#, r#"{"content":null,"tool_calls":[{"function":{"name":"f"}}]}"#] {
        let choices = format!(r#""choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}]"#);
        let body = format!(r#"{{{choices},"usage":{}}}"#, used(9, 0));
        assert_eq!(counts(CHAT, JSON, &body), (Some(9), (Outcome::Ok, None)), "{message}");
    }
    let empty =
        format!(r#"{{"choices":[{{"message":{{"content":""}},"finish_reason":"stop"}}],"usage":{}}}"#, used(9, 0));
    assert_eq!(counts(CHAT, JSON, &empty), (Some(9), EXACT(0)));
}

/// MiniMax v2: the last event has the whole text in `message`.
#[test]
fn message_without_a_delta_after_deltas_repeats_the_text() {
    let tokens = ["a", "b", "c"].map(delta);
    let last = format!(
        r#"{{"id":"c","choices":[{{"index":0,"finish_reason":"stop","message":{{"role":"assistant","content":"abc"}}}}],"usage":{}}}"#,
        used(9, 3)
    );
    let body = sse(&tokens.iter().map(String::as_str).chain([&*last]).collect::<Vec<_>>());
    assert_eq!((chunks(CHAT, SSE, &body), counted(CHAT, SSE, &body)), ((3, Outcome::Ok), EXACT(3)));
}

/// LiteLLM documents `POST /completions`.
#[test]
fn completions_without_a_prefix_may_have_the_format_of_openai() {
    let token = r#"{"id":"c","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}"#;
    let stop = r#"{"id":"c","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#;
    for path in ["/completions", COMPLETIONS] {
        let body = sse(&[token, token, stop, &total(9, 3), DONE]);
        assert_eq!(
            (chunks(path, SSE, &body), counts(path, SSE, &body)),
            ((2, Outcome::Ok), (Some(9), EXACT(3))),
            "{path}"
        );
        let body = format!(r#"{{"id":"c","choices":[{{"text":"a","finish_reason":"stop"}}],"usage":{}}}"#, used(9, 3));
        assert_eq!(counts(path, JSON, &body), (Some(9), EXACT(3)), "{path}");
    }
}

/// vLLM before `prompt_tokens` in `RerankUsage`.
#[test]
fn total_without_a_prompt_count_is_the_input_of_routes_without_output() {
    for (usage, input) in [
        (r#"{"total_tokens":56}"#, Some(56)),
        (r#"{"prompt_tokens":0,"total_tokens":56}"#, Some(56)),
        (r#"{"total_tokens":56,"prompt_tokens":50}"#, Some(50)),
    ] {
        for path in ["/v1/rerank", "/v1/embeddings", "/v1/score"] {
            let body = format!(r#"{{"id":"r","results":[],"usage":{usage}}}"#);
            assert_eq!(counts(path, JSON, &body), (input, (Outcome::Ok, None)), "{path} {usage}");
        }
    }
    assert_eq!(counts(CHAT, SSE, &ended_by(&[r#"{"choices":[],"usage":{"total_tokens":56}}"#])).0, None);
}

#[test]
fn status_is_compared_without_case_and_an_unknown_one_is_no_empty_response() {
    for status in ["completed", "COMPLETED", "succeeded", "Queued"] {
        let body = format!(
            r#"{{"id":"r","object":"response","status":"{status}","output":[{{"content":[{{"type":"output_text","text":"a"}}]}}]}}"#
        );
        assert_eq!(counted("/v1/responses", JSON, &body), (Outcome::Ok, None), "{status}");
    }
}

/// The record of a stream that the client left after these events.
pub(crate) fn cut(path: &str, events: &[&str]) -> (Option<u64>, Counted) {
    let head = format!("HTTP/1.1 200 OK\r\n{SSE}transfer-encoding: chunked\r\n\r\n");
    let events = events.iter().map(|event| format!("data: {event}")).collect::<Vec<_>>();
    let events = events.iter().map(String::as_str).collect::<Vec<_>>();
    let wire = Wire::open().client(&request(path)).server(head.as_bytes()).events(&events);
    let replayed = wire.close(Close::Finished { first: Side::Client });
    let (record, tokens) = (&replayed.records[0], &replayed.records[0].tokens);
    (tokens.input.map(|n| n.tokens), (record.outcome, tokens.output.map(|n| (n.tokens, n.source))))
}

/// Running usage, as Dynamo sends it. Only its input is an estimate.
#[test]
fn running_totals_of_an_aborted_stream_are_lower_bounds() {
    const START: &str = r#"{"type":"message_start","message":{"id":"msg_1","model":"m","usage":{"input_tokens":40,"output_tokens":0}}}"#;
    let block =
        |usage: &str| format!(r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":"a"}}{usage}}}"#);
    let running = |n: u64| block(&format!(r#","usage":{{"output_tokens":{n}}}"#));
    let aborted = |n| (Outcome::ClientAbortMidStream, Some((n, CountSource::Deltas)));
    let events = [running(1), running(2), running(6)];
    let events = [&[START][..], &events.each_ref().map(String::as_str)].concat();
    assert_eq!(cut("/v1/messages", &events), (None, aborted(6)));
    assert_eq!(cut("/v1/messages", &[START, &block("")]), (Some(40), aborted(1)));
    let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":6}}"#;
    assert_eq!(cut("/v1/messages", &[&events[..], &[end]].concat()).1.1, Some((6, CountSource::Usage)));
    let stop = r#"{"type":"message_stop"}"#;
    assert_eq!(cut("/v1/messages", &[&events[..], &[end, stop]].concat()), (None, EXACT(6)));
    // Chats: totals between the tokens, and one after the finish reason.
    assert_eq!(cut(CHAT, &[&delta("a"), &total(9, 1), &delta("b"), &total(9, 2)]), (Some(9), aborted(2)));
    assert_eq!(cut(CHAT, &[&delta("a"), &delta("b"), STOP, &total(9, 3)]), (Some(9), EXACT(3)));
}
