use super::decode;
use crate::response::{Prediction, ResponseState, skip_counts};
use crate::scan::{Pause, Scanner};
use crate::{Channels, Framing, Route};

/// The main facts of each event. `decode` checks that decoding byte by byte, without prediction, yields the same
/// events.
fn channels_and_choices(events: &[&str]) -> Vec<(Channels, u32, bool)> {
    let stream: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    events.iter().map(|event| (event.channels, event.choice, event.malformed)).collect()
}

const A: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;

#[test]
fn empty_text_is_not_skipped_as_a_token() {
    let empty = r#"{"choices":[{"index":0,"delta":{"content":""}}]}"#;
    let got = channels_and_choices(&[A, A, empty, A, empty, empty, A]);
    let full = got.iter().map(|(channels, ..)| !channels.is_empty()).collect::<Vec<_>>();
    assert_eq!(full, [true, true, false, true, false, false, true]);
}

#[test]
fn escaped_quote_does_not_end_a_text() {
    let open = r#"{"choices":[{"index":0,"delta":{"content":"a\"}}]}"#;
    let closed = r#"{"choices":[{"index":0,"delta":{"content":"a\\"}}]}"#;
    let got = channels_and_choices(&[A, A, open, closed, A]);
    assert_eq!(got.iter().map(|(.., malformed)| *malformed).collect::<Vec<_>>(), [false, false, true, false, false]);
}

#[test]
fn line_feed_in_a_text_ends_the_event() {
    let stream = format!("data: {A}\n\ndata: {A}\n\ndata: {}\n\n\"}}}}]}}\n\ndata: {A}\n\n", A.split_at(A.len() - 5).0);
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert_eq!(events.iter().map(|event| event.malformed).collect::<Vec<_>>(), [false, false, true, false]);
}

/// `decode` checks that decoding byte by byte, without prediction, yields the same events.
#[test]
fn lines_before_the_data_have_no_effect() {
    let event = |text: &str| format!("data: {}\n\n", A.replace("\"a\"", &format!("{text:?}")));
    let plain: String = ["x", "y", "", "z"].map(event).concat();
    let (expected, _) = decode(Route::Chat, Framing::Sse, plain.as_bytes());
    for before in [
        "event: x\n",
        "event:\n",
        "event\n",
        "event: x\r\n",
        "event: x\r",
        "event: x\nevent: y\n",
        "event: data: x\n",
        "id: 1\n",
    ] {
        let (events, _) =
            decode(Route::Chat, Framing::Sse, plain.replace("data: ", &format!("{before}data: ")).as_bytes());
        assert_eq!(events, expected, "{before:?}");
    }
    let (events, _) = decode(Route::Chat, Framing::Sse, plain.replace("data: ", "data:").as_bytes());
    assert_eq!(events, expected);
    // The blank line ends an event without data; the next event has no `event` line.
    let (events, _) = decode(Route::Chat, Framing::Sse, plain.replace("data: ", "event: x\n\ndata: ").as_bytes());
    assert_eq!(events, expected);
}

#[test]
fn tail_is_not_learned_for_another_head() {
    let long = format!(r#"{{"pad":"{}","choices":[{{"index":1,"delta":{{"content":"a"}}}}]}}"#, "x".repeat(300));
    let got = channels_and_choices(&[A, A, &long, A, &long, A, A]);
    assert_eq!(got.iter().map(|(_, choice, _)| *choice).collect::<Vec<_>>(), [0, 0, 1, 0, 1, 0, 0]);
}

#[test]
fn head_with_an_error_type_is_not_learned() {
    let plain = r#"{"type":"t","choices":[{"delta":{"content":"a"}}]}"#;
    let error = r#"{"type":"t","choices":[{"delta":{"content":"a"}}],"error":{"code":1}}"#;
    let stream = format!("data: {plain}\n\ndata: {plain}\n\ndata: {error}\n\n");
    let (events, decoder) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert!(events[2].error);
    assert_eq!(decoder.error_type(), Some("t"));
}

#[test]
fn alternating_choices_are_not_mixed_up() {
    let b = A.replace("\"index\":0", "\"index\":1");
    let got = channels_and_choices(&[A, &b, A, &b, &b, A]);
    assert_eq!(got.iter().map(|(_, choice, _)| *choice).collect::<Vec<_>>(), [0, 1, 0, 1, 1, 0]);
}

#[test]
fn finish_and_usage_after_similar_tokens_are_found() {
    let finish = A.replace("}}]}", "},\"finish_reason\":\"stop\"}]}");
    let usage = A.replace("}}]}", "}}],\"usage\":{\"completion_tokens\":3}}");
    let stream: String = [A, A, &finish, A, &usage, &usage, A].map(|event| format!("data: {event}\n\n")).concat();
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert_eq!(events.iter().map(|event| event.finishes.len()).collect::<Vec<_>>(), [0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(events.iter().filter(|event| event.usage.is_some()).count(), 2);
}

#[test]
fn texts_of_every_length_are_counted() {
    let events: Vec<String> =
        (0..200).map(|length| A.replace("\"a\"", &format!("\"{}\"", "é".repeat(length)))).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let got = channels_and_choices(&events);
    assert_eq!(got.iter().filter(|(channels, ..)| *channels == Channels::CONTENT).count(), 199);
}

/// An event in vLLM's format with `continuous_usage_stats`, with these three numbers in `usage`.
fn counted(text: &str, prompt: &str, total: &str, completion: &str) -> String {
    format!(
        r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion},"completion_tokens_details":null}}}}"#
    )
}

#[test]
fn each_event_has_its_own_usage_counts() {
    for (completion, output) in [
        ("3", Some(3)),
        ("0", Some(0)),
        ("007", Some(7)),
        ("123456789012", Some(123_456_789_012)),
        ("1234567890123", Some(1_234_567_890_123)),
        ("99999999999999999999", None),
        ("0000000000000000000000000000000000000001", None),
        ("-1", None),
        ("1.5", None),
        ("1e3", Some(1000)),
        ("null", None),
        (" 4", Some(4)),
        ("4 ", Some(4)),
        ("4\ndata:", Some(4)),
    ] {
        let events =
            [counted("a", "13", "14", "1"), counted("b", "13", "15", "2"), counted("c", "13", "16", completion)];
        let stream: String = events.iter().chain(&events).map(|event| format!("data: {event}\n\n")).collect();
        let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
        let usages: Vec<_> =
            events.iter().map(|event| event.usage.unwrap()).map(|u| (u.input, u.output, u.total)).collect();
        let expected = [Some(1), Some(2), output].map(|output| (Some(13), output, false));
        assert_eq!(usages, [expected, expected].concat(), "{completion}");
        assert!(events.iter().all(|event| event.channels == Channels::CONTENT && !event.malformed), "{completion}");
    }
}

#[test]
fn invalid_bytes_after_a_known_tail_are_detected() {
    for wrong in
        [counted("a", "1", "1", "1x"), counted("a", "1", "1", ""), counted("a", "1", "1", "1]"), format!("{A}x")]
    {
        for good in [A.to_owned(), counted("a", "1", "2", "3")] {
            let got = channels_and_choices(&[&good, &good, &wrong, &good]);
            let malformed: Vec<_> = got.iter().map(|(.., malformed)| *malformed).collect();
            assert_eq!(malformed, [false, false, true, false], "{wrong}");
        }
    }
}

#[test]
fn usage_value_may_be_on_the_next_data_line() {
    let event = counted("a", "1", "2", "3");
    let stream = format!("data: {event}\n\ndata: {}\n\n", event.replace("\"usage\":", "\"usage\":\ndata: "));
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    assert_eq!(events[0], events[1]);
    assert_eq!(events[1].usage.unwrap().output, Some(3));
}

/// Checks that the line is really skipped, not only that its event is correct.
#[test]
fn line_with_different_text_and_counts_is_skipped() {
    let root = Route::Chat.root(Framing::Sse);
    let b = A.replace("\"a\"", "\"b\"");
    for (first, second, output) in
        [(A.to_owned(), b, None), (counted("a", "13", "14", "1"), counted("b", "13", "15", "2"), Some(2))]
    {
        let (mut scanner, mut reading, mut prediction) =
            (Scanner::new(root), ResponseState::default(), Prediction::new(root));
        prediction.scan_line(first.as_bytes(), &mut scanner, &mut reading);
        reading.take(false);
        scanner.restart(root);
        let value = format!("{second}\n\n");
        let after = prediction.skip_line(value.as_bytes(), &mut scanner, &mut reading);
        assert_eq!(after, Some(&b"\n"[..]));
        assert!(scanner.is_done());
        assert_eq!(reading.take(false).usage.and_then(|usage| usage.output), output);
    }
}

#[test]
fn counts_are_skipped_only_at_the_start_of_usage() {
    let counts = br#"{"prompt_tokens":1,"total_tokens":2,"completion_tokens":3}}"#;
    for (before, skipped) in
        [(r#"{"usage":"#, true), (r#"{"usage""#, false), (r#"{"x":"#, false), (r#"{"metrics":"#, false)]
    {
        let (mut scanner, mut reading) = (Scanner::new(Route::Chat.root(Framing::Sse)), ResponseState::default());
        scanner.feed(before.as_bytes(), Pause::Never, &mut reading);
        let rest = skip_counts(counts, &mut scanner, &mut reading);
        assert_eq!(rest, skipped.then_some(&b"}}"[..]), "{before}");
        assert_eq!(reading.take(false).usage.is_some(), skipped, "{before}");
    }
}
