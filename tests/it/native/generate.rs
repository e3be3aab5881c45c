//! `/generate` of SGLang 0.5.23 (format of the recordings; `python/sglang/srt/managers/tokenizer_manager.py`) and of
//! LMDeploy 0.18 (`lmdeploy/serve/openai/endpoints/generate.py`, `create_generate_response_json`).

use std::time::Duration;

use tokometer_observe::measure::Outcome;

use super::{asked, finishes, gap_tokens, input, only, output, response_complete, stream_head, streamed};
use crate::endings::chunk;

const ASKED: &str = r#"{"text":"Count.","sampling_params":{"max_new_tokens":20},"stream":true}"#;

/// An SGLang event after this many tokens.
fn event(index: Option<u32>, text: &str, tokens: u64, finish: &str) -> String {
    let index = index.map_or(String::new(), |index| format!(r#","index":{index}"#));
    format!(
        r#"{{"text":"{text}","output_ids":[1,2],"meta_info":{{"id":"r{index:.0}","finish_reason":{finish},"prompt_tokens":13,"weight_version":"default","queue_time":0.25,"reasoning_tokens":0,"completion_tokens":{tokens},"cached_tokens":12,"dp_rank":null}}{index}}}"#
    )
}

const LENGTH: &str = r#"{"type":"length","length":20}"#;

#[test]
fn tokens_of_an_event_are_the_counter_increase() {
    let events = [
        event(None, "a", 5, "null"),
        event(None, "a b", 6, "null"),
        event(None, "a b c", 9, "null"),
        event(None, "a b c", 9, LENGTH),
    ];
    let events = events.each_ref().map(String::as_str);
    let replayed = streamed("/generate", ASKED, &[&events[..], &["[DONE]"]].concat());
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record)), (Outcome::Ok, Some((9, "native_counter"))));
    assert_eq!((input(record), record.tokens.cached, record.request.max_tokens), (Some(13), Some(12), Some(20)));
    assert_eq!(
        (record.tokens.first, record.tokens.chunks),
        (Some(5), 3),
        "the last event repeats the text and adds no tokens"
    );
    assert_eq!(gap_tokens(&replayed), [Some(1), Some(3)]);
    assert_eq!(replayed.live_tokens, 9);
    let rate = record.rate.exact.unwrap();
    assert!((rate - 2000.0).abs() < 1e-6, "(9 - 5) in 2 ms, not {rate}");
    assert_eq!(
        record.engine.queue.map(|queue| (queue.value, queue.source.as_str())),
        Some((Duration::from_millis(250), "in_band"))
    );
    assert_eq!((record.labels.engine, finishes(record)), (Some("sglang"), vec!["length"]));
}

#[test]
fn choices_are_counted_separately_and_their_prompt_once() {
    let asked = r#"{"text":"Count.","sampling_params":{"n":2},"stream":true}"#;
    let events = [
        event(Some(0), "a", 1, "null"),
        event(Some(1), "a", 2, "null"),
        event(Some(0), "a b", 3, LENGTH),
        event(Some(1), "a b", 5, LENGTH),
    ];
    let events = events.each_ref().map(String::as_str);
    let replayed = streamed("/generate", asked, &[&events[..], &["[DONE]"]].concat());
    let record = only(&replayed);
    assert_eq!((output(record), input(record)), (Some((8, "native_counter")), Some(13)));
    assert_eq!(gap_tokens(&replayed), [Some(2), Some(3)]);
    assert_eq!((finishes(record), record.outcome), (vec!["length", "length"], Outcome::Ok));
    let half = streamed("/generate", asked, &events[..3]);
    assert_eq!(only(&half).outcome, Outcome::Truncated, "one of two choices has not ended");
}

#[test]
fn prompts_of_a_batch_are_summed() {
    let asked = r#"{"text":["Count.","Say hello."],"stream":true}"#;
    let events = [event(Some(1), "a", 1, LENGTH), event(Some(0), "a", 4, LENGTH)];
    let replayed = streamed("/generate", asked, &[&events[0], &events[1], "[DONE]"]);
    assert_eq!((output(only(&replayed)), input(only(&replayed))), (Some((5, "native_counter")), Some(26)));
    let replayed = streamed("/generate", asked, &[&events[0]]);
    assert_eq!(input(only(&replayed)), None, "the tokens of the other prompt are unknown");

    let array = format!("[{},{}]", event(None, "a", 7, LENGTH), event(None, "b", 4, r#"{"type":"stop","matched":2}"#));
    let replayed = response_complete("/generate", r#"{"text":["Count.","Say hello."]}"#, "", &array);
    let record = only(&replayed);
    assert_eq!(
        (output(record), input(record), record.tokens.cached),
        (Some((11, "native_counter")), Some(26), Some(24))
    );
    assert_eq!((finishes(record), record.outcome), (vec!["length", "stop"], Outcome::Ok));
    let replayed = response_complete("/generate", r#"{"text":"Count.","sampling_params":{"n":2}}"#, "", &array);
    assert_eq!(input(only(&replayed)), Some(13), "one prompt with two choices");
}

#[test]
fn array_with_a_missing_count_has_no_total() {
    let array = format!(r#"[{},{{"text":"b","meta_info":{{"prompt_tokens":3}}}}]"#, event(None, "a", 7, LENGTH));
    let replayed = response_complete("/generate", r#"{"text":["Count.","Say hello."]}"#, "", &array);
    assert_eq!((output(only(&replayed)), input(only(&replayed))), (None, Some(16)));
}

#[test]
fn too_many_choices_yield_a_lower_bound() {
    let asked = r#"{"text":"Count.","sampling_params":{"n":6},"stream":true}"#;
    let events: Vec<String> =
        (0..6).flat_map(|choice| [event(Some(choice), "a", 1, "null"), event(Some(choice), "a", 1, LENGTH)]).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let replayed = streamed("/generate", asked, &[&events[..], &["[DONE]"]].concat());
    assert_eq!(output(only(&replayed)), Some((6, "deltas_lower_bound")));
}

#[test]
fn aborted_stream_keeps_counted_tokens_as_lower_bound() {
    let first = chunk(&format!("data: {}", event(None, "a b c", 3, "null")));
    let replayed =
        asked("/generate", ASKED).server(&stream_head("text/event-stream")).server(&first).close(super::CLOSE);
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record)), (Outcome::ClientAbortMidStream, Some((3, "deltas_lower_bound"))));
    let error = r#"{"error":{"message":"m","type":"invalid_request_error","code":400}}"#;
    let replayed = streamed("/generate", ASKED, &[&event(None, "a", 1, "null"), error, "[DONE]"]);
    assert_eq!(only(&replayed).outcome, Outcome::ErrorInStream);
}

#[test]
fn lmdeploy_sends_new_text_with_a_running_count() {
    let event = |text: &str, tokens: u64, finish: &str| {
        format!(
            r#"{{"text":"{text}","output_ids":[5],"meta_info":{{"prompt_tokens":9,"completion_tokens":{tokens},"finish_reason":{finish},"output_token_logprobs":null,"routed_experts":null}}}}"#
        )
    };
    let events =
        [event("a", 1, "null"), event("", 2, "null"), event("🙂", 3, "null"), event("", 4, r#"{"type":"stop"}"#)];
    let events = events.each_ref().map(String::as_str);
    let replayed = streamed("/generate", r#"{"prompt":"x","stream":true}"#, &[&events[..], &["[DONE]"]].concat());
    let record = only(&replayed);
    assert_eq!((output(record), input(record), record.tokens.chunks), (Some((4, "native_counter")), Some(9), 4));
    assert_eq!((record.labels.engine, finishes(record), record.engine.queue), (Some("lmdeploy"), vec!["stop"], None));
    assert_eq!(gap_tokens(&replayed), [Some(1); 3], "held-back text counts as a token");

    let replayed = response_complete("/generate", r#"{"prompt":"x"}"#, "", &event("a🙂", 4, r#"{"type":"length"}"#));
    assert_eq!((output(only(&replayed)), input(only(&replayed))), (Some((4, "native_counter")), Some(9)));
}

#[test]
fn constant_zero_count_is_no_count() {
    let texts = [("a", "null"), ("a b", "null"), ("a b c", "null"), ("a b c", LENGTH)];
    let events = texts.map(|(text, finish)| event(None, text, 0, finish));
    let replayed = streamed("/generate", ASKED, &[&events.each_ref().map(String::as_str)[..], &["[DONE]"]].concat());
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record)), (Outcome::Ok, Some((3, "deltas_lower_bound"))));
    assert_eq!(record.tokens.chunks, 3);
}

/// LightLLM (api_lightllm.py): the texts are a list.
#[test]
fn body_with_a_list_of_texts_is_read() {
    let body = r#"{"generated_text":["a b c"],"count_output_tokens":3,"finish_reason":"stop","prompt_tokens":9}"#;
    let replayed = response_complete("/generate", r#"{"inputs":"Count."}"#, "", body);
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record), input(record)), (Outcome::Ok, Some((3, "native_counter")), Some(9)));
}
