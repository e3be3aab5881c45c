//! gRPC bodies, compared with `prost` at every split.

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use tokometer_decode::{Framing, RequestDecoder, ResponseDecoder, Route, StreamEvent};

use tokometer_wire::budget::{Account, Budget};
use tokometer_wire::coding::{Limits, Unreadable};
use tokometer_wire::grpc::{Event, Messages};
use tokometer_wire::websocket::Sender;

use crate::allocation::allocations_of;
use crate::coding::encode::encode;
use crate::http2::messages::*;

/// The events of a body, the response id, and the reason if decoding stopped early.
type Read = (Vec<StreamEvent>, Option<String>, Option<Unreadable>);

/// Decodes a body with this `grpc-encoding`, fed in these reads.
fn read<'a>(route: Route, encoding: Option<&str>, reads: impl IntoIterator<Item = &'a [u8]>) -> Read {
    let account = Account::unlimited();
    let mut messages = Messages::new(encoding.map(str::as_bytes), Limits::default(), account.credit(Sender::Server));
    let mut decoder = ResponseDecoder::new(route, Framing::Grpc);
    let mut events = Vec::new();
    let why = reads.into_iter().find_map(|read| {
        let read = messages.feed(read, &mut |seen| match seen {
            Event::Data(bytes) => {
                assert!(!bytes.is_empty(), "empty slice");
                decoder.feed(bytes, &mut |event| events.push(*event));
            }
            Event::End => decoder.end_message(&mut |event| events.push(*event)),
        });
        read.err()
    });
    decoder.finish(&mut |event| events.push(*event));
    drop(messages);
    assert_eq!(account.held(), 0);
    (events, decoder.response_id().map(str::to_owned), why)
}

/// Checks that the result is the same for every split into two reads, and byte by byte.
fn read_at_every_split(route: Route, encoding: Option<&str>, body: &[u8]) -> Read {
    let whole = read(route, encoding, [body]);
    assert_eq!(whole, read(route, encoding, body.chunks(1)), "byte by byte");
    for place in 0..=body.len() {
        let (first, second) = body.split_at(place);
        assert_eq!(whole, read(route, encoding, [first, second]), "split at {place}");
    }
    whole
}

/// Like `read_at_every_split`, for valid uncompressed messages.
fn events_at_every_split(route: Route, body: &[u8]) -> (Vec<StreamEvent>, Option<String>) {
    let (events, id, why) = read_at_every_split(route, None, body);
    assert_eq!(why, None);
    (events, id)
}

fn output() -> impl Strategy<Value = vllm::SequenceOutput> {
    let finish = (0..3000u32, 0..4i32, ".{0,5}").prop_map(|(num_output_tokens, finish_reason, stop_string)| {
        vllm::FinishInfo { num_output_tokens, finish_reason, stop_string }
    });
    let ids = vec(any::<u32>(), 0..5);
    (0..4u32, ".{0,20}", 0..300u32, ids, vec(any::<f32>(), 0..3), prop::option::of(finish)).prop_map(
        |(index, text, num_tokens, token_ids, logprobs, finish_info)| vllm::SequenceOutput {
            index,
            text,
            num_tokens,
            token_ids,
            logprobs,
            finish_info,
        },
    )
}

fn response() -> impl Strategy<Value = vllm::GenerateResponse> {
    let prompt = (any::<u32>(), vec(any::<u32>(), 0..4))
        .prop_map(|(num_prompt_tokens, token_ids)| vllm::PromptInfo { num_prompt_tokens, token_ids });
    (prop::option::of(prompt), prop::option::of(output()))
        .prop_map(|(prompt_info, outputs)| vllm::GenerateResponse { prompt_info, outputs })
}

/// A number, or `None` if it is 0: zero values are not encoded.
fn written(number: u32) -> Option<u64> {
    (number != 0).then_some(u64::from(number))
}

proptest! {
    #[test]
    fn vllm_messages_match_prost(responses in vec(response(), 0..6)) {
        let body: Vec<u8> = responses.iter().flat_map(framed).collect();
        let (events, _) = events_at_every_split(Route::VllmInferenceStream, &body);
        prop_assert_eq!(events.len(), responses.len());
        for (event, response) in events.iter().zip(&responses) {
            let outputs = response.outputs.clone();
            prop_assert!(!event.malformed && !event.unread && !event.error && !event.end);
            prop_assert_eq!(event.choices, u32::from(outputs.is_some()));
            let outputs = outputs.unwrap_or_default();
            prop_assert_eq!(event.choice, outputs.index);
            prop_assert_eq!(event.channels.is_empty(), outputs.text.is_empty());
            prop_assert_eq!(event.token_ids, response.outputs.as_ref().map(|outputs| outputs.num_tokens));
            let prompt = response.prompt_info.as_ref().and_then(|info| written(info.num_prompt_tokens));
            let finish = outputs.finish_info.unwrap_or_default();
            prop_assert_eq!(event.usage.and_then(|usage| usage.input), prompt);
            prop_assert_eq!(event.usage.and_then(|usage| usage.output), written(finish.num_output_tokens));
            prop_assert_eq!(event.finishes.len(), u32::from(finish.finish_reason != 0));
        }
    }

    #[test]
    fn sglang_scheduler_messages_match_prost(
        chunks in vec((vec(any::<u32>(), 0..6), any::<u32>(), any::<u32>(), 0..4u32), 0..5),
        finish in prop::sample::select(&["stop", "length", "abort", ""][..]),
    ) {
        let responses = chunks.iter().map(|(ids, prompt_tokens, completion_tokens, index)| sglang::GenerateResponse {
            request_id: "an-id".to_owned(),
            chunk: Some(sglang::Chunk {
                token_ids: ids.clone(),
                prompt_tokens: *prompt_tokens,
                completion_tokens: *completion_tokens,
                cached_tokens: 0,
                index: *index,
            }),
            complete: None,
        });
        let last = sglang::GenerateResponse {
            request_id: "another".to_owned(),
            chunk: None,
            complete: Some(sglang::Complete { output_ids: vec![1, 2], finish_reason: finish.to_owned(), ..Default::default() }),
        };
        let body: Vec<u8> = responses.chain([last]).flat_map(|response| framed(&response)).collect();
        let (events, id) = events_at_every_split(Route::SglangScheduler, &body);
        prop_assert_eq!(id.as_deref(), Some(if chunks.is_empty() { "another" } else { "an-id" }));
        for (event, (ids, prompt, output, index)) in events.iter().zip(&chunks) {
            prop_assert_eq!((event.token_ids, event.choice), (Some(ids.len() as u32), *index));
            prop_assert_eq!(event.usage.and_then(|usage| usage.input), written(*prompt));
            prop_assert_eq!(event.usage.and_then(|usage| usage.output), written(*output));
        }
        let last = events.last().unwrap();
        prop_assert_eq!((last.token_ids, last.finishes.len()), (None, u32::from(!finish.is_empty())));
    }

    #[test]
    fn damaged_protobuf_decodes_the_same_at_every_split(
        responses in vec(response(), 1..4),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body: Vec<u8> = responses.iter().flat_map(framed).collect();
        for (place, byte) in damage {
            let place = place.index(body.len());
            body[place] = byte;
        }
        for route in [Route::VllmInferenceStream, Route::VllmEngine, Route::TritonInferStream, Route::TensorrtService] {
            read_at_every_split(route, None, &body);
        }
    }

    #[test]
    fn compressed_messages_match_plain_ones(
        responses in vec((response(), any::<bool>()), 0..5),
        (encoding, encoder) in prop::sample::select(&ENCODINGS[..]),
    ) {
        let plain: Vec<u8> = responses.iter().flat_map(|(response, _)| framed(response)).collect();
        let mixed: Vec<u8> = responses.iter().flat_map(|(response, compressed)| match compressed {
            true => compressed_message(encoder, response),
            false => framed(response),
        }).collect();
        let route = Route::VllmInferenceStream;
        prop_assert_eq!(read_at_every_split(route, Some(encoding), &mixed), read(route, None, [plain.as_slice()]));
    }

    #[test]
    fn damaged_compressed_messages_fail_the_same_at_every_split(
        responses in vec(response(), 1..4),
        (encoding, encoder) in prop::sample::select(&ENCODINGS[..]),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut body: Vec<u8> = responses.iter().flat_map(|response| compressed_message(encoder, response)).collect();
        let place = place.index(body.len());
        body[place] = byte;
        read_at_every_split(Route::VllmInferenceStream, Some(encoding), &body);
    }
}

/// gRPC encoding names, and the encoder for each. In gRPC, `deflate` means the zlib format.
const ENCODINGS: [(&str, &str); 3] = [("gzip", "gzip"), ("deflate", "zlib"), ("zstd", "zstd")];

/// A length-prefixed message, compressed.
fn compressed_message(encoder: &str, message: &impl Message) -> Vec<u8> {
    let coded = encode(encoder, &[&message.encode_to_vec()]);
    [&[1][..], &(coded.len() as u32).to_be_bytes(), &coded].concat()
}

#[test]
fn undecodable_compressed_message_stops_decoding() {
    let good = framed(&vllm_chunk(0, "a", 2));
    let coded = |encoder: &str| compressed_message(encoder, &vllm_chunk(0, "b", 3));
    // The compressed stream is incomplete: the message is one byte too short.
    let mut cut = coded("gzip");
    cut.pop();
    cut[4] -= 1;
    for (encoding, message, why) in [
        (None, coded("gzip"), Unreadable::UnknownCoding),
        (Some("identity"), coded("gzip"), Unreadable::UnknownCoding),
        (Some("snappy"), coded("gzip"), Unreadable::UnknownCoding),
        (Some("gzip"), coded("zlib"), Unreadable::Corrupt),
        (Some("gzip"), cut, Unreadable::Corrupt),
    ] {
        let body = [&good[..], &message, &good].concat();
        let (events, _, reported) = read_at_every_split(Route::VllmInferenceStream, encoding, &body);
        assert_eq!((events.len(), reported), (1, Some(why)), "{encoding:?}");
    }
    let empty = [&[1, 0, 0, 0, 0][..], &coded("gzip"), &[1, 0, 0, 0, 0], &good].concat();
    let (events, _, why) = read_at_every_split(Route::VllmInferenceStream, Some("gzip"), &empty);
    assert_eq!((events.len(), why), (4, None), "empty messages are valid, compressed or not");
    assert_eq!(events.iter().map(|event| event.token_ids).collect::<Vec<_>>(), [None, Some(3), None, Some(2)]);
}

#[test]
fn decompression_bomb_in_a_message_stream_is_rejected() {
    let bomb = compressed_message("gzip", &vllm_chunk(0, &"x".repeat(1 << 18), 1));
    let body = bomb.repeat(6);
    let account = Budget::new(usize::MAX).account(None, 24);
    let mut messages = Messages::new(Some(b"gzip"), Limits::default(), account.credit(Sender::Server));
    let mut given = 0;
    let why = messages.feed(&body, &mut |seen| given += if let Event::Data(bytes) = seen { bytes.len() } else { 0 });
    assert_eq!(why, Err(Unreadable::Ratio));
    assert!(given <= 72 * 1024, "{given} bytes");
}

#[test]
fn running_compressed_message_stream_allocates_nothing() {
    for (encoding, encoder) in ENCODINGS {
        let message = compressed_message(encoder, &vllm_chunk(0, "a few words", 2));
        let mut messages =
            Messages::new(Some(encoding.as_bytes()), Limits::default(), Account::unlimited().credit(Sender::Server));
        let mut ends = 0;
        let mut count = |seen: Event<'_>| ends += u32::from(seen == Event::End);
        messages.feed(&message, &mut count).unwrap();
        let allocations = allocations_of(|| {
            for _ in 0..50 {
                messages.feed(&message, &mut count).unwrap();
            }
        });
        assert_eq!((allocations, ends), (0, 51), "{encoding}");
    }
}

#[test]
fn triton_text_tensor_is_found() {
    let texts = [("a", true), ("", false), ("a text over several reads", true)];
    let raw = texts.map(|(text, _)| triton_stream(triton_text("7", text, false)));
    let body: Vec<u8> = raw.iter().flat_map(framed).collect();
    let (events, id) = events_at_every_split(Route::TritonInferStream, &body);
    assert_eq!(id.as_deref(), Some("7"));
    let found: Vec<_> = events.iter().map(|event| !event.channels.is_empty()).collect();
    assert_eq!(found, texts.map(|(_, text)| text));
    assert!(events.iter().all(|event| !event.end && !event.unread));
    // The last response, with typed contents instead of raw ones.
    let mut response = triton_text("7", "", true);
    response.raw_output_contents.clear();
    response.outputs[1].contents = Some(triton::Contents { bytes_contents: vec![b"text".to_vec()] });
    let (events, _) = events_at_every_split(Route::TritonInfer, &framed(&response));
    assert_eq!((events[0].channels.is_empty(), events[0].end), (false, true));
    // A flag other than `triton_final_response` does not end the response.
    let mut response = triton_text("7", "x", true);
    let flag = response.parameters.remove("triton_final_response").unwrap();
    response.parameters.insert("sequence_end".to_owned(), flag);
    let (events, _) = events_at_every_split(Route::TritonInfer, &framed(&response));
    assert!(!events[0].end);
}

#[test]
fn decoding_continues_after_a_malformed_message() {
    let good = framed(&vllm_chunk(0, "a", 2));
    for broken in [
        // In order: wire type 7, field number 0, a length past the end of the message, a varint over 64 bits, another
        // such length, a truncated key.
        &b"\x0f"[..],
        b"\x00\x01",
        b"\x12\x05\x08",
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x12\x02\x08",
        b"\x92",
        // A field that extends past the end of its message.
        b"\x12\x02\x12\x05abcde",
    ] {
        let body = [&[0, 0, 0, 0, broken.len() as u8][..], broken, &good].concat();
        let (events, _) = events_at_every_split(Route::VllmInferenceStream, &body);
        assert_eq!(events.len(), 2);
        assert!(events[0].malformed, "{broken:x?}");
        assert_eq!((events[1].malformed, events[1].token_ids), (false, Some(2)));
    }
}

#[test]
fn grpc_request_parameters_are_decoded() {
    let request = vllm::GenerateRequest {
        model: "tiny".to_owned(),
        text: "x".repeat(300),
        temperature: Some(1.0),
        sampling: Some(vllm::Sampling { num_sequences: 3 }),
        stopping: Some(vllm::Stopping { max_new_tokens: 500, stop_strings: vec![String::new()] }),
        ..Default::default()
    };
    let body = framed(&request);
    for place in 0..=body.len() {
        let mut decoder = RequestDecoder::new(Route::VllmInferenceStream);
        let mut messages = Messages::new(None, Limits::default(), Account::unlimited().credit(Sender::Server));
        for read in [&body[..place], &body[place..]] {
            let each = &mut |seen: Event<'_>| match seen {
                Event::Data(bytes) => decoder.feed(bytes),
                Event::End => decoder.end_message(),
            };
            messages.feed(read, each).unwrap();
        }
        let facts = decoder.facts();
        assert_eq!((facts.model, facts.n, facts.max_tokens, facts.complete), (Some("tiny"), Some(3), Some(500), true));
    }
    assert!(request.encoded_len() < body.len());
}
