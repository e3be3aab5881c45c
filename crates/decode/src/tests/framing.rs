use super::decode;
use crate::{Channels, Framing, ResponseDecoder, Route};

const TOKEN: &str = r#"{"choices":[{"delta":{"content":"a"}}]}"#;

/// The number of token events, of `[DONE]` events, and of malformed events.
fn counts(stream: &str) -> (usize, usize, usize) {
    let stream = stream.replace("TOKEN", TOKEN);
    let (events, _) = decode(Route::Chat, Framing::Sse, stream.as_bytes());
    let tokens = events.iter().filter(|event| event.channels == Channels::CONTENT && !event.malformed).count();
    let dones = events.iter().filter(|event| event.done).count();
    let malformed = events.iter().filter(|event| event.malformed).count();
    assert_eq!(tokens + dones + malformed, events.len(), "{stream:?}: {events:?}");
    (tokens, dones, malformed)
}

#[test]
fn all_three_line_endings_are_accepted() {
    for end in ["\n", "\r\n", "\r"] {
        let stream = format!("data: TOKEN{end}{end}: keep-alive{end}{end}data: TOKEN{end}{end}data: [DONE]{end}{end}");
        assert_eq!(counts(&stream), (2, 1, 0), "{end:?}");
    }
    assert_eq!(counts("data: TOKEN\r\n\ndata: TOKEN\n\r\ndata: TOKEN\r\n\rdata: TOKEN\r\r\n"), (4, 0, 0));
}

#[test]
fn space_after_the_colon_is_optional() {
    assert_eq!(counts("data:TOKEN\n\n"), (1, 0, 0));
    assert_eq!(counts("data:  TOKEN\n\n"), (1, 0, 0));
    assert_eq!(counts("data: TOKEN \n\n"), (1, 0, 0));
    assert_eq!(counts("data:[DONE]\n\n"), (0, 1, 0));
    assert_eq!(counts("data: [DONE] \n\n"), (0, 1, 0));
}

#[test]
fn data_lines_of_one_event_are_joined() {
    assert_eq!(counts("data: {\"choices\":\ndata: [{\"delta\":\ndata:{\"content\":\"a\"}}]}\n\n"), (1, 0, 0));
    assert_eq!(counts("data: TOKEN\ndata:\ndata\n\n"), (1, 0, 0));
    assert_eq!(counts("data: [DONE]\ndata: more\n\n"), (0, 1, 0));
    assert_eq!(counts("data: tr\ndata: ue\n\n"), (0, 0, 1));
    // Without the empty line between events.
    assert_eq!(counts("data: TOKEN\ndata: [DONE]\n\n"), (1, 1, 0));
}

#[test]
fn other_fields_and_comments_are_ignored() {
    assert_eq!(counts("event: message\nid: 1\nretry: 5\n: c\ndata: TOKEN\nevent: x\n: c\n\n"), (1, 0, 0));
    assert_eq!(counts("dat: TOKEN\ndatas: TOKEN\n data: TOKEN\nDATA: TOKEN\n\n"), (0, 0, 0));
}

#[test]
fn events_without_data_are_ignored() {
    for stream in [
        "",
        "\n",
        "\n\n\n",
        ":\n\n",
        ": keep-alive\n\n",
        "event: token_ids\n: [1]\n\n",
        "data:\n\n",
        "data: \n\n",
        "data\n\n",
        "dat",
    ] {
        assert_eq!(counts(stream), (0, 0, 0), "{stream:?}");
    }
}

#[test]
fn byte_order_mark_is_stripped_once_at_the_start() {
    assert_eq!(counts("\u{feff}data: TOKEN\n\ndata: TOKEN\n\n"), (2, 0, 0));
    assert_eq!(counts("data: TOKEN\n\n\u{feff}data: TOKEN\n\n"), (1, 0, 0));
    assert_eq!(counts("\u{feff}\u{feff}data: TOKEN\n\ndata: TOKEN\n\n"), (1, 0, 0));
}

#[test]
fn last_event_without_blank_line_counts() {
    assert_eq!(counts("data: TOKEN\n\ndata: TOKEN\n"), (2, 0, 0));
    assert_eq!(counts("data: TOKEN\n\ndata: TOKEN"), (2, 0, 0));
    assert_eq!(counts("data: [DONE]"), (0, 1, 0));
    assert_eq!(counts("data: {\"choices\":[{\"delta\":{\"content\":\"a"), (0, 0, 1));
    assert_eq!(counts("data: [DON"), (0, 0, 1));
}

#[test]
fn done_marker_is_recognized_only_as_event_data() {
    assert_eq!(counts("data: {\"choices\":[{\"delta\":{\"content\":\"[DONE]\"}}]}\n\n"), (1, 0, 0));
    assert_eq!(counts("data: [DOGS\n\ndata: TOKEN\n\n"), (1, 0, 1));
    assert_eq!(counts("data: [DONE]\n\ndata: TOKEN\n\n"), (1, 1, 0));
}

#[test]
fn event_is_emitted_at_its_last_byte() {
    let mut decoder = ResponseDecoder::new(Route::Chat, Framing::Sse);
    let mut events = 0;
    decoder.feed(format!("data: {TOKEN}\n").as_bytes(), &mut |_| events += 1);
    assert_eq!(events, 0);
    decoder.feed(b"\n", &mut |_| events += 1);
    assert_eq!(events, 1);
    decoder.finish(&mut |_| events += 1);
    assert_eq!(events, 1);
}

#[test]
fn decoding_continues_after_a_malformed_event() {
    for bad in ["{\"choices\":[}", "{\"a\" 1}", "nul", "{\"a\":1}x", "{\"a\":1]", "{,}", "\"open", "{\"a\":+}"] {
        assert_eq!(counts(&format!("data: TOKEN\n\ndata: {bad}\n\ndata: TOKEN\n\n")), (2, 0, 1), "{bad}");
    }
}

#[test]
fn framing_follows_the_content_type() {
    for (content_type, framing) in [
        ("text/event-stream", Some(Framing::Sse)),
        ("Text/Event-Stream; charset=utf-8", Some(Framing::Sse)),
        ("application/json", Some(Framing::Json)),
        (" application/json ;charset=utf-8", Some(Framing::Json)),
        ("application/problem+json", Some(Framing::Json)),
        ("application/x-ndjson", Some(Framing::Ndjson)),
        ("application/jsonl; charset=utf-8", Some(Framing::Ndjson)),
        ("text/plain; charset=utf-8", Some(Framing::Text)),
        ("text/vtt", Some(Framing::Text)),
        ("application/x-subrip", Some(Framing::Text)),
        ("text/html", None),
        ("application/grpc", Some(Framing::Grpc)),
        ("application/grpc+json", None),
        ("+json", None),
        ("", None),
    ] {
        assert_eq!(Framing::of_content_type(content_type.as_bytes()), framing, "{content_type}");
    }
}
