//! Text Generation Inference 3.3 (`router/src/server.rs`, `generate_stream_internal` and `generate_internal`;
//! `router/src/lib.rs`, `StreamResponse`), and a line of an older version from its
//! `docs/source/basic_tutorials/visual_language_models.md`.

use std::time::Duration;

use tokometer_observe::measure::Outcome;

use super::{LAST, asked, finishes, gap_tokens, input, only, output, response_complete, stream_head, streamed};
use crate::endings::chunk;

const ASKED: &str = r#"{"inputs":"Count.","parameters":{"max_new_tokens":20,"details":true}}"#;
const FIRST: &str =
    r#"{"index":1,"token":{"id":29871,"text":"","logprob":-0.1,"special":false},"generated_text":null,"details":null}"#;
const SECOND: &str = r#"{"index":2,"token":{"id":30,"text":"1","logprob":-0.2,"special":false},"top_tokens":[{"id":1,"text":"x","logprob":-1.0,"special":true}],"generated_text":null,"details":null}"#;
const EOS: &str = r#"{"index":3,"token":{"id":2,"text":"</s>","logprob":-0.3,"special":true},"generated_text":"1","details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,"input_length":17}}"#;
const EOS_WITHOUT_DETAILS: &str =
    r#"{"index":3,"token":{"id":2,"text":"</s>","logprob":-0.3,"special":true},"generated_text":"1","details":null}"#;

#[test]
fn tgi_event_is_one_token_even_if_empty_or_special() {
    for path in ["/generate_stream", "/"] {
        let replayed = streamed(path, ASKED, &[FIRST, SECOND, EOS]);
        let record = only(&replayed);
        assert_eq!((record.outcome, output(record)), (Outcome::Ok, Some((3, "token_ids"))));
        assert_eq!((input(record), record.tokens.chunks, finishes(record)), (Some(17), 3, vec!["stop"]));
        assert_eq!(record.since_requested(record.times.first_token), Some(Duration::from_millis(2)));
        assert_eq!(record.since_requested(record.times.first_visible), Some(Duration::from_millis(3)));
        assert_eq!((gap_tokens(&replayed), record.tokens.first), (vec![Some(1); 2], Some(1)));
        assert_eq!((record.labels.engine, record.request.max_tokens), (Some("tgi"), Some(20)));
    }
}

#[test]
fn stream_without_details_is_counted() {
    let replayed = streamed("/generate_stream", ASKED, &[FIRST, SECOND, EOS_WITHOUT_DETAILS]);
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record), input(record)), (Outcome::Ok, Some((3, "token_ids")), None));
}

#[test]
fn stream_without_generated_text_is_truncated() {
    let replayed = streamed("/generate_stream", ASKED, &[FIRST, SECOND]);
    assert_eq!(
        (only(&replayed).outcome, output(only(&replayed))),
        (Outcome::Truncated, Some((2, "deltas_lower_bound")))
    );
}

#[test]
fn error_after_status_200_is_an_error_in_the_stream() {
    let error = r#"{"error":"Request failed during generation","error_type":"generation"}"#;
    let replayed = streamed("/generate_stream", ASKED, &[FIRST, error]);
    let record = only(&replayed);
    assert_eq!((record.outcome, record.response.error_type.as_deref()), (Outcome::ErrorInStream, Some("generation")));
    let overloaded = r#"{"error":"Model is overloaded","error_type":"overloaded"}"#;
    assert_eq!(only(&streamed("/generate_stream", ASKED, &[overloaded])).outcome, Outcome::ErrorInStream);
}

#[test]
fn older_version_without_space_after_colon_is_decoded() {
    let event = r#"data:{"index":16,"token":{"id":28723,"text":".","logprob":-0.6196289,"special":false},"generated_text":"This is a picture of an anthropomorphic rabbit in a space suit.","details":null}"#;
    let head = stream_head("text/event-stream");
    let wire = asked("/generate_stream", ASKED).server(&head).server(&chunk(":")).server(&chunk(event)).server(LAST);
    let replayed = wire.close(super::CLOSE);
    assert_eq!((only(&replayed).outcome, output(only(&replayed))), (Outcome::Ok, Some((1, "token_ids"))));
}

const TIMES: &str = "x-compute-type: 1-nvidia-a10g\r\nx-compute-time: 0.532\r\nx-total-time: 532\r\nx-validation-time: 0\r\nx-queue-time: 120\r\nx-inference-time: 412\r\nx-time-per-token: 20\r\nx-prompt-tokens: 17\r\nx-generated-tokens: 20\r\n";

#[test]
fn response_headers_provide_queue_time_and_counts() {
    for (path, response) in [("/generate", r#"{"generated_text":"1 2"}"#), ("/", r#"[{"generated_text":"1 2"}]"#)] {
        let replayed = response_complete(path, r#"{"inputs":"Count."}"#, TIMES, response);
        let record = only(&replayed);
        assert_eq!(
            (record.outcome, output(record), input(record)),
            (Outcome::Ok, Some((20, "native_counter")), Some(17))
        );
        let queue = record.engine.queue.map(|queue| (queue.value, queue.source.as_str()));
        assert_eq!(queue, Some((Duration::from_millis(120), "response_header")));
        assert_eq!((record.labels.engine, record.labels.streaming), (Some("tgi"), Some(false)));
    }
}

#[test]
fn details_of_a_body_are_decoded_without_prompt_tokens() {
    let response = r#"{"generated_text":"1 2","details":{"finish_reason":"length","generated_tokens":3,"seed":null,"prefill":[{"id":0,"text":"<pad>","logprob":null}],"tokens":[{"id":3,"text":" ","logprob":-1.984375,"special":false}]}}"#;
    let replayed = response_complete("/generate", ASKED, "", response);
    let record = only(&replayed);
    assert_eq!((output(record), input(record)), (Some((3, "native_counter")), None));
    assert_eq!((finishes(record), record.outcome, record.engine.queue), (vec!["length"], Outcome::Ok, None));
    let bare = response_complete("/generate", ASKED, "", r#"{"generated_text":"1 2"}"#);
    assert_eq!(
        (output(only(&bare)), only(&bare).outcome),
        (None, Outcome::Ok),
        "there is output, but the response has no token count"
    );
}

/// LightLLM (api_lightllm.py): the text and the details of the last event are `null`.
#[test]
fn finish_reason_without_details_ends_the_stream() {
    let event = |text: &str, rest: &str| {
        format!(
            r#"{{"token":{{"id":7,"text":"{text}","logprob":-0.5,"special":false,"count_output_tokens":1,"prompt_tokens":9}},"generated_text":null,{rest},"details":null}}"#
        )
    };
    let open = r#""finished":false,"finish_reason":null"#;
    let last = event(" b", r#""finished":true,"finish_reason":"stop""#);
    let replayed = streamed("/generate_stream", r#"{"inputs":"Count."}"#, &[&event("a", open), &last]);
    let record = only(&replayed);
    assert_eq!((record.outcome, output(record)), (Outcome::Ok, Some((2, "token_ids"))));
    assert_eq!(finishes(record), ["stop"]);
}
