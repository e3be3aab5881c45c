//! llama.cpp's own `/completion` and `/infill` (format of the recordings; `tools/server/server-task.cpp`,
//! `to_json_non_oaicompat`; several prompts: `tools/server/tests/unit/test_completion.py`).

use tokometer_observe::measure::Outcome;

use super::{finishes, gap_tokens, input, only, output, response_complete, streamed};

const ASKED: &str = r#"{"prompt":"Count.","n_predict":30,"stream":true}"#;

fn event(index: u32, text: &str, predicted: u64) -> String {
    format!(
        r#"{{"index":{index},"content":"{text}","tokens":[22],"stop":false,"id_slot":-1,"tokens_predicted":{predicted},"tokens_evaluated":14}}"#
    )
}

fn last(index: u32, text: &str, predicted: u64, stop_type: &str) -> String {
    format!(
        r#"{{"index":{index},"content":"{text}","tokens":[],"id_slot":0,"stop":true,"model":"tiny","tokens_predicted":{predicted},"tokens_evaluated":14,"generation_settings":{{"stop":["x"],"stop_type":"none","model":"no"}},"prompt":"stop\":true","has_new_line":false,"truncated":false,"stop_type":"{stop_type}","stopping_word":"","tokens_cached":43,"timings":{{"cache_n":13,"prompt_n":1,"prompt_ms":0.4,"predicted_n":{predicted},"predicted_ms":4.6}}}}"#
    )
}

#[test]
fn counter_jumps_and_the_last_event_add_their_tokens() {
    let events = [event(0, "a", 1), event(0, "🧑", 4), last(0, "", 5, "eos")];
    let events = events.each_ref().map(String::as_str);
    for path in ["/completion", "/completions", "/infill"] {
        let replayed = streamed(path, ASKED, &events);
        let record = only(&replayed);
        assert_eq!((record.outcome, output(record)), (Outcome::Ok, Some((5, "native_counter"))));
        assert_eq!((input(record), record.tokens.cached, record.request.max_tokens), (Some(14), Some(13), Some(30)));
        assert_eq!((gap_tokens(&replayed), record.tokens.first), (vec![Some(3), Some(1)], Some(1)));
        assert_eq!((finishes(record), record.labels.engine), (vec!["stop"], Some("llama_cpp")));
        assert_eq!(record.labels.response_model.as_deref(), Some("tiny"));
    }
    let replayed = streamed("/completion", ASKED, &events[..2]);
    assert_eq!(only(&replayed).outcome, Outcome::Truncated);
}

#[test]
fn stop_without_a_reason_ends_the_stream() {
    let end = last(0, "", 1, "none");
    let replayed = streamed("/completion", ASKED, &[&event(0, "a", 1), &end]);
    assert_eq!((only(&replayed).outcome, finishes(only(&replayed))), (Outcome::Ok, vec![]));
    assert_eq!((output(only(&replayed)), only(&replayed).tokens.chunks), (Some((1, "native_counter")), 1));
}

#[test]
fn several_prompts_are_distinguished_by_index() {
    let asked = r#"{"prompt":["Count.","Say hello."],"stream":true}"#;
    let events = [event(0, "a", 1), event(1, "b", 2), last(1, "", 3, "limit"), last(0, "", 2, "word")];
    let events = events.each_ref().map(String::as_str);
    let replayed = streamed("/completion", asked, &events);
    let record = only(&replayed);
    assert_eq!((output(record), input(record), record.outcome), (Some((5, "native_counter")), Some(28), Outcome::Ok));
    assert_eq!(finishes(record), ["length", "stop"]);
    assert_eq!(only(&streamed("/completion", asked, &events[..3])).outcome, Outcome::Truncated);

    let array = format!("[{},{}]", last(0, "a", 7, "eos"), last(1, "b", 4, "limit"));
    let replayed = response_complete("/completion", r#"{"prompt":["Count.","Say hello."]}"#, "", &array);
    let record = only(&replayed);
    assert_eq!(
        (output(record), input(record), finishes(record)),
        (Some((11, "native_counter")), Some(28), vec!["stop", "length"])
    );
}

#[test]
fn prompt_progress_is_not_a_token() {
    let progress = r#"{"index":0,"content":"","tokens":[],"stop":false,"id_slot":0,"tokens_predicted":0,"tokens_evaluated":14,"prompt_progress":{"total":14,"cache":0,"processed":8,"time_ms":3}}"#;
    let events = [event(0, "a", 1), last(0, "", 1, "limit")];
    let replayed = streamed("/completion", ASKED, &[progress, &events[0], &events[1]]);
    let record = only(&replayed);
    assert_eq!(
        (record.times.first_event < record.times.first_token, record.tokens.chunks, record.tokens.first),
        (true, 1, Some(1))
    );
}

#[test]
fn error_event_ends_the_stream() {
    let error = r#"{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}"#;
    let replayed = streamed("/completion", ASKED, &[&event(0, "a", 1), error]);
    let record = only(&replayed);
    assert_eq!((record.outcome, record.response.error_type.as_deref()), (Outcome::ErrorInStream, Some("server_error")));
}

/// Before December 2024 (b4300) events had no counter; the last one had `stopped_` flags and timings.
#[test]
fn older_version_counts_in_the_last_event() {
    let token = r#"{"content":"a","stop":false,"id_slot":0,"multimodal":false,"index":0}"#;
    let end = r#"{"content":"","id_slot":0,"stop":true,"model":"m","tokens_predicted":3,"tokens_evaluated":14,"truncated":false,"stopped_eos":true,"stopped_word":false,"stopped_limit":false,"stopping_word":"","tokens_cached":16,"timings":{"prompt_n":14,"prompt_ms":9.5,"predicted_n":3,"predicted_ms":4.6},"index":0}"#;
    let replayed = streamed("/completion", ASKED, &[token, token, end]);
    let record = only(&replayed);
    assert_eq!((output(record), input(record), record.tokens.chunks), (Some((3, "native_counter")), Some(14), 2));
    assert_eq!((finishes(record), gap_tokens(&replayed)), (vec!["stop"], vec![None]));
    assert_eq!(replayed.live_tokens, 3);
}

/// With `response_fields` the client selects the keys of the last event or of the body.
#[test]
fn response_with_selected_fields_is_ok() {
    let replayed =
        response_complete("/completion", r#"{"prompt":"x","response_fields":["content"]}"#, "", r#"{"content":"1 2"}"#);
    assert_eq!((only(&replayed).outcome, output(only(&replayed))), (Outcome::Ok, None));
}
