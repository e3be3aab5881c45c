//! Dialects with typed events. Cases without recordings are written from the cited sources.

use super::decode;
use crate::{Channels, EngineFacts, FinishReason, Framing, ResponseDecoder, Route, StreamEvent};

fn events(route: Route, events: &[&str]) -> (Vec<StreamEvent>, ResponseDecoder) {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    decode(route, Framing::Sse, body.as_bytes())
}

fn event(route: Route, json: &str) -> StreamEvent {
    let (events, _) = events(route, &[json]);
    assert_eq!(events.len(), 1, "{json}");
    events[0]
}

fn body(route: Route, json: &str) -> (StreamEvent, ResponseDecoder) {
    let (events, decoder) = decode(route, Framing::Json, json.as_bytes());
    assert_eq!(events.len(), 1, "{json}");
    (events[0], decoder)
}

/// Decodes messages, and checks that feeding them byte by byte yields the same events.
fn messages(messages: &[&str]) -> (Vec<StreamEvent>, ResponseDecoder) {
    let mut events = [Vec::new(), Vec::new()];
    let mut decoders = [0, 1].map(|_| ResponseDecoder::new(Route::Realtime, Framing::Messages));
    for message in messages {
        decoders[0].feed(message.as_bytes(), &mut |_| panic!("event before the end of a message"));
        for byte in message.as_bytes().chunks(1) {
            decoders[1].feed(byte, &mut |_| panic!("event before the end of a message"));
        }
        for (decoder, events) in decoders.iter_mut().zip(&mut events) {
            decoder.end_message(&mut |event| events.push(*event));
        }
    }
    assert_eq!(events[0], events[1]);
    let ([events, _], [decoder, _]) = (events, decoders);
    (events, decoder)
}

fn finishes(event: &StreamEvent) -> Vec<FinishReason> {
    event.finishes.iter().collect()
}

/// Types from openai-python 3.52.
#[test]
fn delta_channel_follows_event_type_before_or_after_it() {
    for (name, channel) in [
        ("response.output_text.delta", Channels::CONTENT),
        ("response.text.delta", Channels::CONTENT),
        ("response.reasoning_text.delta", Channels::REASONING),
        ("response.reasoning_summary_text.delta", Channels::REASONING),
        ("response.reasoning.delta", Channels::REASONING),
        ("response.refusal.delta", Channels::REFUSAL),
        ("response.function_call_arguments.delta", Channels::TOOL),
        ("response.custom_tool_call_input.delta", Channels::TOOL),
        ("response.mcp_call_arguments.delta", Channels::TOOL),
        ("response.code_interpreter_call_code.delta", Channels::TOOL),
        ("response.shell_call_command.delta", Channels::TOOL),
        ("response.audio.delta", Channels::AUDIO),
        ("response.audio.transcript.delta", Channels::AUDIO),
        ("response.output_audio_transcript.delta", Channels::AUDIO),
        ("response.something_new.delta", Channels::CONTENT),
        ("response.shell_call_output_content.delta", Channels::default()),
        ("response.output_text.done", Channels::default()),
        ("response.output_text.annotation.added", Channels::default()),
        ("response.code_interpreter_call.in_progress", Channels::default()),
        ("response.created", Channels::default()),
        ("conversation.item.input_audio_transcription.delta", Channels::default()),
        ("x.delta", Channels::default()),
        (".delta", Channels::default()),
        ("", Channels::default()),
    ] {
        for json in [
            format!(r#"{{"type":"{name}","sequence_number":4,"delta":"a","item_id":"m"}}"#),
            format!(r#"{{"content_index":0,"delta":"a","item_id":"m","sequence_number":4,"type":"{name}"}}"#),
        ] {
            let event = event(Route::Responses, &json);
            assert_eq!((event.channels, event.choices, event.empty_delta), (channel, 0, false), "{json}");
            assert!(!event.end && !event.error && !event.malformed, "{json}");
        }
        let empty = event(Route::Responses, &format!(r#"{{"type":"{name}","delta":""}}"#));
        assert_eq!(empty.channels, Channels::default(), "{name}");
    }
    let object = event(Route::Responses, r#"{"type":"response.output_text.delta","delta":{"stdout":"a"}}"#);
    assert!(object.channels.is_empty());
}

/// The events differ only in text and sequence number, or in the `type` that follows the text.
#[test]
fn prediction_does_not_carry_over_text_or_type() {
    let mut written = Vec::new();
    for at in 0..40 {
        let kind = ["output_text", "output_text", "output_text", "reasoning_text", "refusal"][at % 5];
        let text = ["a", "", "b\\\"", "cc"][at % 4];
        written.push((
            kind,
            text,
            format!(r#"{{"content_index":0,"delta":"{text}","item_id":"m","sequence_number":{at},"type":"response.{kind}.delta"}}"#),
        ));
    }
    let texts: Vec<&str> = written.iter().map(|(_, _, json)| json.as_str()).collect();
    let (events, _) = events(Route::Responses, &texts);
    for ((kind, text, _), event) in written.iter().zip(&events) {
        let channel = match *kind {
            _ if text.is_empty() => Channels::default(),
            "output_text" => Channels::CONTENT,
            "reasoning_text" => Channels::REASONING,
            _ => Channels::REFUSAL,
        };
        assert_eq!(event.channels, channel, "{kind} {text}");
    }
}

#[test]
fn tool_call_counts_when_added_and_not_when_repeated() {
    let added =
        r#"{"item":{"arguments":"","name":"get_weather","type":"function_call"},"type":"response.output_item.added"}"#;
    let done = r#"{"arguments":"{}","type":"response.function_call_arguments.done","name":"get_weather"}"#;
    let (events, _) = events(Route::Responses, &[added, done, &added.replace(".added", ".done"), added]);
    let channels: Vec<Channels> = events.iter().map(|event| event.channels).collect();
    assert_eq!(channels, [Channels::TOOL, Channels::default(), Channels::default(), Channels::TOOL]);
    let message = r#"{"type":"response.output_item.added","item":{"id":"msg_1","content":[],"role":"assistant","type":"message"}}"#;
    assert!(event(Route::Responses, message).channels.is_empty());
}

/// Servers that generate the whole text before they stream send no deltas, and repeat the text in up to four events.
#[test]
fn whole_text_counts_once_and_only_without_its_pieces() {
    let delta = r#"{"type":"response.output_text.delta","delta":"a"}"#;
    let part = r#"{"content":[{"type":"output_text","text":"ab"}],"id":"m","role":"assistant","type":"message"}"#;
    let text = r#"{"type":"response.output_text.done","text":"ab"}"#.to_owned();
    let content = r#"{"part":{"text":"ab","type":"output_text"},"type":"response.content_part.done"}"#.to_owned();
    let item = format!(r#"{{"type":"response.output_item.done","item":{part}}}"#);
    let end = format!(r#"{{"type":"response.completed","response":{{"status":"completed","output":[{part}]}}}}"#);
    let realtime = r#"{"type":"response.done","response":{"status":"completed","output":[{"content":[{"type":"audio","transcript":"ab"}]}]}}"#;
    let all = [text, content, item, end, realtime.to_owned()];
    for first in 0..all.len() {
        let mut sent: Vec<&str> = all[first..].iter().map(String::as_str).collect();
        let (alone, _) = events(Route::Responses, &sent);
        let channels: Vec<bool> = alone.iter().map(|event| event.channels == Channels::CONTENT).collect();
        assert_eq!(channels.iter().position(|is_text| *is_text), Some(0), "{sent:?}");
        assert!(alone[1..].iter().all(|event| event.channels.is_empty()), "{sent:?}");
        sent.insert(0, delta);
        let (repeated, _) = events(Route::Responses, &sent);
        assert_eq!(repeated[0].channels, Channels::CONTENT);
        assert!(repeated[1..].iter().all(|event| event.channels.is_empty()), "{sent:?}");
    }
    for (json, channel) in [
        (r#"{"type":"response.function_call_arguments.done","arguments":"{}"}"#, Channels::TOOL),
        (r#"{"type":"response.refusal.done","refusal":"no"}"#, Channels::REFUSAL),
        (r#"{"type":"response.reasoning_summary_text.done","text":"a"}"#, Channels::REASONING),
        (
            r#"{"type":"response.output_item.done","item":{"summary":[{"text":"a","type":"summary_text"}]}}"#,
            Channels::REASONING,
        ),
        (r#"{"type":"response.output_item.done","item":{"name":"f","arguments":"{}"}}"#, Channels::TOOL),
        (r#"{"type":"response.completed","response":{"output":[{"name":"f","arguments":"{}"}]}}"#, Channels::TOOL),
        (
            r#"{"type":"response.completed","response":{"output":[{"content":[{"type":"output_text","text":""}]}]}}"#,
            Channels::default(),
        ),
        (r#"{"type":"response.created","response":{"output":[{"content":[{"text":"a"}]}]}}"#, Channels::default()),
        // Not output of the model.
        (r#"{"type":"response.shell_call_output_content.done","text":"a"}"#, Channels::default()),
        (
            r#"{"type":"conversation.item.done","item":{"content":[{"type":"input_text","text":"a"}]}}"#,
            Channels::default(),
        ),
        (r#"{"type":"conversation.item.input_audio_transcription.completed","transcript":"a"}"#, Channels::default()),
    ] {
        assert_eq!(event(Route::Responses, json).channels, channel, "{json}");
    }
    // Two realtime responses: the second has no deltas.
    let mut decoder = ResponseDecoder::new(Route::Realtime, Framing::Messages);
    let mut channels = Vec::new();
    for message in [delta, &all[0], &all[4]] {
        if message == all[4] {
            decoder.begin_response();
        }
        decoder.feed(message.as_bytes(), &mut |_| panic!("event before the end of a message"));
        decoder.end_message(&mut |event| channels.push(event.channels));
    }
    assert_eq!(channels, [Channels::CONTENT, Channels::default(), Channels::CONTENT]);
    let transcript = event(
        Route::AudioTranscription,
        r#"{"type":"transcript.text.done","text":"a","usage":{"input_tokens":3,"output_tokens":2}}"#,
    );
    assert_eq!((transcript.channels, transcript.end), (Channels::CONTENT, true));
}

/// A gateway's envelope that every event has: its code and message say that there is no error.
#[test]
fn error_that_reports_success_is_none() {
    let chat = |error: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"a"}}}}],"error":{error}}}"#);
    for (error, is_error) in [
        (r#"{"code":0,"message":"success"}"#, false),
        (r#"{"message":"OK","code":"0"}"#, false),
        (r#"{"code":200,"message":"ok","type":""}"#, false),
        (r#"{"code":"Success","message":"","details":[]}"#, false),
        (r#"{"code":0,"message":"upstream failed"}"#, true),
        (r#"{"code":500,"message":"success"}"#, true),
        (r#"{"code":"rate_limit","message":null}"#, true),
        (r#"{"code":0,"message":"success","type":"server_error"}"#, true),
        (r#"{"code":0,"message":"success","reason":"model unloaded"}"#, true),
    ] {
        assert_eq!(event(Route::Chat, &chat(error)).error, is_error, "{error}");
        let typed = format!(r#"{{"type":"response.output_text.delta","delta":"a","error":{error}}}"#);
        assert_eq!(event(Route::Responses, &typed).error, is_error, "{typed}");
    }
}

#[test]
fn last_event_ends_the_response_with_its_reason() {
    for (json, ends, reason) in [
        (
            r#"{"type":"response.completed","response":{"status":"completed","incomplete_details":null}}"#,
            true,
            Some(FinishReason::Completed),
        ),
        // vLLM 0.32 at the token limit.
        (
            r#"{"response":{"incomplete_details":{"reason":"max_output_tokens"},"status":"incomplete"},"type":"response.completed"}"#,
            true,
            Some(FinishReason::Length),
        ),
        (
            r#"{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"content_filter"}}}"#,
            true,
            Some(FinishReason::ContentFilter),
        ),
        (r#"{"type":"response.incomplete","response":{"status":"incomplete"}}"#, true, Some(FinishReason::Other)),
        (r#"{"type":"response.created","response":{"status":"in_progress","incomplete_details":null}}"#, false, None),
        (r#"{"type":"response.queued","response":{"status":"queued"}}"#, false, None),
        (r#"{"type":"response.output_item.done","item":{"status":"completed"}}"#, false, None),
    ] {
        let event = event(Route::Responses, json);
        assert_eq!((event.end, event.error), (ends, false), "{json}");
        assert_eq!(finishes(&event), reason.into_iter().collect::<Vec<_>>(), "{json}");
    }
    let failed =
        r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"m"}}}"#;
    let (all, decoder) = events(Route::Responses, &[failed]);
    assert!(all[0].end && all[0].error);
    assert_eq!(finishes(&all[0]), [FinishReason::Error]);
    assert_eq!(decoder.error_type(), Some("server_error"));
    // Dynamo 1.6 also ends Responses streams with `[DONE]`.
    let (all, _) = events(Route::Responses, &[r#"{"type":"response.completed","response":{}}"#, "[DONE]"]);
    assert!(all[0].end && !all[0].done && all[1].done && !all[1].end);
}

#[test]
fn responses_usage_includes_cached_tokens() {
    let (all, decoder) = events(
        Route::Responses,
        &[
            r#"{"type":"response.created","response":{"id":"resp_1","model":"tiny","status":"in_progress","usage":null,"created_at":1.5}}"#,
            r#"{"type":"response.completed","response":{"id":"resp_1","model":"tiny@main","output":[{"usage":{"input_tokens":9}}],"usage":{"input_tokens":132,"input_tokens_details":{"cached_tokens":128,"cache_write_tokens":3,"audio_tokens":5,"image_tokens":6,"video_tokens":8,"input_tokens_per_turn":[1,2]},"output_tokens":32,"output_tokens_details":{"reasoning_tokens":7,"audio_tokens":2},"total_tokens":164},"metrics":{"queue_time_ms":1.5,"time_to_first_token_ms":2.5},"kv_transfer_params":null},"timings":{"cache_n":128,"prompt_n":4,"predicted_n":32}}"#,
        ],
    );
    assert_eq!(all[0].usage, None);
    let usage = all[1].usage.unwrap();
    assert_eq!((usage.input, usage.output, usage.cached, usage.reasoning), (Some(132), Some(32), Some(128), Some(7)));
    assert_eq!(
        (usage.parts.cache_creation, usage.parts.input_audio, usage.parts.input_image, usage.parts.input_video),
        (Some(3), Some(5), Some(6), Some(8))
    );
    assert_eq!((usage.parts.output_audio, usage.total, usage.early), (Some(2), true, false));
    let timing = all[1].timing.unwrap();
    assert_eq!((timing.queue_ms, timing.prefill_ms, timing.predicted_tokens), (Some(1.5), Some(2.5), Some(32)));
    assert_eq!((decoder.response_id(), decoder.model()), (Some("resp_1"), Some("tiny")));
    assert!(decoder.engine().contains(EngineFacts::VLLM) && decoder.engine().contains(EngineFacts::LLAMA_CPP));
}

#[test]
fn responses_errors_are_detected_by_type_or_envelope() {
    for (json, kind) in [
        // openai-python: ResponseErrorEvent.
        (
            r#"{"type":"error","code":"server_error","message":"m","param":null,"sequence_number":3}"#,
            Some("server_error"),
        ),
        (r#"{"type":"error","code":null,"message":"m"}"#, None),
        (r#"{"error":{"message":"m","type":"InternalServerError","code":500}}"#, Some("InternalServerError")),
        (r#"{"error":{"code":"a","type":"b"}}"#, Some("b")),
        (r#"{"object":"error","message":"m","type":"BadRequestError","code":400}"#, Some("BadRequestError")),
    ] {
        let (all, decoder) = events(Route::Responses, &[json]);
        assert!(all[0].error, "{json}");
        assert_eq!(decoder.error_type(), kind, "{json}");
    }
    let (all, decoder) =
        events(Route::Responses, &[r#"{"type":"response.code_interpreter_call_code.done","code":"secret"}"#]);
    assert!(!all[0].error);
    assert_eq!(decoder.error_type(), None);
    let (refused, decoder) = body(Route::Responses, r#"{"object":"error","message":"m","type":"BadRequestError"}"#);
    assert!(refused.error);
    assert_eq!(decoder.error_type(), Some("BadRequestError"));
}

#[test]
fn responses_body_matches_its_last_event() {
    let (event, decoder) = body(
        Route::Responses,
        r#"{"completed_at":1,"id":"resp_1","model":"tiny","object":"response","output":[{"content":[{"type":"output_text","text":"a"}]}],"status":"completed","error":null,"usage":{"input_tokens":17,"output_tokens":41}}"#,
    );
    assert_eq!((event.usage.unwrap().input, event.usage.unwrap().output), (Some(17), Some(41)));
    assert_eq!((finishes(&event), event.error), (vec![FinishReason::Completed], false));
    assert_eq!((decoder.response_id(), decoder.model()), (Some("resp_1"), Some("tiny")));
}

/// Anthropic's example, with the keys that vLLM, SGLang and llama.cpp omit or add.
#[test]
fn messages_channels_follow_their_keys() {
    for (json, channels) in [
        (r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#, Channels::CONTENT),
        (
            r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"},"index":0}"#,
            Channels::REASONING,
        ),
        (
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}"#,
            Channels::TOOL,
        ),
        (
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
            Channels::TOOL,
        ),
        (r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#, Channels::default()),
        (
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}"#,
            Channels::default(),
        ),
        (
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}"#,
            Channels::default(),
        ),
        (
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"cited_text":"x","text":"y"}}}"#,
            Channels::default(),
        ),
        (r#"{"type":"content_block_stop","index":0}"#, Channels::default()),
    ] {
        let event = event(Route::Messages, json);
        assert_eq!(event.channels, channels, "{json}");
        assert!(!event.end && !event.error && event.usage.is_none(), "{json}");
    }
    assert!(event(Route::Messages, r#"{"type":"message_stop"}"#).end);
    let (none, _) = events(Route::Messages, &[r#"{"type": "ping"}"#, r#"{"type":"ping","x":[1]}"#]);
    assert_eq!(none, []);
    let (error, decoder) =
        events(Route::Messages, &[r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#]);
    assert!(error[0].error && !error[0].end);
    assert_eq!(decoder.error_type(), Some("overloaded_error"));
}

#[test]
fn messages_input_is_the_sum_of_its_parts() {
    let start = |usage: &str| {
        event(Route::Messages, &format!(r#"{{"type":"message_start","message":{{"usage":{usage}}}}}"#)).usage.unwrap()
    };
    let delta = |usage: &str| {
        event(Route::Messages, &format!(r#"{{"type":"message_delta","delta":{{}},"usage":{usage}}}"#)).usage.unwrap()
    };
    // vLLM 0.32: `message_start` includes the cached tokens in `input_tokens`, `message_delta` excludes them.
    assert_eq!(start(r#"{"input_tokens":132,"output_tokens":0}"#).input, Some(132));
    let vllm =
        delta(r#"{"input_tokens":4,"output_tokens":32,"cache_creation_input_tokens":0,"cache_read_input_tokens":128}"#);
    assert_eq!(
        (vllm.input, vllm.output, vllm.cached, vllm.parts.cache_creation),
        (Some(132), Some(32), Some(128), Some(0))
    );
    // SGLang 0.5 and llama.cpp send the input in the first event and the output in the last.
    let first = start(r#"{"cache_read_input_tokens":4,"input_tokens":12,"output_tokens":1}"#);
    assert_eq!((first.input, first.cached, first.output, first.early), (Some(16), Some(4), None, true));
    let last = delta(r#"{"output_tokens":59}"#);
    assert_eq!((last.input, last.cached, last.output, last.early), (None, None, Some(59), false));
    // Anthropic.
    let anthropic = delta(
        r#"{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":30,"cache_creation":{"ephemeral_5m_input_tokens":20},"output_tokens":5,"output_tokens_details":{"thinking_tokens":3}}"#,
    );
    assert_eq!((anthropic.input, anthropic.reasoning, anthropic.total), (Some(60), Some(3), true));
    assert_eq!(delta(r#"{"cache_read_input_tokens":30}"#).input, None);
}

#[test]
fn messages_stop_reasons_are_mapped() {
    for (word, reason) in [
        ("end_turn", FinishReason::Stop),
        ("stop_sequence", FinishReason::Stop),
        ("max_tokens", FinishReason::Length),
        ("model_context_window_exceeded", FinishReason::Length),
        ("tool_use", FinishReason::ToolCalls),
        ("refusal", FinishReason::ContentFilter),
        ("pause_turn", FinishReason::Other),
    ] {
        let json = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"{word}","stop_sequence":null}},"usage":{{}}}}"#
        );
        assert_eq!(finishes(&event(Route::Messages, &json)), [reason]);
    }
    let none = event(Route::Messages, r#"{"type":"message_start","message":{"stop_reason":null}}"#);
    assert!(none.finishes.is_empty());
}

#[test]
fn messages_body_matches_its_events() {
    let (event, decoder) = body(
        Route::Messages,
        r#"{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"s"},{"type":"text","text":"b"},{"type":"tool_use","id":"t","name":"f","input":{"text":"x"}}],"model":"tiny","stop_reason":"tool_use","stop_sequence":null,"usage":{"cache_read_input_tokens":16,"input_tokens":1,"output_tokens":41}}"#,
    );
    assert_eq!(event.channels, Channels(Channels::CONTENT.0 | Channels::REASONING.0 | Channels::TOOL.0));
    assert_eq!((event.usage.unwrap().input, event.usage.unwrap().output), (Some(17), Some(41)));
    assert_eq!((finishes(&event), event.error, event.end), (vec![FinishReason::ToolCalls], false, false));
    assert_eq!((decoder.response_id(), decoder.model(), decoder.error_type()), (Some("msg_1"), Some("tiny"), None));
    let (refused, decoder) =
        body(Route::Messages, r#"{"type":"error","error":{"type":"invalid_request_error","message":"m"}}"#);
    assert!(refused.error);
    assert_eq!(decoder.error_type(), Some("invalid_request_error"));
}

/// vLLM 0.33: `_speech_to_text_stream_generator`. Each segment of a long recording has its own finish reason.
#[test]
fn vllm_and_openai_transcriptions_are_decoded() {
    let (vllm, decoder) = events(
        Route::AudioTranscription,
        &[
            r#"{"id":"trsc-1","object":"transcription.chunk","created":1,"choices":[{"delta":{"content":" a"}}],"model":"whisper","usage":{"prompt_tokens":11,"completion_tokens":1,"total_tokens":12}}"#,
            r#"{"id":"trsc-1","object":"transcription.chunk","created":1,"choices":[{"delta":{"content":""},"finish_reason":"stop","stop_reason":50257}],"model":"whisper"}"#,
            r#"{"id":"trsc-1","object":"transcription.chunk","created":1,"choices":[{"delta":{"content":" b"},"finish_reason":"stop","stop_reason":50257}],"model":"whisper"}"#,
            r#"{"id":"trsc-1","object":"transcription.chunk","created":1,"choices":[],"model":"whisper","usage":{"prompt_tokens":11,"completion_tokens":4,"total_tokens":15}}"#,
            "[DONE]",
        ],
    );
    assert_eq!(vllm.iter().map(|event| event.channels.0).collect::<Vec<_>>(), [1, 0, 1, 0, 0]);
    assert_eq!(vllm.iter().map(|event| event.finishes.len()).collect::<Vec<_>>(), [0, 1, 1, 0, 0]);
    assert!(!vllm[0].usage.unwrap().total && vllm[3].usage.unwrap().total);
    assert!(vllm.iter().all(|event| !event.end) && vllm[4].done);
    assert_eq!((decoder.response_id(), decoder.model()), (Some("trsc-1"), Some("whisper")));

    let (openai, _) = events(
        Route::AudioTranslation,
        &[
            r#"{"type":"transcript.text.delta","delta":"a"}"#,
            r#"{"delta":"","type":"transcript.text.delta"}"#,
            r#"{"type":"transcript.text.done","text":"a","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":10,"audio_tokens":4},"output_tokens":3,"total_tokens":17}}"#,
        ],
    );
    assert_eq!(openai.iter().map(|event| event.channels.0).collect::<Vec<_>>(), [1, 0, 0]);
    assert_eq!(openai.iter().map(|event| event.end).collect::<Vec<_>>(), [false, false, true]);
    let usage = openai[2].usage.unwrap();
    assert_eq!((usage.input, usage.output, usage.parts.input_audio), (Some(14), Some(3), Some(4)));

    let (whole, _) = body(Route::AudioTranscription, r#"{"text":"a","usage":{"type":"duration","seconds":12}}"#);
    assert_eq!((whole.channels, whole.choices, whole.finishes.len()), (Channels::CONTENT, 0, 0));
    assert_eq!((whole.usage.unwrap().input, whole.usage.unwrap().output), (None, None));
}

/// vllm/entrypoints/cohere/serving.py.
#[test]
fn vllm_cohere_chat_is_decoded() {
    for (json, channels) in [
        (r#"{"type":"message-start","id":"chatcmpl-1","delta":{"message":{"role":"assistant"}}}"#, Channels::default()),
        (
            r#"{"type":"content-start","index":0,"delta":{"message":{"content":{"type":"text","text":""}}}}"#,
            Channels::default(),
        ),
        (r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"a"}}}}"#, Channels::CONTENT),
        (r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"thinking":"a"}}}}"#, Channels::REASONING),
        (r#"{"type":"content-end","index":0}"#, Channels::default()),
        (r#"{"type":"tool-plan-delta","delta":{"message":{"tool_plan":"a"}}}"#, Channels::REASONING),
        (
            r#"{"type":"tool-call-start","index":0,"delta":{"message":{"tool_calls":{"id":"t","type":"function","function":{"name":"f","arguments":""}}}}}"#,
            Channels::TOOL,
        ),
        (
            r#"{"type":"tool-call-delta","index":0,"delta":{"message":{"tool_calls":{"function":{"arguments":"{"}}}}}"#,
            Channels::TOOL,
        ),
        (r#"{"type":"tool-call-end","index":0}"#, Channels::default()),
        (
            r#"{"type":"citation-start","index":0,"delta":{"message":{"citations":{"start":0,"end":1,"text":"a","sources":[]}}}}"#,
            Channels::default(),
        ),
    ] {
        let event = event(Route::CohereChat, json);
        assert_eq!(event.channels, channels, "{json}");
        assert!(!event.end && !event.error && event.finishes.is_empty(), "{json}");
    }
    let end = event(
        Route::CohereChat,
        r#"{"type":"message-end","id":"chatcmpl-1","delta":{"finish_reason":"MAX_TOKENS","usage":{"billed_units":{"input_tokens":99,"output_tokens":98},"tokens":{"input_tokens":13,"output_tokens":5},"cached_tokens":8}}}"#,
    );
    assert!(end.end && !end.error);
    assert_eq!(finishes(&end), [FinishReason::Length]);
    let usage = end.usage.unwrap();
    assert_eq!((usage.input, usage.output, usage.cached, usage.total), (Some(13), Some(5), Some(8), true));
    let failed =
        event(Route::CohereChat, r#"{"type": "message-end", "delta": {"error": "m", "finish_reason": "ERROR"}}"#);
    assert!(failed.end && failed.error);

    let (whole, decoder) = body(
        Route::CohereChat,
        r#"{"id":"c-1","finish_reason":"TOOL_CALL","message":{"role":"assistant","content":[{"type":"text","text":"a"}],"tool_plan":"p","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},"usage":{"tokens":{"input_tokens":13,"output_tokens":5}}}"#,
    );
    assert_eq!(whole.channels, Channels(Channels::CONTENT.0 | Channels::REASONING.0 | Channels::TOOL.0));
    assert_eq!((finishes(&whole), decoder.response_id()), (vec![FinishReason::ToolCalls], Some("c-1")));
}

/// vLLM 0.33: vllm/entrypoints/speech_to_text/realtime/connection.py.
#[test]
fn vllm_realtime_starts_with_commit_and_ends_with_done() {
    let (all, decoder) = messages(&[
        r#"{"type":"session.created","id":"sess-1","created":1}"#,
        r#"{"type":"session.update","model":"voxtral"}"#,
        r#"{"type":"input_audio_buffer.append","audio":"UklG"}"#,
        r#"{"type":"input_audio_buffer.commit","final":false}"#,
        r#"{"type":"transcription.delta","delta":"a"}"#,
        r#"{"type":"transcription.delta","delta":""}"#,
        r#"{"type":"transcription.done","text":"a","usage":{"prompt_tokens":38,"total_tokens":40,"completion_tokens":2,"prompt_tokens_details":null}}"#,
        r#"{"type":"error","error":"Unknown event type: x","code":"unknown_event"}"#,
        "{",
    ]);
    assert_eq!(all.iter().map(|event| event.channels.0).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(all.iter().position(|event| event.asks), Some(3));
    assert_eq!(all.iter().position(|event| event.end), Some(6));
    let usage = all[6].usage.unwrap();
    assert_eq!((usage.input, usage.output), (Some(38), Some(2)));
    assert_eq!(all.iter().position(|event| event.error), Some(7));
    assert_eq!(all.iter().position(|event| event.malformed), Some(8));
    assert_eq!((decoder.model(), decoder.error_type()), (Some("voxtral"), Some("unknown_event")));
    assert_eq!(decoder.response_id(), None);
}

/// openai-python 3.52: openai/types/realtime.
#[test]
fn openai_realtime_has_one_end_per_response() {
    let response = |id: &str, status: &str| {
        format!(
            r#"{{"type":"response.done","response":{{"object":"realtime.response","id":"{id}","status":{status},"usage":{{"total_tokens":253,"input_tokens":132,"output_tokens":121,"input_token_details":{{"text_tokens":119,"audio_tokens":13,"image_tokens":0,"cached_tokens":64,"cached_tokens_details":{{"text_tokens":64,"audio_tokens":0}}}},"output_token_details":{{"text_tokens":30,"audio_tokens":91}}}}}}}}"#
        )
    };
    let first = response("resp_1", r#""completed","status_details":null"#);
    let second = response("resp_2", r#""cancelled","status_details":{"type":"cancelled","reason":"turn_detected"}"#);
    let (all, mut decoder) = messages(&[
        r#"{"type":"session.created","event_id":"e","session":{"id":"sess_1","type":"realtime","model":"gpt-realtime"}}"#,
        r#"{"type":"conversation.item.input_audio_transcription.delta","item_id":"i","delta":"hello"}"#,
        r#"{"type":"conversation.item.input_audio_transcription.completed","transcript":"hello","usage":{"type":"duration","seconds":1}}"#,
        r#"{"type":"conversation.item.input_audio_transcription.failed","error":{"type":"x"}}"#,
        r#"{"type":"response.create"}"#,
        r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#,
        r#"{"event_id":"e","type":"response.output_audio.delta","response_id":"resp_1","delta":"UklG"}"#,
        r#"{"event_id":"e","type":"response.output_audio_transcript.delta","delta":"a"}"#,
        r#"{"event_id":"e","type":"response.output_text.delta","delta":"a"}"#,
        &first,
        &second,
    ]);
    assert_eq!(all.iter().map(|event| event.channels.0).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 16, 16, 1, 0, 0]);
    assert_eq!(all.iter().map(|event| event.end).filter(|end| *end).count(), 2);
    assert!(all.iter().all(|event| !event.error));
    let usage = all[9].usage.unwrap();
    assert_eq!(
        (usage.input, usage.cached, usage.parts.input_audio, usage.parts.input_image),
        (Some(132), Some(64), Some(13), Some(0))
    );
    assert_eq!((usage.output, usage.parts.output_audio), (Some(121), Some(91)));
    assert_eq!((finishes(&all[9]), finishes(&all[10])), (vec![FinishReason::Completed], vec![FinishReason::Canceled]));
    assert_eq!((decoder.response_id(), decoder.model()), (Some("resp_1"), Some("gpt-realtime")));
    decoder.begin_response();
    decoder.feed(second.as_bytes(), &mut |_| {});
    decoder.end_message(&mut |_| {});
    assert_eq!((decoder.response_id(), decoder.model()), (Some("resp_2"), Some("gpt-realtime")));
}

/// SGLang 0.5: python/sglang/srt/entrypoints/openai/realtime/session.py.
#[test]
fn transcription_session_outputs_the_transcript() {
    let (all, decoder) = messages(&[
        r#"{"type":"session.created","session":{"type":"transcription","audio":{"input":{"transcription":{"model":"qwen-asr"}}}}}"#,
        r#"{"type":"input_audio_buffer.commit"}"#,
        r#"{"type":"conversation.item.input_audio_transcription.delta","delta":"a","content_index":0}"#,
        r#"{"type":"conversation.item.input_audio_transcription.completed","transcript":"a","usage":{"type":"duration","seconds":1.0}}"#,
        r#"{"type":"conversation.item.input_audio_transcription.failed","error":{"type":"server_error","code":"x"}}"#,
    ]);
    assert_eq!(all.iter().map(|event| event.channels.0).collect::<Vec<_>>(), [0, 0, 1, 0, 0]);
    assert_eq!(all.iter().map(|event| event.end).collect::<Vec<_>>(), [false, false, false, true, true]);
    assert_eq!(all.iter().map(|event| event.error).collect::<Vec<_>>(), [false, false, false, false, true]);
    assert_eq!(decoder.model(), Some("qwen-asr"));
}

#[test]
fn realtime_route_is_decoded_only_as_messages() {
    let (events, _) = decode(Route::Realtime, Framing::Json, br#"{"type":"response.output_text.delta","delta":"a"}"#);
    assert_eq!(events, []);
    assert!(Route::Realtime.is_read());
}
