//! Memory use and allocations of decoding.

use tokometer_decode::{Framing, RequestDecoder, ResponseDecoder, Route};

use super::recording::recordings;
use crate::allocation::allocations_of;

#[test]
fn decoders_stay_small() {
    assert!(size_of::<ResponseDecoder>() <= 1000, "{}", size_of::<ResponseDecoder>());
    assert!(size_of::<RequestDecoder>() <= 500, "{}", size_of::<RequestDecoder>());
}

#[test]
fn decoding_allocates_nothing() {
    for recording in
        ["vllm-0.32.0", "sglang-0.5.23", "llamacpp-0.5.0-dev", "ollama-0.17.4"].into_iter().flat_map(recordings)
    {
        let mut events = 0;
        let allocations = allocations_of(|| {
            let mut decoder = ResponseDecoder::new(recording.route, recording.framing);
            for piece in recording.body.chunks(97) {
                decoder.feed(piece, &mut |_| events += 1);
            }
            decoder.finish(&mut |_| events += 1);
        });
        assert!(events > 0, "{}", recording.name);
        assert_eq!(allocations, 0, "{}", recording.name);
    }
}

#[test]
fn huge_event_allocates_nothing() {
    let text = "word \\n\\u00e9".repeat(200_000);
    let body = format!("data: {{\"pad\":[[\"{text}\"]],\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let mut choices = 0;
    let allocations = allocations_of(|| {
        let mut decoder = ResponseDecoder::new(Route::Chat, Framing::Sse);
        for piece in body.as_bytes().chunks(65_536) {
            decoder.feed(piece, &mut |event| choices += event.choices);
        }
    });
    assert_eq!((choices, allocations), (1, 0));
}

/// The last event of a Responses API stream repeats the whole output.
#[test]
fn huge_last_event_allocates_nothing_and_has_usage() {
    let text = "word \\n\\u00e9".repeat(200_000);
    let body = format!(
        "event: response.completed\ndata: {{\"response\":{{\"output\":[{{\"content\":[{{\"text\":\"{text}\"}}]}}],\"usage\":{{\"input_tokens\":7,\"output_tokens\":9}}}},\"type\":\"response.completed\"}}\n\n"
    );
    let mut last = None;
    let allocations = allocations_of(|| {
        let mut decoder = ResponseDecoder::new(Route::Responses, Framing::Sse);
        for piece in body.as_bytes().chunks(65_536) {
            decoder.feed(piece, &mut |event| last = Some((event.end, event.usage.and_then(|usage| usage.output))));
        }
    });
    assert_eq!((last, allocations), (Some((true, Some(9))), 0));
}

#[test]
fn form_with_a_long_recording_allocates_once() {
    let audio = vec![b'\r'; 4_000_000];
    let head = b"--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    let field = b"\r\n--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--X--\r\n";
    let allocations = allocations_of(|| {
        let content_type = Some(b"multipart/form-data; boundary=X".as_slice());
        let mut decoder = RequestDecoder::of_content_type(Route::AudioTranscription, content_type);
        for piece in [head.as_slice(), &audio, field] {
            decoder.feed(piece);
        }
        assert_eq!(decoder.facts().model, Some("whisper"));
        assert!(decoder.facts().complete);
    });
    assert_eq!(allocations, 1);
}

#[test]
fn event_with_cumulative_text_allocates_nothing() {
    let (text, ids) = ("word ".repeat(100_000), "1234,".repeat(100_000));
    let counts = r#""prompt_tokens":13,"completion_tokens":100000,"queue_time":0.5"#;
    let body = format!("data: {{\"text\":\"{text}\",\"output_ids\":[{ids}1],\"meta_info\":{{{counts}}}}}\n\n");
    let mut output = None;
    let allocations = allocations_of(|| {
        let mut decoder = ResponseDecoder::new(Route::Generate, Framing::Sse);
        for piece in body.as_bytes().chunks(65_536) {
            decoder.feed(piece, &mut |event| output = event.counter.and_then(|counter| counter.output));
        }
    });
    assert_eq!((output, allocations), (Some(100_000), 0));
}

#[test]
fn request_decoding_allocates_nothing() {
    let body =
        format!(r#"{{"messages":[{{"role":"user","content":"{}"}}],"model":"m","n":2}}"#, "x\\n".repeat(100_000));
    let allocations = allocations_of(|| {
        let mut decoder = RequestDecoder::new(Route::Chat);
        decoder.feed(body.as_bytes());
        assert_eq!(decoder.facts().n, Some(2));
        assert!(decoder.facts().complete);
    });
    assert_eq!(allocations, 0);
}
