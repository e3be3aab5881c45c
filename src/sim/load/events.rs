//! What a stream's events say, as far as a client wants to know.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// What one read brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    /// Events with text, reasoning or a tool call in them.
    pub(crate) token_events: u64,
    /// The stamp in the last of them.
    pub(crate) stamp: Option<u64>,
}

/// Splits a body into events, and keeps what they said.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// A line that is not complete yet.
    partial: Vec<u8>,
    /// Whether to look for stamps.
    stamped: bool,
    /// `completion_tokens` of the last usage.
    pub(crate) usage: Option<u64>,
    /// `[DONE]` was seen.
    pub(crate) done: bool,
    /// An error event was seen.
    pub(crate) error: bool,
    /// A choice told why it finished.
    pub(crate) finished: bool,
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
    finish_reason: Option<IgnoredAny>,
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
    /// Looks for stamps if `stamped`.
    pub(crate) fn new(stamped: bool) -> Events {
        Events { stamped, ..Events::default() }
    }

    /// Forgets everything but the settings, for the next answer.
    pub(crate) fn restart(&mut self) {
        let (mut partial, stamped) = (std::mem::take(&mut self.partial), self.stamped);
        partial.clear();
        *self = Events { partial, stamped, ..Events::default() };
    }

    /// Takes the next bytes of an event stream.
    pub(crate) fn take(&mut self, mut bytes: &[u8], brought: &mut Brought) {
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

    fn line(&mut self, line: &[u8], brought: &mut Brought) {
        // Every field of interest is on one line in every server's streams; comments and the other fields say nothing.
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
        } else if let Some(stamp) = self.stamped.then(|| find_stamp(data)).flatten() {
            brought.token_events += 1;
            brought.stamp = Some(stamp);
        } else {
            self.payload(data, brought);
        }
    }

    fn payload(&mut self, data: &[u8], brought: &mut Brought) {
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
            self.unreadable += 1;
            return;
        };
        self.error |= chunk.error.is_some();
        if let Some(tokens) = chunk.usage.and_then(|usage| usage.completion_tokens) {
            self.usage = Some(tokens);
        }
        let says = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
        let mut token = false;
        for choice in &chunk.choices {
            self.finished |= choice.finish_reason.is_some();
            token |= says(&choice.text);
            if let Some(delta) = &choice.delta {
                token |= says(&delta.content) || says(&delta.reasoning) || says(&delta.reasoning_content);
                token |= delta.tool_calls.is_some();
            }
        }
        brought.token_events += u64::from(token);
    }
}

/// The stamp of the simulated server in an event that is not the last one of its choice.
fn find_stamp(data: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(data, b"\"content\":\"")? + 11;
    let digits = data.get(at..at + crate::sim::server::STAMP_DIGITS)?;
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
            let (mut events, mut brought) = (Events::default(), Brought::default());
            events.take(head, &mut brought);
            events.take(tail, &mut brought);
            assert_eq!((brought.token_events, events.usage, events.unreadable), (3, Some(3), 1), "cut at {cut}");
            assert!(events.done && events.finished && !events.error);
        }
    }

    #[test]
    fn a_stamp_is_read_and_an_error_event_is_seen() {
        let (mut events, mut brought) = (Events::new(true), Brought::default());
        let stamp = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{:038}\"}}}}]}}\n\n", 123_456_789_u64);
        events.take(stamp.as_bytes(), &mut brought);
        assert_eq!(brought, Brought { token_events: 1, stamp: Some(123_456_789) });
        events.take(b"data: {\"error\": {\"message\": \"x\"}}\n\n", &mut brought);
        assert!(events.error);
    }
}
