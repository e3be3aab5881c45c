use crate::decode::Channels;
use crate::decode::FinishReason;
use crate::decode::Framing;
use crate::decode::RequestDecoder;
use crate::decode::ResponseDecoder;
use crate::decode::Route;
use crate::decode::StreamEvent;

fn events_of(route: Route, framing: Framing, body: &[u8]) -> (Vec<StreamEvent>, ResponseDecoder) {
    let mut events = Vec::new();
    let mut decoder = ResponseDecoder::new(route, framing);
    decoder.feed(body, &mut |event| events.push(*event));
    decoder.finish(&mut |event| events.push(*event));
    (events, decoder)
}

#[test]
fn a_vllm_chat_stream_reads_as_role_tokens_finish_usage_and_done() {
    let body = br#"data: {"id":"chatcmpl-81","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}

data: {"id":"chatcmpl-81","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{"content":"The"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-81","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{"content":" end"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[7,8]}]}

data: {"id":"chatcmpl-81","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[],"usage":{"prompt_tokens":15,"total_tokens":18,"completion_tokens":3},"system_fingerprint":"vllm-0.32.0-9bb3537e"}

data: [DONE]

"#;
    let (events, decoder) = events_of(Route::Chat, Framing::Sse, body);
    assert_eq!(events.len(), 5);
    assert!(events[0].role && events[0].channels.is_empty() && !events[0].empty_delta);
    assert_eq!(events[1].channels, Channels::CONTENT);
    assert_eq!(events[2].channels, Channels::CONTENT);
    assert_eq!(events[2].finishes.iter().collect::<Vec<_>>(), [FinishReason::Length]);
    assert_eq!(events[2].token_ids, Some(2));
    let usage = events[3].usage.unwrap();
    assert_eq!((usage.input, usage.output, usage.total), (Some(15), Some(3), true));
    assert!(events[4].done);
    assert!(events.iter().all(|event| !event.malformed));
    assert_eq!(decoder.response_id(), Some("chatcmpl-81"));
    assert_eq!(decoder.model(), Some("tiny"));
    assert!(decoder.engine().contains(crate::decode::EngineFacts::VLLM));
}

#[test]
fn decoders_keep_their_size() {
    assert!(size_of::<ResponseDecoder>() <= 900, "{}", size_of::<ResponseDecoder>());
    assert!(size_of::<RequestDecoder>() <= 500, "{}", size_of::<RequestDecoder>());
    println!("{} {}", size_of::<ResponseDecoder>(), size_of::<RequestDecoder>());
}
