//! Response text: which parts of an event are kept, how escapes are decoded, and the limits.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Framing, ResponseDecoder, ResponseText, Route, TextLimits, TextLost, TextMemory};

const LIMITS: TextLimits = TextLimits { response_bytes: 1 << 20, memory_bytes: 1 << 22 };

/// The kept text of a body fed in these pieces.
fn kept<'a>(route: Route, framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Box<ResponseText> {
    let mut decoder = ResponseDecoder::new(route, framing);
    decoder.keep_text(LIMITS, &TextMemory::default());
    pieces.into_iter().for_each(|piece| decoder.feed(piece, &mut |_| {}));
    decoder.finish(&mut |_| {});
    decoder.take_text().unwrap()
}

/// The kept text of a chat stream with these deltas.
fn chat(deltas: &[&str]) -> Box<ResponseText> {
    kept(Route::Chat, Framing::Sse, [chats(deltas).as_bytes()])
}

fn chats(deltas: &[&str]) -> String {
    let event = |delta: &&str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    deltas.iter().map(event).collect()
}

#[test]
fn reasoning_and_content_are_separate_runs() {
    let text = chat(&[
        r#"{"role":"assistant","content":""}"#,
        r#"{"reasoning":"Let","content":null}"#,
        r#"{"reasoning":" me."}"#,
        r#"{"content":"Yes"}"#,
        r#"{"content":"!","tool_calls":[]}"#,
        r#"{}"#,
    ]);
    assert_eq!(text.runs(), Ok(vec!["Let me.", "Yes!"]));
    assert_eq!(text.first(), Some("Let"), "the first event with text");
    assert_eq!(text.len(), 11);
}

#[test]
fn reasoning_under_both_keys_is_kept_once() {
    let text = chat(&[
        r#"{"reasoning":"hm","reasoning_content":"hm"}"#,
        r#"{"reasoning_content":"hm","reasoning":"hm"}"#,
        r#"{"content":"a"}"#,
        r#"{"content":"a"}"#,
    ]);
    assert_eq!(text.runs(), Ok(vec!["hmhm", "aa"]), "text repeated in another event is kept");
}

#[test]
fn names_and_arguments_of_tool_calls_are_a_run() {
    let call = |function: &str| format!(r#"{{"tool_calls":[{{"index":0,"id":"x","function":{function}}}]}}"#);
    let [first, more] = [r#"{"name":"f","arguments":""}"#, r#"{"arguments":"{\"a\": 1}"}"#].map(call);
    let text = chat(&[r#"{"content":"a"}"#, &first, &more]);
    assert_eq!(text.runs(), Ok(vec!["a", r#"f{"a": 1}"#]));
    assert_eq!(text.events(), 1, "a parser of tool calls may split a token");
}

#[test]
fn audio_and_several_choices_are_not_kept() {
    let audio = r#"{"audio":{"transcript":"a"}}"#;
    assert_eq!(chat(&[r#"{"content":"a"}"#, audio]).runs(), Err(TextLost::NotPlain));
    let second = "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\"}}]}\n\n";
    assert_eq!(kept(Route::Chat, Framing::Sse, [second.as_bytes()]).runs(), Err(TextLost::NotPlain));
    let two = r#"{"choices":[{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"b"}}]}"#;
    assert_eq!(kept(Route::Chat, Framing::Json, [two.as_bytes()]).runs(), Err(TextLost::NotPlain));
}

#[test]
fn special_tokens_and_repeated_whole_text_are_not_kept() {
    let stream = concat!(
        "data:{\"token\":{\"id\":1,\"text\":\"Hi\",\"special\":false},\"generated_text\":null}\n\n",
        "data:{\"token\":{\"id\":2,\"text\":\"</s>\",\"special\":true},\"generated_text\":\"Hi\"}\n\n",
    );
    assert_eq!(kept(Route::TgiStream, Framing::Sse, [stream.as_bytes()]).runs(), Ok(vec!["Hi"]));
    let whole = br#"{"generated_text":"Hi"}"#;
    assert_eq!(kept(Route::TgiCompat, Framing::Json, [&whole[..]]).runs(), Ok(vec!["Hi"]));
}

#[test]
fn event_type_may_follow_its_text() {
    let stream = concat!(
        "data: {\"delta\":\"Think\",\"type\":\"response.reasoning_text.delta\"}\n\n",
        "data: {\"delta\":\"Say\",\"type\":\"response.output_text.delta\"}\n\n",
        "data: {\"delta\":\"heard\",\"type\":\"conversation.item.input_audio_transcription.delta\"}\n\n",
        "data: {\"type\":\"response.output_text.done\",\"text\":\"Say\"}\n\n",
    );
    assert_eq!(kept(Route::Responses, Framing::Sse, [stream.as_bytes()]).runs(), Ok(vec!["Think", "Say"]));
}

#[test]
fn truncated_event_has_no_text() {
    let body = chats(&[r#"{"content":"a"}"#, r#"{"content":"b"}"#]);
    let cut = &body.as_bytes()[..body.len() - 8];
    assert_eq!(kept(Route::Chat, Framing::Sse, [cut]).runs(), Ok(vec!["a"]));
}

#[test]
fn invalid_escapes_and_replacement_characters_drop_the_text() {
    for escaped in [r"\ud83d", r"\ude00", r"\ud83d\u0041", r"\ud83dx", r"\q", r"\u12", r"\ufffd", "\u{fffd}"] {
        let delta = format!("{{\"content\":\"{escaped}\"}}");
        assert_eq!(chat(&[r#"{"content":"a"}"#, &delta]).runs(), Err(TextLost::NotPlain), "{escaped}");
    }
}

#[test]
fn text_over_the_limit_is_dropped_and_frees_memory() {
    let memory = TextMemory::default();
    let limits = TextLimits { response_bytes: 10, memory_bytes: 1 << 20 };
    let mut decoder = ResponseDecoder::new(Route::Chat, Framing::Sse);
    decoder.keep_text(limits, &memory);
    decoder.feed(chats(&[r#"{"content":"0123456789"}"#]).as_bytes(), &mut |_| {});
    assert!(memory.held() > 0);
    decoder.feed(chats(&[r#"{"content":"0"}"#, r#"{"content":"1"}"#]).as_bytes(), &mut |_| {});
    assert_eq!(memory.held(), 0);
    assert_eq!(decoder.take_text().unwrap().runs(), Err(TextLost::TooLong));
}

#[test]
fn all_texts_share_one_memory_limit() {
    let memory = TextMemory::default();
    let limits = TextLimits { response_bytes: 1 << 20, memory_bytes: 3000 };
    let keep = |content: &str| {
        let mut decoder = ResponseDecoder::new(Route::Chat, Framing::Sse);
        decoder.keep_text(limits, &memory);
        decoder.feed(chats(&[&format!("{{\"content\":\"{content}\"}}")]).as_bytes(), &mut |_| {});
        decoder.take_text().unwrap()
    };
    let (one, two, three) = (keep("a"), keep("b"), keep("c"));
    assert_eq!((one.runs(), two.runs(), three.runs()), (Ok(vec!["a"]), Ok(vec!["b"]), Err(TextLost::Memory)));
    let copy = one.clone();
    assert_eq!(copy.lost(), Some(TextLost::Memory), "a clone reserves its own memory");
    drop(two);
    assert_eq!(keep("d").runs(), Ok(vec!["d"]), "freed memory can be reused");
    drop((one, three, copy));
    assert_eq!(memory.held(), 0);
}

#[test]
fn text_with_too_many_channel_switches_is_dropped() {
    let pair = [r#"{"reasoning":"a"}"#, r#"{"content":"b"}"#];
    assert_eq!(chat(&pair.repeat(32)).runs().map(|runs| runs.len()), Ok(64));
    assert_eq!(chat(&pair.repeat(33)).runs(), Err(TextLost::TooLong));
}

#[test]
fn debug_output_never_contains_the_text() {
    let text = chat(&[r#"{"content":"hunter2"}"#]);
    assert_eq!(text.runs(), Ok(vec!["hunter2"]));
    let mut decoder = ResponseDecoder::new(Route::Chat, Framing::Sse);
    decoder.keep_text(LIMITS, &TextMemory::default());
    decoder.feed(chats(&[r#"{"content":"hunter2"}"#]).as_bytes(), &mut |_| {});
    let shown = format!("{text:?} {decoder:?}");
    assert!(shown.contains("ResponseText") && !shown.contains("hunter"), "{shown}");
    // The text must not appear as a byte list either.
    assert!(!shown.contains("104, 117, 110"), "{shown}");
}

/// Encodes a string as JSON. For each character, `dice` selects the shortest form or `\uXXXX` (lower or upper case).
fn written(text: &str, dice: &[u8]) -> String {
    let mut all = String::new();
    for (at, c) in text.chars().enumerate() {
        let die = dice.get(at % dice.len().max(1)).copied().unwrap_or(0);
        let plain = serde_json::to_string(&c.to_string()).unwrap();
        match die % 3 {
            0 => all.push_str(&plain[1..plain.len() - 1]),
            1 => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| all.push_str(&format!("\\u{unit:04x}"))),
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| all.push_str(&format!("\\u{unit:04X}"))),
        }
    }
    all
}

proptest! {
    #[test]
    fn escapes_decode_like_serde_json(
        texts in vec(("[^\u{fffd}]*", vec(any::<u8>(), 1..5)), 1..4),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let written: Vec<String> = texts.iter().map(|(text, dice)| written(text, dice)).collect();
        let read: String = written
            .iter()
            .map(|text| serde_json::from_str::<String>(&format!("\"{text}\"")).unwrap())
            .collect();
        let deltas: Vec<String> = written.iter().map(|text| format!("{{\"content\":\"{text}\"}}")).collect();
        let body = chats(&deltas.iter().map(String::as_str).collect::<Vec<_>>());
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len())).collect();
        places.extend([0, body.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &body.as_bytes()[pair[0]..pair[1]]);
        let text = kept(Route::Chat, Framing::Sse, pieces);
        prop_assert_eq!(text.runs().unwrap().concat(), read.as_str());
        let slow = kept(Route::Chat, Framing::Sse, body.as_bytes().chunks(1));
        prop_assert_eq!(slow.runs(), text.runs());
    }

    #[test]
    fn keeping_the_text_changes_no_event(
        texts in vec((any::<String>(), vec(any::<u8>(), 1..5)), 1..6),
    ) {
        let deltas: Vec<String> =
            texts.iter().map(|(text, dice)| format!("{{\"content\":\"{}\"}}", written(text, dice))).collect();
        let body = chats(&deltas.iter().map(String::as_str).collect::<Vec<_>>());
        let events = |mut decoder: ResponseDecoder| {
            let mut events = Vec::new();
            decoder.feed(body.as_bytes(), &mut |event| events.push(*event));
            decoder.finish(&mut |event| events.push(*event));
            events
        };
        let plain = ResponseDecoder::new(Route::Chat, Framing::Sse);
        let mut keeping = plain.clone();
        keeping.keep_text(LIMITS, &TextMemory::default());
        prop_assert_eq!(events(keeping), events(plain));
    }
}
