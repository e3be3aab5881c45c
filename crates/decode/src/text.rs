//! The response text, kept temporarily to count its tokens when the response reports no count.
//!
//! Text is kept only here, and only if the settings enable it. It is passed to the token counter, never printed, and
//! freed with its [`ResponseText`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Channels, StreamEvent};

/// Maximum number of runs per text. A new run begins when the channel changes (reasoning, response text).
const RUNS: usize = 64;

/// Initial capacity of a text, in bytes.
const FIRST_ROOM: usize = 1024;

/// Limits on kept text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Maximum size of one response's text in bytes; longer texts are dropped.
    pub response_bytes: usize,
    /// Maximum total size of all kept texts in bytes.
    pub memory_bytes: usize,
}

/// Why a response text is not, or no longer, kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLost {
    /// The text exceeds `response_bytes`, or has too many runs.
    TooLong,
    /// All texts together would exceed `memory_bytes`.
    Memory,
    /// The generated tokens are not those of the text: audio, images, several choices, invalid escapes or bytes, or U+FFFD,
    /// which replaces invalid bytes.
    NotPlain,
}

/// The total size of all kept texts in bytes. Clones share one counter.
#[derive(Clone, Debug, Default)]
pub struct TextMemory(Arc<AtomicUsize>);

impl TextMemory {
    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A run of text in one channel, up to `end`.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// `None` until the end of the current event.
    channels: Option<Channels>,
    end: usize,
}

/// The text of one response so far: runs of reasoning and output text, in order.
pub struct ResponseText {
    limits: TextLimits,
    memory: TextMemory,
    /// The part of `memory` held by this text.
    share: usize,
    bytes: Vec<u8>,
    runs: Vec<Run>,
    /// Runs of completed events. Later runs and bytes belong to the current event.
    settled: usize,
    settled_bytes: usize,
    /// Text length of the first event with text, in bytes.
    first: usize,
    /// Events with text outside of tool calls.
    events: u64,
    /// The response has tool calls.
    calls: bool,
    lost: Option<TextLost>,
}

impl ResponseText {
    /// An empty text.
    pub fn new(limits: TextLimits, memory: TextMemory) -> ResponseText {
        ResponseText {
            limits,
            memory,
            share: 0,
            bytes: Vec::new(),
            runs: Vec::new(),
            settled: 0,
            settled_bytes: 0,
            first: 0,
            events: 0,
            calls: false,
            lost: None,
        }
    }

    /// Why the text was dropped; `None` while it is complete.
    pub fn lost(&self) -> Option<TextLost> {
        self.lost
    }

    /// Drops the text.
    pub fn lose(&mut self, why: TextLost) {
        self.lost.get_or_insert(why);
        self.bytes = Vec::new();
        self.runs = Vec::new();
        (self.settled, self.settled_bytes, self.first) = (0, 0, 0);
        self.hold(0);
    }

    /// Bytes of text in completed events.
    pub fn len(&self) -> usize {
        self.settled_bytes
    }

    /// True when no completed event had text.
    pub fn is_empty(&self) -> bool {
        self.settled_bytes == 0
    }

    /// Events with text outside of tool calls. Each has at least one token of the text. Tool calls are excluded,
    /// because the engine's parser may split one token into several events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// True if the response has tool calls. The model then generated more than their names and arguments.
    pub fn has_calls(&self) -> bool {
        self.calls
    }

    /// The runs of text, one channel each. Markers between runs (a model's reasoning tags) and the syntax around tool
    /// names and arguments are not included.
    ///
    /// # Errors
    /// The reason why there is no text.
    pub fn runs(&self) -> Result<Vec<&str>, TextLost> {
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        let of_calls = |run: &Run| run.channels.is_some_and(|channels| channels.intersects(Channels::TOOL));
        if self.calls && !self.runs.iter().take(self.settled).any(of_calls) {
            return Err(TextLost::NotPlain);
        }
        let mut start = 0;
        let runs = self.runs.iter().take(self.settled).map(|run| {
            let bytes = self.bytes.get(start..run.end).unwrap_or_default();
            start = run.end;
            let text = std::str::from_utf8(bytes).ok();
            // Engines replace the bytes of an incomplete character with U+FFFD.
            text.filter(|text| !text.contains(char::REPLACEMENT_CHARACTER)).ok_or(TextLost::NotPlain)
        });
        runs.collect()
    }

    /// The text of the first event with text; `None` if this text alone is not valid UTF-8.
    pub fn first(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes.get(..self.first)?).ok()
    }

    /// Appends the next piece of the current string, with its escapes decoded.
    pub(super) fn push(&mut self, part: &[u8]) {
        if self.lost.is_some() {
            return;
        }
        let len = self.bytes.len().saturating_add(part.len());
        if len > self.limits.response_bytes {
            return self.lose(TextLost::TooLong);
        }
        if len > self.bytes.capacity() {
            let room = len.max(self.bytes.capacity().saturating_mul(2)).max(FIRST_ROOM);
            if !self.hold(room) {
                return self.lose(TextLost::Memory);
            }
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(part);
    }

    /// Ends the current string. `channels`: the channel, if the string's place determines it.
    pub(super) fn end_string(&mut self, channels: Option<Channels>) {
        let end = self.bytes.len();
        let start = self.runs.last().map_or(0, |run| run.end);
        if end == start {
            return;
        }
        if channels == Some(Channels::REASONING) && self.is_repeated(start) {
            self.bytes.truncate(start);
            return;
        }
        if self.runs.len() >= RUNS.saturating_mul(2) {
            return self.lose(TextLost::TooLong);
        }
        self.runs.push(Run { channels, end });
    }

    /// True if the string from `start` on repeats the previous string of the same event: vLLM before 0.33 sends
    /// reasoning under two keys (`reasoning` and `reasoning_content`).
    fn is_repeated(&self, start: usize) -> bool {
        let Some((before, [last])) = self.runs.get(self.settled..).and_then(|event| {
            let at = event.len().checked_sub(1)?;
            event.split_at_checked(at)
        }) else {
            return false;
        };
        let begin = before.last().map_or(self.settled_bytes, |run| run.end);
        last.channels == Some(Channels::REASONING) && self.bytes.get(begin..start) == self.bytes.get(start..)
    }

    /// Ends the current event: keeps its text if the event has output, otherwise drops it.
    pub(super) fn settle(&mut self, event: &StreamEvent) {
        if event.channels.intersects(Channels::AUDIO) || event.image || event.choices > 1 || event.choice > 0 {
            self.lose(TextLost::NotPlain);
        }
        self.calls |= event.channels.intersects(Channels::TOOL);
        if event.channels.is_empty() || event.progress || event.malformed {
            self.runs.truncate(self.settled);
            self.bytes.truncate(self.settled_bytes);
            return;
        }
        let mut settled = self.settled;
        for at in self.settled..self.runs.len() {
            let Some(run) = self.runs.get(at).copied() else { break };
            let channels = Some(run.channels.unwrap_or(event.channels));
            match settled.checked_sub(1).and_then(|last| self.runs.get_mut(last)) {
                Some(last) if last.channels == channels => last.end = run.end,
                _ => {
                    if let Some(place) = self.runs.get_mut(settled) {
                        *place = Run { channels, end: run.end };
                    }
                    settled += 1;
                }
            }
        }
        self.runs.truncate(settled);
        self.settled = settled;
        let before = self.settled_bytes;
        self.settled_bytes = self.runs.last().map_or(0, |run| run.end);
        self.events += u64::from(self.settled_bytes > before && !event.channels.intersects(Channels::TOOL));
        self.bytes.truncate(self.settled_bytes);
        if self.first == 0 {
            self.first = self.settled_bytes;
        }
        if settled > RUNS {
            self.lose(TextLost::TooLong);
        }
    }

    /// Reserves this many bytes in total from the shared memory. Above the limit, reserves nothing and returns false.
    fn hold(&mut self, bytes: usize) -> bool {
        if bytes > self.share {
            let more = bytes - self.share;
            let before = self.memory.0.fetch_add(more, Ordering::Relaxed);
            if before.saturating_add(more) > self.limits.memory_bytes {
                self.memory.0.fetch_sub(more, Ordering::Relaxed);
                return false;
            }
        } else {
            self.memory.0.fetch_sub(self.share - bytes, Ordering::Relaxed);
        }
        self.share = bytes;
        true
    }
}

/// Prints sizes only, never the text.
impl fmt::Debug for ResponseText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseText")
            .field("bytes", &self.bytes.len())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

/// A clone reserves its own share of the memory; if that fails, its text is dropped.
impl Clone for ResponseText {
    fn clone(&self) -> ResponseText {
        let mut copy = ResponseText::new(self.limits, self.memory.clone());
        copy.lost = self.lost;
        if !copy.hold(self.share) {
            copy.lose(TextLost::Memory);
            return copy;
        }
        copy.bytes = self.bytes.clone();
        copy.runs = self.runs.clone();
        (copy.settled, copy.settled_bytes, copy.first) = (self.settled, self.settled_bytes, self.first);
        (copy.events, copy.calls) = (self.events, self.calls);
        copy
    }
}

impl Drop for ResponseText {
    fn drop(&mut self) {
        self.hold(0);
    }
}
