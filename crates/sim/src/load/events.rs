//! Parsing of response streams, limited to what the load generator measures.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::load::api::{Api, Contents, Description};

/// Format of a response body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Media {
    /// Server-sent events.
    #[default]
    Events,
    /// A JSON object on each line.
    Lines,
    /// A response that is not streamed.
    Whole,
}

impl Media {
    /// By the response's `Content-Type`.
    pub(crate) fn of(content_type: &[u8]) -> Media {
        let is = |name: &[u8]| content_type.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        match () {
            () if is(b"text/event-stream") => Media::Events,
            () if is(b"application/x-ndjson") => Media::Lines,
            () => Media::Whole,
        }
    }
}

/// Maximum size in bytes of a non-streamed response that is searched for a token count.
const WHOLE_BYTES: usize = 16 * 1024 * 1024;

/// Contents of one read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Events with text, reasoning or a tool call.
    pub(crate) token_events: u64,
    /// Timestamp from the last of them.
    pub(crate) stamp: Option<u64>,
}

/// Splits a body into events and collects what they report.
#[derive(Debug)]
pub(crate) struct Events {
    api: Api,
    description: &'static Description,
    media: Media,
    /// An incomplete line, or a response that is not streamed.
    partial: Vec<u8>,
    /// Whether to look for timestamps.
    stamped: bool,
    reported: Received,
}

/// Summary of a response so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Output tokens by the last reported count.
    pub(crate) usage: Option<u64>,
    /// The stream is complete.
    pub(crate) done: bool,
    /// An error event was received.
    pub(crate) error: bool,
    /// Events that are not valid JSON.
    pub(crate) unreadable: u64,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    tool_calls: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u64>,
}

impl Events {
    /// Creates a parser for responses of this API; it looks for timestamps if `stamped`.
    pub(crate) fn new(api: Api, stamped: bool) -> Events {
        let reported = Received::default();
        Events { api, description: api.description(), media: Media::default(), partial: Vec::new(), stamped, reported }
    }

    /// Resets everything but the settings, for the next response.
    pub(crate) fn restart(&mut self, media: Media) {
        self.partial.clear();
        (self.media, self.reported) = (media, Received::default());
    }

    /// Processes the next bytes of a body.
    pub(crate) fn take(&mut self, mut bytes: &[u8], found: &mut Found) {
        if self.media == Media::Whole {
            let room = WHOLE_BYTES.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
            return;
        }
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at_checked(at + 1).unwrap_or((bytes, &[]));
            bytes = rest;
            if self.partial.is_empty() {
                self.line(line, found);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole, found);
                whole.clear();
                self.partial = whole;
            }
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Returns the summary. Call it when the body is complete.
    pub(crate) fn end(&mut self) -> Received {
        if self.media == Media::Whole {
            let body = serde_json::from_slice::<serde_json::Value>(&self.partial).unwrap_or_default();
            self.reported.usage = body.pointer(&self.description.whole).and_then(serde_json::Value::as_u64);
        }
        self.reported.done |= self.description.ends_unmarked();
        self.reported
    }

    fn line(&mut self, line: &[u8], found: &mut Found) {
        // All servers send each field of interest on one line; comments and other fields are skipped.
        let data = match self.media {
            Media::Lines => Some(line),
            _ => line.strip_prefix(b"data:"),
        };
        let Some(data) = data.map(<[u8]>::trim_ascii).filter(|data| !data.is_empty()) else { return };
        if data == b"[DONE]" {
            self.reported.done |= self.description.ends_with_done();
        } else if let Some(stamp) = self.stamped.then(|| find_stamp(data)).flatten() {
            found.token_events += 1;
            found.stamp = Some(stamp);
        } else {
            let contents = match self.api {
                Api::Chat | Api::Completions => choices(data),
                _ => serde_json::from_slice(data).map(|event| self.description.read(&event)),
            };
            match contents {
                Ok(contents) => self.note(contents, found),
                Err(_) => self.reported.unreadable += 1,
            }
        }
    }

    fn note(&mut self, contents: Contents, found: &mut Found) {
        found.token_events += u64::from(contents.tokens);
        self.reported.usage = contents.count.or(self.reported.usage);
        self.reported.done |= contents.done;
        self.reported.error |= contents.error;
    }
}

/// Reads one event of chat or completions.
fn choices(data: &[u8]) -> serde_json::Result<Contents> {
    let chunk = serde_json::from_slice::<Chunk<'_>>(data)?;
    let says = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
    let tokens = chunk.choices.iter().any(|choice| {
        says(&choice.text)
            || choice.delta.as_ref().is_some_and(|delta| {
                says(&delta.content)
                    || says(&delta.reasoning)
                    || says(&delta.reasoning_content)
                    || delta.tool_calls.is_some()
            })
    });
    let count = chunk.usage.and_then(|usage| usage.completion_tokens);
    Ok(Contents { tokens, count, done: false, error: chunk.error.is_some() })
}

/// The simulated server's timestamp in an event that is not the last one of its choice.
fn find_stamp(data: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(data, b"\"content\":\"")? + 11;
    let digits = data.get(at..at + crate::server::STAMP_DIGITS)?;
    let mut stamp = 0_u64;
    for digit in digits {
        stamp = stamp.wrapping_mul(10).wrapping_add(u64::from(char::from(*digit).to_digit(10)?));
    }
    Some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        ": keep-alive\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"H\\n\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\": [{\"delta\": {\"reasoning\": \"x\", \"content\": null}, \"finish_reason\": null}]}\r\n\r\n",
        "data: {\"choices\":[{\"text\":\"y\",\"finish_reason\":\"length\"}]}\n\n",
        "data: no json\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn stream_split_at_any_byte_parses_identically() {
        for cut in 0..=STREAM.len() {
            let (head, tail) = STREAM.as_bytes().split_at(cut);
            let (mut events, mut found) = (Events::new(Api::Chat, false), Found::default());
            events.take(head, &mut found);
            events.take(tail, &mut found);
            let reported = Received { usage: Some(3), done: true, error: false, unreadable: 1 };
            assert_eq!((found.token_events, events.end()), (3, reported), "cut at {cut}");
        }
    }

    #[test]
    fn json_lines_are_parsed_only_for_line_streams() {
        let stream = b"{\"response\":\"a\",\"done\":false}\n{\"response\":\"\",\"done\":true,\"eval_count\":2}\n";
        for (media, token_events, usage) in [(Media::Lines, 1, Some(2)), (Media::Events, 0, None)] {
            let (mut events, mut found) = (Events::new(Api::OllamaGenerate, false), Found::default());
            events.restart(media);
            events.take(stream, &mut found);
            let reported = events.end();
            assert_eq!((found.token_events, reported.usage, reported.done), (token_events, usage, usage.is_some()));
        }
    }

    #[test]
    fn non_streamed_response_is_counted() {
        let (mut events, mut found) = (Events::new(Api::Messages, false), Found::default());
        events.restart(Media::of(b"application/json"));
        for part in [&b"{\"content\":[],\n\"usage\":{\"output"[..], b"_tokens\":12}}"] {
            events.take(part, &mut found);
        }
        assert_eq!((events.end().usage, found.token_events), (Some(12), 0));
        assert_eq!(Media::of(b"Text/Event-Stream; charset=utf-8"), Media::Events);
    }

    #[test]
    fn timestamps_and_error_events_are_detected() {
        let (mut events, mut found) = (Events::new(Api::Chat, true), Found::default());
        let stamp = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{:038}\"}}}}]}}\n\n", 123_456_789_u64);
        events.take(stamp.as_bytes(), &mut found);
        assert_eq!(found, Found { token_events: 1, stamp: Some(123_456_789) });
        events.take(b"data: {\"error\": {\"message\": \"x\"}}\n\n", &mut found);
        assert!(events.end().error);
    }
}
