//! The text of an answer, kept for a while so that its tokens can be counted where nobody tells how many there were.
//!
//! This is the only place where text is kept, and only when the settings ask for it. It has no way out but the bytes
//! that whoever counts them borrows: nothing prints it, and it is gone with its owner.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use crate::Channels;
use crate::StreamEvent;

/// Most changes between reasoning and answer that are kept of one text.
const RUNS: usize = 64;

/// Room that a text begins with.
const FIRST_ROOM: usize = 1024;

/// How much text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Most bytes of one answer's text; of a longer one nothing is kept.
    pub answer_bytes: usize,
    /// Most bytes that the texts of all answers take together.
    pub all_bytes: usize,
}

/// Why an answer's text is not kept, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLost {
    /// It is longer than the cap.
    TooLong,
    /// All texts together take as much memory as they may.
    Memory,
    /// The tokens of what came are not those of a text: calls of tools (their syntax was taken off), audio, several
    /// answers in one, escapes or bytes that are no Unicode, or U+FFFD, which stands for such bytes.
    NotPlain,
}

/// What all kept texts take together, in bytes. Clones are the same account.
#[derive(Clone, Debug, Default)]
pub struct TextMemory(Arc<AtomicUsize>);

impl TextMemory {
    /// Bytes taken now.
    pub fn held(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stretch of one channel, up to `end`.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// `None`: the event at hand will say.
    channels: Option<Channels>,
    end: usize,
}

/// The text of one answer as far as it came: its stretches of reasoning and of answer, in their order.
pub struct AnswerText {
    limits: TextLimits,
    memory: TextMemory,
    /// What of `memory` is ours.
    share: usize,
    bytes: Vec<u8>,
    runs: Vec<Run>,
    /// Runs and bytes of events that have ended. What follows them belongs to the event at hand.
    settled: usize,
    settled_bytes: usize,
    /// Bytes of the first event that had any.
    first: usize,
    lost: Option<TextLost>,
}

impl AnswerText {
    /// Nothing so far.
    pub fn new(limits: TextLimits, memory: TextMemory) -> AnswerText {
        AnswerText {
            limits,
            memory,
            share: 0,
            bytes: Vec::new(),
            runs: Vec::new(),
            settled: 0,
            settled_bytes: 0,
            first: 0,
            lost: None,
        }
    }

    /// Why there is no text; `None` while it is whole.
    pub fn lost(&self) -> Option<TextLost> {
        self.lost
    }

    /// Gives the text up.
    pub fn lose(&mut self, why: TextLost) {
        self.lost.get_or_insert(why);
        self.bytes = Vec::new();
        self.runs = Vec::new();
        (self.settled, self.settled_bytes, self.first) = (0, 0, 0);
        self.hold(0);
    }

    /// Bytes of text in events that have ended.
    pub fn len(&self) -> usize {
        self.settled_bytes
    }

    /// True when no event that has ended had any text.
    pub fn is_empty(&self) -> bool {
        self.settled_bytes == 0
    }

    /// Its stretches of one channel each. What stood between them, the marks of a model's reasoning, is no part of it.
    ///
    /// # Errors
    /// Why there is no text.
    pub fn runs(&self) -> Result<Vec<&str>, TextLost> {
        if let Some(lost) = self.lost {
            return Err(lost);
        }
        let mut start = 0;
        let runs = self.runs.iter().take(self.settled).map(|run| {
            let bytes = self.bytes.get(start..run.end).unwrap_or_default();
            start = run.end;
            let text = std::str::from_utf8(bytes).ok();
            // Half a character was sampled, and this is what the engine put in its place.
            text.filter(|text| !text.contains(char::REPLACEMENT_CHARACTER)).ok_or(TextLost::NotPlain)
        });
        runs.collect()
    }

    /// The text of the first event that had any; `None` where it is no text by itself.
    pub fn first(&self) -> Option<&str> {
        std::str::from_utf8(self.bytes.get(..self.first)?).ok()
    }

    /// Takes the next piece of the string at hand, its escapes decoded.
    pub(super) fn push(&mut self, part: &[u8]) {
        if self.lost.is_some() {
            return;
        }
        let len = self.bytes.len().saturating_add(part.len());
        if len > self.limits.answer_bytes {
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

    /// The string at hand is complete. `channels`: what it is a piece of, if that is known by its place.
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

    /// True when the string from `start` on is the one before it in the same event: reasoning comes under both of its names
    /// at once (`reasoning` and `reasoning_content`: releases of vLLM before 0.33).
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

    /// The event at hand has ended, and said this: what came of its text is the answer's, or is not.
    pub(super) fn settle(&mut self, event: &StreamEvent) {
        let calls = Channels(Channels::TOOL.0 | Channels::AUDIO.0);
        if event.channels.intersects(calls) || event.choices > 1 || event.choice > 0 {
            self.lose(TextLost::NotPlain);
        }
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
        self.settled_bytes = self.runs.last().map_or(0, |run| run.end);
        self.bytes.truncate(self.settled_bytes);
        if self.first == 0 {
            self.first = self.settled_bytes;
        }
        if settled > RUNS {
            self.lose(TextLost::TooLong);
        }
    }

    /// Takes as much of the common account. False when that is more than all may have; then nothing is taken.
    fn hold(&mut self, bytes: usize) -> bool {
        if bytes > self.share {
            let more = bytes - self.share;
            let before = self.memory.0.fetch_add(more, Ordering::Relaxed);
            if before.saturating_add(more) > self.limits.all_bytes {
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

/// How much there is, never what.
impl fmt::Debug for AnswerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerText").field("bytes", &self.bytes.len()).field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// A copy takes its own share of the memory, or is lost.
impl Clone for AnswerText {
    fn clone(&self) -> AnswerText {
        let mut copy = AnswerText::new(self.limits, self.memory.clone());
        copy.lost = self.lost;
        if !copy.hold(self.share) {
            copy.lose(TextLost::Memory);
            return copy;
        }
        copy.bytes = self.bytes.clone();
        copy.runs = self.runs.clone();
        (copy.settled, copy.settled_bytes, copy.first) = (self.settled, self.settled_bytes, self.first);
        copy
    }
}

impl Drop for AnswerText {
    fn drop(&mut self) {
        self.hold(0);
    }
}
