//! What a stream's events say, as far as a client wants to know.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::load::api::Api;
use crate::load::shape::Said;
use crate::load::shape::Shape;

/// What a body is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Media {
    /// Server-sent events.
    #[default]
    Events,
    /// A JSON object on each line.
    Lines,
    /// An answer that is not streamed.
    Whole,
}

impl Media {
    /// By the answer's `Content-Type`.
    pub(crate) fn of(content_type: &[u8]) -> Media {
        let is = |name: &[u8]| content_type.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        match () {
            () if is(b"text/event-stream") => Media::Events,
            () if is(b"application/x-ndjson") => Media::Lines,
            () => Media::Whole,
        }
    }
}

/// Most bytes of an answer that is not streamed in which a count is looked for.
const WHOLE_BYTES: usize = 16 * 1024 * 1024;

/// What one read brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    /// Events with text, reasoning or a tool call in them.
    pub(crate) token_events: u64,
    /// The stamp in the last of them.
    pub(crate) stamp: Option<u64>,
}

/// Splits a body into events, and keeps what they said.
#[derive(Debug)]
pub(crate) struct Events {
    api: Api,
    shape: Shape,
    media: Media,
    /// A line that is not complete yet, or an answer that is not streamed.
    partial: Vec<u8>,
    /// Whether to look for stamps.
    stamped: bool,
    told: Told,
}

/// What an answer said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Output tokens by the last count.
    pub(crate) usage: Option<u64>,
    /// The stream is whole.
    pub(crate) done: bool,
    /// An error event was seen.
    pub(crate) error: bool,
    /// Events that are no JSON.
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
    /// Reads this API's answers, and looks for stamps if `stamped`.
    pub(crate) fn new(api: Api, stamped: bool) -> Events {
        let told = Told::default();
        Events { api, shape: Shape::of(api), media: Media::default(), partial: Vec::new(), stamped, told }
    }

    /// Forgets everything but the settings, for the next answer.
    pub(crate) fn restart(&mut self, media: Media) {
        self.partial.clear();
        (self.media, self.told) = (media, Told::default());
    }

    /// Takes the next bytes of a body.
    pub(crate) fn take(&mut self, mut bytes: &[u8], brought: &mut Brought) {
        if self.media == Media::Whole {
            let room = WHOLE_BYTES.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
            return;
        }
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at_checked(at + 1).unwrap_or((bytes, &[]));
            bytes = rest;
            if self.partial.is_empty() {
                self.line(line, brought);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole, brought);
                whole.clear();
                self.partial = whole;
            }
        }
        self.partial.extend_from_slice(bytes);
    }

    /// What the answer said, now that its body is whole.
    pub(crate) fn end(&mut self) -> Told {
        if self.media == Media::Whole {
            let body = serde_json::from_slice::<serde_json::Value>(&self.partial).unwrap_or_default();
            self.told.usage = body.pointer(self.shape.whole).and_then(serde_json::Value::as_u64);
        }
        self.told.done |= self.shape.ends_unmarked();
        self.told
    }

    fn line(&mut self, line: &[u8], brought: &mut Brought) {
        // Every field of interest is on one line in every server's streams; comments and the other fields say nothing.
        let data = match self.media {
            Media::Lines => Some(line),
            _ => line.strip_prefix(b"data:"),
        };
        let Some(data) = data.map(<[u8]>::trim_ascii).filter(|data| !data.is_empty()) else { return };
        if data == b"[DONE]" {
            self.told.done |= self.shape.ends_with_done();
        } else if let Some(stamp) = self.stamped.then(|| find_stamp(data)).flatten() {
            brought.token_events += 1;
            brought.stamp = Some(stamp);
        } else {
            let said = match self.api {
                Api::Chat | Api::Completions => choices(data),
                _ => serde_json::from_slice(data).map(|event| self.shape.read(&event)),
            };
            match said {
                Ok(said) => self.note(said, brought),
                Err(_) => self.told.unreadable += 1,
            }
        }
    }

    fn note(&mut self, said: Said, brought: &mut Brought) {
        brought.token_events += u64::from(said.tokens);
        self.told.usage = said.count.or(self.told.usage);
        self.told.done |= said.done;
        self.told.error |= said.error;
    }
}

/// What an event of chat or completions says.
fn choices(data: &[u8]) -> serde_json::Result<Said> {
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
    Ok(Said { tokens, count, done: false, error: chunk.error.is_some() })
}

/// The stamp of the simulated server in an event that is not the last one of its choice.
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
    fn a_stream_says_the_same_wherever_it_is_cut() {
        for cut in 0..=STREAM.len() {
            let (head, tail) = STREAM.as_bytes().split_at(cut);
            let (mut events, mut brought) = (Events::new(Api::Chat, false), Brought::default());
            events.take(head, &mut brought);
            events.take(tail, &mut brought);
            let told = Told { usage: Some(3), done: true, error: false, unreadable: 1 };
            assert_eq!((brought.token_events, events.end()), (3, told), "cut at {cut}");
        }
    }

    #[test]
    fn lines_without_a_field_name_are_read_where_they_are_the_stream() {
        let stream = b"{\"response\":\"a\",\"done\":false}\n{\"response\":\"\",\"done\":true,\"eval_count\":2}\n";
        for (media, token_events, usage) in [(Media::Lines, 1, Some(2)), (Media::Events, 0, None)] {
            let (mut events, mut brought) = (Events::new(Api::OllamaGenerate, false), Brought::default());
            events.restart(media);
            events.take(stream, &mut brought);
            let told = events.end();
            assert_eq!((brought.token_events, told.usage, told.done), (token_events, usage, usage.is_some()));
        }
    }

    #[test]
    fn an_answer_in_one_piece_is_counted_too() {
        let (mut events, mut brought) = (Events::new(Api::Messages, false), Brought::default());
        events.restart(Media::of(b"application/json"));
        for part in [&b"{\"content\":[],\n\"usage\":{\"output"[..], b"_tokens\":12}}"] {
            events.take(part, &mut brought);
        }
        assert_eq!((events.end().usage, brought.token_events), (Some(12), 0));
        assert_eq!(Media::of(b"Text/Event-Stream; charset=utf-8"), Media::Events);
    }

    #[test]
    fn a_stamp_is_read_and_an_error_event_is_seen() {
        let (mut events, mut brought) = (Events::new(Api::Chat, true), Brought::default());
        let stamp = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{:038}\"}}}}]}}\n\n", 123_456_789_u64);
        events.take(stamp.as_bytes(), &mut brought);
        assert_eq!(brought, Brought { token_events: 1, stamp: Some(123_456_789) });
        events.take(b"data: {\"error\": {\"message\": \"x\"}}\n\n", &mut brought);
        assert!(events.end().error);
    }
}
