//! Responses of servers without recordings, written from the server source code: Triton 2.73
//! (docs/protocol/extension_generate.md), TensorRT-LLM (tensorrt_llm/serve/postprocess_handlers.py), Dynamo 1.6.1
//! (dynamo-llm), vLLM 0.33 (vllm/entrypoints/serve/disagg), and bodies of embeddings and similar APIs.

use crate::{Channels, EngineFacts, Framing, Route, StreamEvent};

use super::decode;

/// Every route whose responses report only input tokens.
const INPUT_ONLY: [Route; 5] = [Route::Embeddings, Route::Rerank, Route::Score, Route::Classify, Route::Pooling];

fn body(route: Route, json: &str) -> StreamEvent {
    let (events, _) = decode(route, Framing::Json, json.as_bytes());
    assert_eq!(events.len(), 1, "{json}");
    events[0]
}

#[test]
fn input_tokens_are_decoded_in_each_engine_format() {
    let usage = |event: StreamEvent| event.usage.and_then(|usage| usage.input);
    let native = |event: StreamEvent| event.counter.and_then(|counter| counter.input);
    for route in INPUT_ONLY {
        let openai = body(route, r#"{"data":[{"embedding":[1,2e-3]}],"usage":{"prompt_tokens":9,"total_tokens":9}}"#);
        assert_eq!((usage(openai), native(openai)), (Some(9), None));
        let sglang = body(route, r#"{"embedding":[0.5],"meta_info":{"id":"a","prompt_tokens":4}}"#);
        assert_eq!((usage(sglang), native(sglang)), (None, Some(4)));
        let ollama = body(route, r#"{"model":"m","embeddings":[[1]],"total_duration":1,"prompt_eval_count":7}"#);
        assert_eq!((usage(ollama), native(ollama)), (None, Some(7)));
        let cohere =
            body(route, r#"{"id":"a","meta":{"api_version":{"version":"2"},"billed_units":{"input_tokens":5}}}"#);
        assert_eq!((usage(cohere), native(cohere)), (Some(5), None));
        for both in [
            r#"{"meta":{"billed_units":{"input_tokens":5},"tokens":{"input_tokens":6}}}"#,
            r#"{"meta":{"tokens":{"input_tokens":6},"billed_units":{"input_tokens":5}}}"#,
        ] {
            assert_eq!(usage(body(route, both)), Some(6), "computed tokens take precedence over billed ones: {both}");
        }
        for none in [
            r#"[{"index":0,"embedding":[[1]]}]"#,
            r#"{"embedding":[1]}"#,
            r#"{"meta":{"billed_units":{"search_units":1}}}"#,
        ] {
            let event = body(route, none);
            assert_eq!((usage(event), native(event), event.malformed), (None, None, false), "{none}");
        }
        let refused = body(route, r#"{"error":{"message":"m","type":"not_supported_error","code":501}}"#);
        assert!(refused.error);
    }
}

#[test]
fn triton_events_have_text_without_count_and_errors() {
    let stream = "data: {\"model_name\":\"ensemble\",\"model_version\":\"1\",\"sequence_end\":false,\"text_output\":\"Hel\"}\n\n\
                  data: {\"model_name\":\"ensemble\",\"model_version\":\"1\",\"sequence_end\":false,\"text_output\":\"lo\"}\n\n\
                  data: {\"model_name\":\"ensemble\",\"model_version\":\"1\",\"sequence_end\":true,\"text_output\":\"\"}\n\n\
                  data: {\"error\":\"in ensemble 'ensemble', out of memory\"}\n\n";
    let (events, decoder) = decode(Route::TritonGenerate, Framing::Sse, stream.as_bytes());
    let seen: Vec<_> = events.iter().map(|event| (event.channels, event.error, event.token_ids)).collect();
    let none = Channels::default();
    assert_eq!(
        seen,
        [(Channels::CONTENT, false, None), (Channels::CONTENT, false, None), (none, false, None), (none, true, None)]
    );
    assert_eq!((decoder.model(), decoder.engine()), (Some("ensemble"), EngineFacts::TRITON));
    let whole = body(Route::TritonGenerate, r#"{"model_name":"m","model_version":"1","text_output":"a"}"#);
    assert_eq!((whole.channels, whole.usage), (Channels::CONTENT, None));
}

#[test]
fn vllm_generate_counts_tokens_by_their_ids() {
    let stream = "data: {\"request_id\":\"generate-tokens-1\",\"choices\":[{\"index\":0,\"logprobs\":null,\"finish_reason\":null,\
                  \"stop_reason\":null,\"token_ids\":[11,12]}],\"output_mode\":\"tokens\",\"usage\":null,\"prompt_token_ids\":null}\n\n\
                  data: {\"request_id\":\"generate-tokens-1\",\"choices\":[{\"index\":0,\"finish_reason\":\"length\",\"token_ids\":[13]}]}\n\n\
                  data: {\"request_id\":\"generate-tokens-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\n\
                  data: [DONE]\n\n";
    let (events, decoder) = decode(Route::VllmGenerate, Framing::Sse, stream.as_bytes());
    assert_eq!(events.iter().map(|event| event.token_ids).collect::<Vec<_>>(), [Some(2), Some(1), None, None]);
    assert_eq!(events[1].finishes.len(), 1);
    assert_eq!(events[2].usage.and_then(|usage| usage.output), Some(3));
    assert!(events[3].done);
    assert_eq!(decoder.response_id(), Some("generate-tokens-1"));
    let text = body(Route::VllmGenerate, r#"{"request_id":"a","choices":[{"index":0,"text":"hi","token_ids":[1,2]}]}"#);
    assert_eq!((text.channels, text.token_ids), (Channels::CONTENT, Some(2)));
}

#[test]
fn tensorrt_llm_is_marked_by_a_space_or_a_key() {
    let role = "data: {\"id\":\"chatcmpl-1f\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]} \n\n";
    let token = "data: {\"id\":\"chatcmpl-1f\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"avg_decoded_tokens_per_iter\":1.0}]}\n\n";
    let (events, decoder) = decode(Route::Chat, Framing::Sse, role.as_bytes());
    assert!(events[0].role && !events[0].malformed);
    assert_eq!(decoder.engine(), EngineFacts::SPACE_BEFORE_END);
    let (events, decoder) = decode(Route::Chat, Framing::Sse, token.as_bytes());
    assert!(events[0].empty_delta);
    assert_eq!(decoder.engine(), EngineFacts::TENSORRT_LLM);
    // The space is also detected in an event that prediction skips.
    let with =
        |text: &str, end: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}{end}\n\n");
    let predicted = [with("a", ""), with("b", ""), with("c", " ")].concat();
    let (events, decoder) = decode(Route::Chat, Framing::Sse, predicted.as_bytes());
    assert_eq!((events.len(), decoder.engine()), (3, EngineFacts::SPACE_BEFORE_END));
}

#[test]
fn dynamo_timing_is_decoded_and_annotations_are_skipped() {
    let stream = "event: token_ids\n: [1,2,3]\n\n: keep-alive\n\n\
                  data: {\"id\":\"chatcmpl-a\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"}}],\"nvext\":null}\n\n\
                  data: {\"id\":\"chatcmpl-a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"nvext\":{\"worker_id\":\
                  {\"prefill_worker_id\":1},\"timing\":{\"request_received_ms\":1795211414756,\"prefill_wait_time_ms\":12.5,\
                  \"prefill_time_ms\":30.25,\"ttft_ms\":44.0,\"total_time_ms\":90.0}}}\n\ndata: [DONE]\n\n";
    let (events, decoder) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert_eq!(events.len(), 3);
    assert_eq!(events[0].timing, None);
    let timing = events[1].timing.expect("nvext.timing");
    assert_eq!((timing.queue_ms, timing.prefill_ms, timing.decode_ms), (Some(12.5), Some(30.25), None));
    assert_eq!(decoder.engine(), EngineFacts::DYNAMO);
}
