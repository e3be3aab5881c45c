//! Parsing of response streams, limited to what the load generator measures.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use crate::load::api::{Contents, Description, Mark};

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
    /// The format according to the response's `Content-Type`.
    pub(crate) fn of(headers: &HeaderMap) -> Media {
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "text/event-stream" => Media::Events,
            "application/x-ndjson" => Media::Lines,
            _ => Media::Whole,
        }
    }
}

/// Maximum size in bytes of a non-streamed response that is searched for a token count.
const WHOLE_BYTES: usize = 16 * 1024 * 1024;

/// Contents of one read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadEvents {
    /// Events with text, reasoning or a tool call.
    pub(crate) token_events: u64,
    /// Timestamp from the last token event.
    pub(crate) stamp: Option<u64>,
}

/// Splits a body into events and collects their measured fields.
#[derive(Debug)]
pub(crate) struct Events {
    description: &'static Description,
    media: Media,
    /// An incomplete line, or a response that is not streamed.
    partial: Vec<u8>,
    /// Whether events contain timestamps (`Text::Stamp` of the simulated server).
    stamped: bool,
    received: Received,
}

/// Summary of a response so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Output tokens, from the last reported count.
    pub(crate) usage: Option<u64>,
    /// The stream is complete.
    pub(crate) done: bool,
    /// An error event was received.
    pub(crate) error: bool,
}

impl Events {
    /// Creates a parser for responses of this API. `stamped`: their events contain timestamps.
    pub(crate) fn new(description: &'static Description, stamped: bool) -> Events {
        let (media, received) = (Media::default(), Received::default());
        Events { description, media, partial: Vec::new(), stamped, received }
    }

    /// Resets everything but the settings, for the next response.
    pub(crate) fn restart(&mut self, media: Media) {
        self.partial.clear();
        (self.media, self.received) = (media, Received::default());
    }

    /// Processes the next bytes of a body.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> ReadEvents {
        let mut found = ReadEvents::default();
        if self.media == Media::Whole {
            let room = WHOLE_BYTES.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
            return found;
        }
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at_checked(at + 1).unwrap_or((bytes, &[]));
            bytes = rest;
            if self.partial.is_empty() {
                self.line(line, &mut found);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole, &mut found);
            }
        }
        self.partial.extend_from_slice(bytes);
        found
    }

    /// Returns the summary. Call it when the body is complete.
    pub(crate) fn end(&mut self) -> Received {
        if self.media == Media::Whole {
            let body = serde_json::from_slice::<serde_json::Value>(&self.partial).unwrap_or_default();
            self.received.usage = body.pointer(&self.description.whole).and_then(serde_json::Value::as_u64);
        }
        self.received.done |= self.description.mark == Mark::End;
        self.received
    }

    fn line(&mut self, line: &[u8], found: &mut ReadEvents) {
        // All servers send each field of interest on one line; comments and other fields are skipped.
        let data = match self.media {
            Media::Lines => Some(line),
            _ => line.strip_prefix(b"data:"),
        };
        let Some(data) = data.map(<[u8]>::trim_ascii).filter(|data| !data.is_empty()) else { return };
        if data == b"[DONE]" {
            self.received.done |= self.description.mark == Mark::Done;
        } else if let Some(stamp) = self.stamped.then(|| find_stamp(data)).flatten() {
            found.token_events += 1;
            found.stamp = Some(stamp);
        } else if let Ok(event) = serde_json::from_slice(data) {
            let Contents { tokens, count, done, error } = self.description.read(&event);
            found.token_events += u64::from(tokens);
            self.received.usage = count.or(self.received.usage);
            self.received.done |= done;
            self.received.error |= error;
        }
    }
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
    use crate::load::api::Api;

    fn media(content_type: &str) -> Media {
        Media::of(&[(CONTENT_TYPE, content_type.parse().unwrap())].into_iter().collect())
    }

    fn events(api: Api) -> Events {
        Events::new(api.description(), false)
    }

    const STREAM: &str = concat!(
        ": keep-alive\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"H\\n\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\": [{\"delta\": {\"reasoning\": \"x\", \"content\": null}, \"finish_reason\": null}]}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"y\"},\"finish_reason\":\"length\"}]}\n\n",
        "data: no json\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn stream_split_at_any_byte_parses_identically() {
        for cut in 0..=STREAM.len() {
            let (head, tail) = STREAM.as_bytes().split_at(cut);
            let mut events = events(Api::Chat);
            let token_events = events.take(head).token_events + events.take(tail).token_events;
            let received = Received { usage: Some(3), done: true, error: false };
            assert_eq!((token_events, events.end()), (3, received), "cut at {cut}");
        }
    }

    #[test]
    fn json_lines_are_parsed_only_for_line_streams() {
        let stream = b"{\"response\":\"a\",\"done\":false}\n{\"response\":\"\",\"done\":true,\"eval_count\":2}\n";
        for (media, token_events, usage) in [(Media::Lines, 1, Some(2)), (Media::Events, 0, None)] {
            let mut events = events(Api::OllamaGenerate);
            events.restart(media);
            let found = events.take(stream);
            let received = events.end();
            assert_eq!((found.token_events, received.usage, received.done), (token_events, usage, usage.is_some()));
        }
    }

    #[test]
    fn non_streamed_response_is_counted() {
        let mut events = events(Api::Messages);
        events.restart(media("application/json"));
        for part in [&b"{\"content\":[],\n\"usage\":{\"output"[..], b"_tokens\":12}}"] {
            assert_eq!(events.take(part), ReadEvents::default());
        }
        assert_eq!(events.end().usage, Some(12));
        assert_eq!(media("Text/Event-Stream; charset=utf-8"), Media::Events);
    }

    #[test]
    fn timestamps_and_error_events_are_detected() {
        let mut events = Events::new(Api::Chat.description(), true);
        let stamp = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{:038}\"}}}}]}}\n\n", 123_456_789_u64);
        assert_eq!(events.take(stamp.as_bytes()), ReadEvents { token_events: 1, stamp: Some(123_456_789) });
        events.take(b"data: {\"error\": {\"message\": \"x\"}}\n\n");
        assert!(events.end().error);
    }
}
