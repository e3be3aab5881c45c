use super::decode;
use crate::decode::Channels;
use crate::decode::Framing;
use crate::decode::Route;

/// What each event of these says; `decode` has compared it with the same read byte by byte, where nothing is predicted.
fn channels_and_choices(events: &[&str]) -> Vec<(Channels, u32, bool)> {
    let stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    events.iter().map(|event| (event.channels, event.choice, event.malformed)).collect()
}

const A: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;

#[test]
fn an_empty_text_is_not_taken_for_a_full_one() {
    let empty = r#"{"choices":[{"index":0,"delta":{"content":""}}]}"#;
    let got = channels_and_choices(&[A, A, empty, A, empty, empty, A]);
    let full = got.iter().map(|(channels, ..)| !channels.is_empty()).collect::<Vec<_>>();
    assert_eq!(full, [true, true, false, true, false, false, true]);
}

#[test]
fn an_escaped_quote_does_not_end_a_text() {
    let open = r#"{"choices":[{"index":0,"delta":{"content":"a\"}}]}"#;
    let closed = r#"{"choices":[{"index":0,"delta":{"content":"a\\"}}]}"#;
    let got = channels_and_choices(&[A, A, open, closed, A]);
    assert_eq!(got.iter().map(|(.., malformed)| *malformed).collect::<Vec<_>>(), [false, false, true, false, false]);
}

#[test]
fn a_line_end_in_a_text_ends_the_event() {
    let stream = format!("data: {A}\n\ndata: {A}\n\ndata: {}\n\n\"}}}}]}}\n\ndata: {A}\n\n", A.split_at(A.len() - 5).0);
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert_eq!(events.iter().map(|event| event.malformed).collect::<Vec<_>>(), [false, false, true, false]);
}

#[test]
fn a_tail_is_not_learned_for_another_head() {
    let long = format!(r#"{{"pad":"{}","choices":[{{"index":1,"delta":{{"content":"a"}}}}]}}"#, "x".repeat(300));
    let got = channels_and_choices(&[A, A, &long, A, &long, A, A]);
    assert_eq!(got.iter().map(|(_, choice, _)| *choice).collect::<Vec<_>>(), [0, 0, 1, 0, 1, 0, 0]);
}

#[test]
fn a_head_that_names_an_error_is_not_learned() {
    let plain = r#"{"type":"t","choices":[{"delta":{"content":"a"}}]}"#;
    let error = r#"{"type":"t","choices":[{"delta":{"content":"a"}}],"error":{}}"#;
    let stream = format!("data: {plain}\n\ndata: {plain}\n\ndata: {error}\n\n");
    let (events, decoder) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert!(events[2].error);
    assert_eq!(decoder.error_type(), Some("t"));
}

#[test]
fn choices_in_turns_are_kept_apart() {
    let b = A.replace("\"index\":0", "\"index\":1");
    let got = channels_and_choices(&[A, &b, A, &b, &b, A]);
    assert_eq!(got.iter().map(|(_, choice, _)| *choice).collect::<Vec<_>>(), [0, 1, 0, 1, 1, 0]);
}

#[test]
fn a_finish_after_like_tokens_is_seen() {
    let finish = A.replace("}}]}", "},\"finish_reason\":\"stop\"}]}");
    let usage = A.replace("}}]}", "}}],\"usage\":{\"completion_tokens\":3}}");
    let stream: String = [A, A, &finish, A, &usage, &usage, A].map(|event| format!("data: {event}\n\n")).concat();
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert_eq!(events.iter().map(|event| event.finishes.len()).collect::<Vec<_>>(), [0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(events.iter().filter(|event| event.usage.is_some()).count(), 2);
}

#[test]
fn texts_of_every_length_are_skipped_alike() {
    let events: Vec<String> =
        (0..200).map(|length| A.replace("\"a\"", &format!("\"{}\"", "é".repeat(length)))).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let got = channels_and_choices(&events);
    assert_eq!(got.iter().filter(|(channels, ..)| *channels == Channels::CONTENT).count(), 199);
}
