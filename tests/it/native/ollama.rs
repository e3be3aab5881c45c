//! Ollama 0.17 (format of the recordings; `api/types.go`, `server/routes.go`, `docs/api/errors.mdx`) and SGLang's copy
//! of its API (`python/sglang/srt/entrypoints/ollama/serving.py`).

use std::time::Duration;

use tokometer_observe::measure::{Outcome, Record};

use super::{asked, finishes, input, lines, only, output, response_complete, stream_head};

const CHAT: &str = r#"{"model":"tiny","messages":[{"role":"user","content":"Count."}],"options":{"num_predict":20}}"#;

fn token(text: &str) -> String {
    format!(
        r#"{{"model":"tiny","created_at":"2026-11-21T09:59:08.063572009Z","message":{{"role":"assistant","content":"{text}"}},"done":false}}"#
    )
}

fn done(rest: &str) -> String {
    format!(
        r#"{{"model":"tiny","created_at":"2026-11-21T09:59:08.1Z","message":{{"role":"assistant","content":""}},"done":true{rest}}}"#
    )
}

const COUNTS: &str = r#","done_reason":"stop","total_duration":300000000,"load_duration":20000000,"prompt_eval_count":14,"prompt_eval_duration":30000000,"eval_count":3,"eval_duration":90000000"#;

fn queue(record: &Record) -> Option<(Duration, &'static str)> {
    record.engine.queue.map(|queue| (queue.value, queue.source.as_str()))
}

#[test]
fn last_line_provides_counts_and_remaining_queue_time() {
    let replayed = lines("/api/chat", CHAT, &[&token("1"), &token(" 2"), &done(COUNTS)]);
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record), input(record)), (Outcome::Ok, Some((3, "native_counter")), Some(14)));
    assert_eq!(queue(record), Some((Duration::from_millis(160), "remainder")));
    assert_eq!(record.engine.timing.load_ms, Some(20.0));
    assert_eq!((record.tokens.chunks, record.tokens.first, replayed.live_tokens), (2, None, 3));
    assert_eq!((record.labels.engine, record.labels.streaming), (Some("ollama"), Some(true)));
    assert_eq!((record.request.max_tokens, finishes(record)), (Some(20), vec!["stop"]));
    assert_eq!(record.since_requested(record.times.first_token), Some(Duration::from_millis(2)));
}

#[test]
fn generate_has_its_text_keys_at_top_level() {
    let line = |rest: &str| format!(r#"{{"model":"tiny","created_at":"2026-11-21T09:59:12Z",{rest},"done":false}}"#);
    let end = format!(r#"{{"model":"tiny","response":"","done":true,"context":[2,3088,[204]]{COUNTS}}}"#);
    let thinking = line(r#""response":"","thinking":"hm""#);
    let replayed =
        lines("/api/generate", r#"{"model":"tiny","prompt":"x"}"#, &[&thinking, &line(r#""response":"1""#), &end]);
    let record = only(&replayed);
    assert_eq!((output(record), record.tokens.chunks), (Some((3, "native_counter")), 2));
    assert_eq!(record.since_requested(record.times.first_token), Some(Duration::from_millis(2)));
    assert_eq!(record.since_requested(record.times.first_visible), Some(Duration::from_millis(3)));
}

#[test]
fn tool_call_counts_as_output() {
    let call = r#"{"model":"tiny","message":{"role":"assistant","content":"","tool_calls":[{"id":"call_1","function":{"index":0,"name":"get_weather","arguments":{"city":"Paris"}}}]},"done":false}"#;
    let replayed = lines("/api/chat", CHAT, &[call, &done(COUNTS)]);
    assert_eq!((only(&replayed).tokens.chunks, only(&replayed).times.first_visible), (1, None));
}

#[test]
fn omitted_values_are_zero() {
    let one = r#","done_reason":"length","total_duration":10731141,"load_duration":7079620,"prompt_eval_count":17,"prompt_eval_duration":2289467,"eval_count":1"#;
    let replayed = lines("/api/chat", CHAT, &[&token("H"), &done(one)]);
    assert_eq!(queue(only(&replayed)), Some((Duration::from_nanos(1_362_054), "remainder")));
    let none = r#","done_reason":"stop","total_duration":10731141,"load_duration":7079620,"prompt_eval_count":17,"prompt_eval_duration":2289467"#;
    let replayed = lines("/api/chat", CHAT, &[&done(none)]);
    assert_eq!((output(only(&replayed)), only(&replayed).outcome), (Some((0, "native_counter")), Outcome::NoOutput));
}

#[test]
fn inconsistent_durations_yield_no_queue_time() {
    let odd = COUNTS.replace("300000000", "100000000");
    let replayed = lines("/api/chat", CHAT, &[&token("H"), &done(&odd)]);
    assert_eq!(queue(only(&replayed)), None);
}

#[test]
fn loading_a_model_is_ok_without_output() {
    for reason in ["load", "unload"] {
        let response = done(&format!(r#","done_reason":"{reason}""#));
        for replayed in [
            response_complete("/api/chat", r#"{"model":"tiny","messages":[]}"#, "", &response),
            lines("/api/chat", CHAT, &[&response]),
        ] {
            let record = only(&replayed);
            assert_eq!((record.outcome, finishes(record)), (Outcome::Ok, vec![reason]));
            assert_eq!(
                (output(record), input(record), record.times.first_token, queue(record)),
                (None, None, None, None)
            );
        }
    }
}

#[test]
fn error_line_is_an_error_in_the_stream() {
    let error = r#"{"error":"an error was encountered while running the model"}"#;
    let replayed = lines("/api/chat", CHAT, &[&token("1"), error]);
    assert_eq!(only(&replayed).outcome, Outcome::ErrorInStream);
}

#[test]
fn stream_ends_with_done_with_or_without_reason() {
    let replayed = lines("/api/chat", CHAT, &[&token("1"), &done("")]);
    assert_eq!((only(&replayed).outcome, output(only(&replayed))), (Outcome::Ok, Some((1, "deltas_lower_bound"))));
    let replayed = lines("/api/chat", CHAT, &[&token("1")]);
    assert_eq!(only(&replayed).outcome, Outcome::Truncated);
}

#[test]
fn crlf_empty_and_unterminated_lines_are_accepted() {
    let text = format!("{}\r\n\r\n\n{}\n{}", token("1"), token("2"), done(COUNTS));
    let body = format!("{:x}\r\n{text}\r\n0\r\n\r\n", text.len());
    let head = stream_head("application/x-ndjson; charset=utf-8");
    let replayed = asked("/api/chat", CHAT).server(&head).server(body.as_bytes()).close(super::CLOSE);
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record), record.response.events), (Outcome::Ok, Some((3, "native_counter")), 3));
}

#[test]
fn response_is_streamed_unless_stream_is_false() {
    let unanswered = |body: &str| asked("/api/chat", body).close(super::CLOSE).records[0].labels.streaming;
    assert_eq!(unanswered(CHAT), Some(true));
    assert_eq!(unanswered(r#"{"model":"tiny","messages":[],"stream":false}"#), Some(false));
}

/// SGLang's copy of Ollama's API reports no duration except the total, so the queue time is unknown. Its streams
/// report no counts.
#[test]
fn sglang_copy_is_detected_without_queue_time() {
    let message = r#"{"role":"assistant","content":"H","images":null}"#;
    let whole = format!(
        r#"{{"model":"tiny","created_at":"2026-11-20T21:50:17.889Z","message":{message},"done":true,"done_reason":"stop","total_duration":300000000,"load_duration":null,"prompt_eval_count":16,"prompt_eval_duration":null,"eval_count":30,"eval_duration":null}}"#
    );
    let replayed = response_complete("/api/chat", CHAT, "", &whole);
    let record = only(&replayed);
    assert_eq!((output(record), input(record)), (Some((30, "native_counter")), Some(16)));
    assert_eq!((record.labels.engine, queue(record)), (Some("sglang"), None));

    let line = format!(r#"{{"model":"tiny","message":{message},"done":false,"done_reason":null}}"#);
    let end = line.replace("false,\"done_reason\":null", "true,\"done_reason\":\"stop\"").replace("\"H\"", "\"\"");
    let replayed = lines("/api/chat", CHAT, &[&line, &line, &end]);
    let record = only(&replayed);
    assert_eq!(
        (record.outcome, output(record), record.rate.exact),
        (Outcome::Ok, Some((2, "deltas_lower_bound")), None)
    );
    assert_eq!(record.labels.engine, Some("sglang"));
}

#[test]
fn counts_below_the_events_are_no_counts() {
    let tokens = ["1", " 2", " 3"].map(token);
    let run = |counts: &str| {
        let last = done(counts);
        let all = tokens.iter().map(String::as_str).chain([&*last]).collect::<Vec<_>>();
        let replayed = lines("/api/chat", CHAT, &all);
        let record = only(&replayed);
        (record.outcome, output(record), input(record))
    };
    let at_least = Some((3, "deltas_lower_bound"));
    let zero = r#","done_reason":"stop","prompt_eval_count":0,"eval_count":0"#;
    assert_eq!(run(zero), (Outcome::Ok, at_least, None));
    let one = r#","done_reason":"stop","prompt_eval_count":14,"eval_count":1"#;
    assert_eq!(run(one), (Outcome::Ok, at_least, Some(14)));
}
