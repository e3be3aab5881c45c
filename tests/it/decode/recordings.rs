//! Every recording, whole and split, compared with the naive model and with the recorder's counts.

use tokometer_decode::{Channels, EngineFacts, Framing, ResponseDecoder, Route, StreamEvent, Usage};

use super::recording::{Recording, recordings};
use super::{cut, decode, model};

const ENGINES: [(&str, EngineFacts); 5] = [
    ("vllm-0.32.0", EngineFacts::VLLM),
    ("vllm-0.32.0-rustfe", EngineFacts::VLLM),
    ("sglang-0.5.23", EngineFacts::SGLANG),
    ("llamacpp-0.5.0-dev", EngineFacts::LLAMA_CPP),
    ("ollama-0.17.4", EngineFacts::OLLAMA),
];

fn all() -> impl Iterator<Item = Recording> {
    ENGINES.iter().flat_map(|(engine, _)| recordings(engine))
}

#[test]
fn every_recording_matches_the_model() {
    for recording in all() {
        let expected = model::events(recording.route, recording.framing, &recording.body);
        let (got, _) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
        model::assert_same(&recording.name, &got, &expected);
    }
}

/// The decoder predicts nothing if it is fed byte by byte, so this also shows that prediction does not change the
/// result.
#[test]
fn every_recording_decodes_the_same_byte_by_byte() {
    for recording in all() {
        let (whole, a) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
        let (bytes, b) = decode(recording.route, recording.framing, recording.body.chunks(1));
        assert_eq!(whole, bytes, "{}", recording.name);
        assert_eq!(a.response_id(), b.response_id(), "{}", recording.name);
        assert_eq!(a.model(), b.model(), "{}", recording.name);
        assert_eq!(a.engine(), b.engine(), "{}", recording.name);
        assert_eq!(a.error_type(), b.error_type(), "{}", recording.name);
    }
}

#[test]
fn every_recording_decodes_the_same_in_random_pieces() {
    let mut random = fastrand::Rng::with_seed(7);
    for recording in all() {
        let (whole, _) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
        for pieces in [1, 1, 1, 8, 64] {
            let places: Vec<usize> = (0..pieces).map(|_| random.usize(..)).collect();
            let (got, _) = decode(recording.route, recording.framing, cut(&recording.body, &places));
            assert_eq!(whole, got, "{} split at {places:?}", recording.name);
        }
    }
}

/// A split can affect only its own event and the next one. So each event is split with a copy of the decoder before it.
/// Of a long stream, only the first and last events and every 32nd are split.
#[test]
fn every_recording_decodes_the_same_at_every_split() {
    for recording in all() {
        let events = pieces_of(&recording);
        let last = events.len();
        let mut decoder = ResponseDecoder::new(recording.route, recording.framing);
        for (place, event) in events.iter().enumerate() {
            if place < 5 || place + 5 > last || place % 32 == 0 {
                let next = events.get(place + 1).copied().unwrap_or_default();
                let expected = feed(&decoder, &[event, next]);
                for at in 0..=event.len() {
                    let got = feed(&decoder, &[&event[..at], &event[at..], next]);
                    assert_eq!(got, expected, "{}: event {place} split at {at}", recording.name);
                }
            }
            decoder.feed(event, &mut |_| {});
        }
    }
}

fn pieces_of(recording: &Recording) -> Vec<&[u8]> {
    if recording.framing == Framing::Json {
        return vec![&recording.body];
    }
    if recording.framing == Framing::Ndjson {
        return recording.body.split_inclusive(|byte| *byte == b'\n').collect();
    }
    let mut events = Vec::new();
    let mut rest = recording.body.as_slice();
    while let Some(end) = rest.windows(2).position(|window| window == b"\n\n") {
        events.push(&rest[..end + 2]);
        rest = &rest[end + 2..];
    }
    events.push(rest);
    events
}

fn feed(decoder: &ResponseDecoder, pieces: &[&[u8]]) -> Vec<StreamEvent> {
    let mut decoder = decoder.clone();
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(piece, &mut |event| events.push(*event));
    }
    events
}

#[test]
fn chunk_and_token_counts_match_the_recorder() {
    let mut streams = 0;
    for recording in all().filter(|recording| recording.framing == Framing::Sse && has_choices(recording.route)) {
        let (events, _) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
        let count = |channel| events.iter().filter(|event| event.channels.contains(channel)).count() as u64;
        let meta = &recording.meta;
        let name = &recording.name;
        assert_eq!(Some(count(Channels::CONTENT)), meta["content_chunks"].as_u64(), "{name}: content");
        assert_eq!(Some(count(Channels::REASONING)), meta["reasoning_chunks"].as_u64(), "{name}: reasoning");
        assert_eq!(Some(count(Channels::TOOL)), meta["tool_chunks"].as_u64(), "{name}: tools");
        if let Some(done) = meta["done_marker"].as_bool() {
            assert_eq!(events.iter().any(|event| event.done), done, "{name}: done");
        }
        if let Some(output) = meta["usage_seen"]["completion_tokens"].as_u64() {
            let last = events.iter().filter_map(|event| event.usage).next_back().unwrap();
            assert_eq!(last.output, Some(output), "{name}: output tokens");
            assert_eq!(last.input, meta["usage_seen"]["prompt_tokens"].as_u64(), "{name}: input tokens");
        }
        streams += 1;
    }
    assert!(streams > 100, "{streams}");
}

/// True for the routes for which the recorder counted chunks by channel, and whose responses identify their engine.
fn has_choices(route: Route) -> bool {
    matches!(route, Route::Chat | Route::Completions)
}

/// Checks routes with typed events: the token counts must equal the engine's own, and the end mark must be found.
#[test]
fn typed_event_counts_match_the_recorder() {
    let mut responses = 0;
    for recording in all().filter(|recording| matches!(recording.route, Route::Responses | Route::Messages)) {
        let (events, _) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
        let (meta, name) = (&recording.meta, &recording.name);
        if meta["truth"]["completion_tokens"].is_null() {
            assert!(events.iter().all(|event| event.usage.is_none() && event.channels.is_empty()), "{name}");
            continue;
        }
        let last =
            |count: fn(&Usage) -> Option<u64>| events.iter().filter_map(|event| count(&event.usage?)).next_back();
        let truth = |count: &str| meta["truth"][count].as_u64().filter(|count| *count > 0);
        assert_eq!(last(|usage| usage.output), truth("completion_tokens"), "{name}: output tokens");
        let input = last(|usage| usage.input);
        assert!(input == truth("prompt_tokens") || truth("prompt_tokens").is_none(), "{name}: {input:?} input tokens");
        let finishes: u32 = events.iter().map(|event| event.finishes.len()).sum();
        assert_eq!(finishes, 1, "{name}: finish reasons");
        if recording.framing == Framing::Sse {
            let ends: Vec<_> = (0..).zip(&events).filter(|(_, event)| event.end).map(|(place, _)| place).collect();
            assert_eq!(ends, [events.len() - 1], "{name}: ends");
            let tokens = events.iter().filter(|event| !event.channels.is_empty()).count() as u64;
            assert!(tokens > 0 && Some(tokens) <= truth("completion_tokens"), "{name}: {tokens} events with tokens");
        }
        responses += 1;
    }
    assert!(responses > 20, "{responses}");
}

#[test]
fn recordings_have_only_the_marks_of_their_engine() {
    for (engine, mark) in ENGINES {
        for recording in recordings(engine) {
            let (events, decoder) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
            // Each of the low 8 bits identifies an engine by itself. The others do so only together with response
            // headers.
            let seen = EngineFacts(decoder.engine().0 & 0xff);
            assert!(mark.contains(seen), "{}: {seen:?}", recording.name);
            // Streams of vLLM's Rust front end contain no mark, and streams of Ollama contain one only at the end.
            let ends = events.iter().any(|event| event.done || event.ended || !event.finishes.is_empty());
            if !engine.ends_with("rustfe")
                && ends
                && (has_choices(recording.route) || events.iter().any(|event| event.ended || event.counter.is_some()))
                && events.iter().any(|event| event.channels.contains(Channels::CONTENT))
            {
                assert_eq!(seen, mark, "{}", recording.name);
            }
        }
    }
}

#[test]
fn recordings_have_a_response_id_and_model() {
    for recording in all().filter(|recording| has_choices(recording.route)) {
        let (events, decoder) = decode(recording.route, recording.framing, [recording.body.as_slice()]);
        if events.iter().any(|event| event.choices > 0) {
            assert!(decoder.response_id().is_some_and(|id| id.len() >= 8), "{}", recording.name);
            assert!(decoder.model().is_some(), "{}", recording.name);
        }
    }
}
