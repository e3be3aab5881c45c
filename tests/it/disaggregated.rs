//! Prefill and decode on separate engines: the prefill leg of a request is recorded as a separate operation.

use std::sync::Arc;
use std::time::Duration;

use tokometer_decode::Route;
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::{Outcome, Record, Sink as _};
use tokometer_telemetry::export::{Exporters, Settings};
use tokometer_telemetry::slo::Evaluator;

use crate::endings::Wire;

/// The record of a request with this body and the JSON of its response.
fn exchange(path: &str, body: &str, answer: &str) -> Record {
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: {}\r\n\r\n{answer}",
        answer.len()
    );
    let replayed = Wire::open()
        .client(request.as_bytes())
        .server(response.as_bytes())
        .close(Close::Finished { first: Side::Client });
    assert_eq!((replayed.records.len(), replayed.in_flight), (1, 0));
    replayed.records.into_iter().next().expect("one record")
}

/// The record of one leg, sent as by llm-d's routing proxy with these values of `do_remote_decode` and `max_tokens`.
fn leg(path: &str, remote_decode: bool, max_tokens: u32) -> Record {
    let body = format!(
        r#"{{"model":"m","messages":[],"stream":false,"max_tokens":{max_tokens},"kv_transfer_params":{{"do_remote_decode":{remote_decode},"do_remote_prefill":false,"remote_engine_id":null}}}}"#
    );
    let answer = r#"{"id":"chatcmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"length"}],"usage":{"prompt_tokens":900,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_engine_id":"e"}}"#;
    exchange(path, &body, answer)
}

#[test]
fn prefill_leg_is_its_own_operation_without_output() {
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let record = leg(path, true, 1);
        assert_eq!((record.labels.route.operation(), record.outcome), ("prefill", Outcome::Ok));
        assert_eq!(record.tokens.input.map(|count| count.tokens), Some(900));
        // The prefill leg's token is not counted, because the decode engine reports the same token as its first one.
        assert_eq!((record.tokens.output, record.labels.streaming), (None, Some(false)));
        assert_eq!((record.labels.engine, record.request.max_tokens), (Some("vllm"), Some(1)));
    }
    assert_eq!(leg("/v1/chat/completions", false, 1).labels.route, Route::Chat);
    assert_eq!(leg("/v1/chat/completions", true, 2).labels.route, Route::Chat);
}

/// The record of a request of TensorRT-LLM's routing server. `answer`: keys of the response's choice.
fn context_leg(request_type: &str, max_tokens: u32, answer: &str) -> Record {
    let body = format!(
        r#"{{"model":"m","messages":[],"max_tokens":{max_tokens},"disaggregated_params":{{"request_type":"{request_type}"}}}}"#
    );
    let answer = format!(
        r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"message":{{"content":"a"}},"finish_reason":"length"{answer}}}],"usage":{{"prompt_tokens":900,"completion_tokens":1}}}}"#
    );
    exchange("/v1/chat/completions", &body, &answer)
}

#[test]
fn context_only_request_is_a_prefill_leg_if_the_engine_reads_it() {
    let answer = r#","disaggregated_params":{"request_type":"context_only","ctx_request_id":7}"#;
    for (max_tokens, answer) in [(100, answer), (1, answer), (1, "")] {
        let record = context_leg("context_only", max_tokens, answer);
        assert_eq!((record.labels.route, record.outcome), (Route::Prefill, Outcome::Ok), "{max_tokens} {answer}");
        assert_eq!(record.tokens.input.map(|count| count.tokens), Some(900), "{max_tokens} {answer}");
        assert_eq!(record.tokens.output, None, "{max_tokens} {answer}");
    }
    // An engine that does not know the key generates the whole response.
    assert_eq!(context_leg("context_only", 100, "").labels.route, Route::Chat);
    assert_eq!(context_leg("generation_only", 1, answer).labels.route, Route::Chat);
}

#[test]
fn prefill_leg_is_outside_objectives_and_in_series_of_its_own() {
    let evaluator = Evaluator::new(tokometer_telemetry::slo::Settings::default());
    let exporters = Exporters::start(&Settings {
        listeners: vec![crate::export::records::listener("a", 1)],
        ..Settings::default()
    })
    .unwrap();
    let (prefill, whole) = (Arc::new(leg("/v1/chat/completions", true, 1)), leg("/v1/chat/completions", false, 1));
    evaluator.evaluate(&prefill);
    let evaluated = || evaluator.evaluated().iter().map(|one| one.counts.good + one.counts.all_bad()).sum::<u64>();
    assert_eq!(evaluated(), 0);
    evaluator.evaluate(&whole);
    assert!(evaluated() > 0, "the same request without a remote decode is evaluated");
    exporters.record(&prefill);
    let page = String::from_utf8(exporters.scrape(None).body).unwrap();
    let requests: Vec<&str> = page.lines().filter(|line| line.starts_with("tokometer_requests_total{")).collect();
    assert!(!requests.is_empty());
    assert!(requests.iter().all(|line| line.contains(r#"gen_ai_operation_name="prefill""#)), "{requests:?}");
    assert!(!page.contains("tokometer_wait_without_first_token_seconds_count{"), "{page}");
    assert!(prefill.times.ended > Duration::ZERO);
}
