//! Skips bytes that were already decoded. Consecutive events of a stream differ only in one string, and in the numbers
//! of `usage` if every event has them (`continuous_usage_stats`).
//!
//! Why the result equals that of a full scan: the scanner and the reading depend only on the bytes and on the state
//! before these bytes. Every event starts with the same scanner state and an empty draft. The same head therefore leads
//! to the same state (`at_text`, `facts_at_text`). The same tail, starting from the same facts, leads to the same state
//! after the tail (`after_tail`, `facts_after_tail`). A known tail ends with the event, or before the value of a
//! top-level member; the bytes after the tail are scanned. State kept across events (the first id and model, the engine
//! marks) was updated when these bytes were first scanned; a second update has no effect. Bytes are not stored if the
//! event's state after them does not fit in [`Facts`], or if they contain an error type.

use std::hint::black_box;

use memchr::memchr2;

use super::draft::Facts;
use super::reading::ResponseState;
use crate::dialect::Place;
use crate::scan::{Pause, Position, Scanner, Sink as _};

/// Maximum bytes of head and tail. Enough for vLLM's head (141 bytes plus the model name) and tail (58 bytes, or 66 up
/// to the value of `usage`), and for llama.cpp's (65 and 180 bytes).
const ROOM: usize = 256;

/// Cache line size of most processors, in bytes.
const CACHE_LINE: usize = 64;

/// The bytes of an earlier event before (head) and after (tail) its first text string (`Shape::Text`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    bytes: [u8; ROOM],
    /// 0: no head is known.
    head_len: u16,
    /// 0: no tail is known.
    tail_len: u16,
    at_text: Position<Place>,
    facts_at_text: Facts,
    after_tail: Position<Place>,
    facts_after_tail: Facts,
}

impl Prediction {
    /// An empty prediction for a stream whose events are at `root`.
    pub(crate) fn new(root: Place) -> Self {
        Self {
            bytes: [0; ROOM],
            head_len: 0,
            tail_len: 0,
            at_text: Position::before(root),
            facts_at_text: Facts::default(),
            after_tail: Position::before(root),
            facts_after_tail: Facts::default(),
        }
    }

    /// Prefetches the memory that the next event needs.
    pub(crate) fn warm(&self) {
        for byte in self.bytes.iter().step_by(CACHE_LINE) {
            black_box(*byte);
        }
        black_box((self.head_len, self.after_tail));
    }

    /// Skips the first line of an event's data, and returns the bytes after the line. The line must consist of the
    /// known head, a short non-empty string, the known tail and a line feed. Bytes between the tail and the line feed
    /// are scanned. `value` may extend past the line, because searching for the end of the line first would take longer
    /// than everything else.
    pub(crate) fn skip_line<'a>(
        &self,
        value: &'a [u8],
        scanner: &mut Scanner<Place>,
        reading: &mut ResponseState,
    ) -> Option<&'a [u8]> {
        let tail = self.tail()?;
        let rest = value.strip_prefix(self.head()?)?;
        let rest = skip_short_string(rest)?.strip_prefix(tail)?;
        if let Some(after) = rest.strip_prefix(b"\n") {
            self.resume_after_tail(scanner, reading);
            return Some(after);
        }
        let (rest, end) = rest.split_at_checked(memchr2(b'\n', b'\r', rest)?)?;
        let after = end.strip_prefix(b"\n")?;
        self.scan_after_tail(rest, scanner, reading);
        Some(after)
    }

    /// Scans the first line of an event's data.
    pub(crate) fn scan_line(&mut self, line: &[u8], scanner: &mut Scanner<Place>, reading: &mut ResponseState) {
        let rest = match self.head().and_then(|head| line.strip_prefix(head)) {
            Some(rest) => {
                scanner.resume_at(self.at_text);
                reading.assume(self.facts_at_text);
                rest
            }
            None => {
                let taken = scanner.feed(line, Pause::TextStart, reading);
                if !scanner.is_at_text() {
                    return;
                }
                let Some((head, rest)) = line.split_at_checked(taken) else { return };
                self.learn_head(head, scanner, reading);
                rest
            }
        };
        let taken = scanner.feed(rest, Pause::TextEnd, reading);
        let tail = rest.get(taken..).unwrap_or_default();
        let facts = reading.plain_facts();
        if facts.is_none_or(|facts| facts == self.facts_at_text) {
            // The string was empty, or `Facts` do not contain everything known about the event.
            scanner.feed(tail, Pause::Never, reading);
            return;
        }
        match self.tail().and_then(|known| tail.strip_prefix(known)) {
            Some(rest) => self.scan_after_tail(rest, scanner, reading),
            None => self.scan_tail(tail, scanner, reading),
        }
    }

    /// Resumes the scanner and the reading at the end of the known tail.
    #[inline]
    fn resume_after_tail(&self, scanner: &mut Scanner<Place>, reading: &mut ResponseState) {
        scanner.resume_at(self.after_tail);
        reading.assume(self.facts_after_tail);
    }

    /// Scans the bytes after the known tail. Not inlined, to keep the common case without such bytes fast.
    #[inline(never)]
    fn scan_after_tail(&self, rest: &[u8], scanner: &mut Scanner<Place>, reading: &mut ResponseState) {
        self.resume_after_tail(scanner, reading);
        let rest = skip_counts(rest, scanner, reading).unwrap_or(rest);
        scanner.feed(rest, Pause::Never, reading);
    }

    /// Scans the tail of an event with a non-empty string, and stores the longest part of the tail after which
    /// [`Facts`] contain everything known about the event.
    fn scan_tail(&mut self, tail: &[u8], scanner: &mut Scanner<Place>, reading: &mut ResponseState) {
        self.tail_len = 0;
        let mut taken = 0;
        while let Some(rest) = tail.get(taken..)
            && !rest.is_empty()
        {
            taken += scanner.feed(rest, Pause::Member, reading);
            if scanner.is_before_member() || scanner.is_done() {
                let known = tail.get(..taken).unwrap_or_default();
                self.learn_tail(known, scanner, reading);
            }
        }
    }

    fn head(&self) -> Option<&[u8]> {
        if self.head_len == 0 { None } else { self.bytes.get(..usize::from(self.head_len)) }
    }

    fn tail(&self) -> Option<&[u8]> {
        let start = usize::from(self.head_len);
        if self.tail_len == 0 { None } else { self.bytes.get(start..start + usize::from(self.tail_len)) }
    }

    fn learn_head(&mut self, head: &[u8], scanner: &Scanner<Place>, reading: &ResponseState) {
        self.head_len = 0;
        self.tail_len = 0;
        if let (Some(facts), Some(room)) = (reading.plain_facts(), self.bytes.get_mut(..head.len())) {
            room.copy_from_slice(head);
            self.head_len = head.len() as u16;
            self.at_text = scanner.position();
            self.facts_at_text = facts;
        }
    }

    /// Stores the scanned tail if it fits, a head is known, and [`Facts`] contain everything known about the event.
    fn learn_tail(&mut self, tail: &[u8], scanner: &Scanner<Place>, reading: &ResponseState) {
        let start = usize::from(self.head_len);
        if let (true, Some(facts)) = (start > 0, reading.plain_facts())
            && let Some(room) = self.bytes.get_mut(start..start + tail.len())
        {
            room.copy_from_slice(tail);
            self.tail_len = tail.len() as u16;
            self.after_tail = scanner.position();
            self.facts_after_tail = facts;
        }
    }
}

/// Returns the bytes after the string that begins here (after its opening quote), if the string is non-empty, short,
/// and ends before the line.
fn skip_short_string(bytes: &[u8]) -> Option<&[u8]> {
    /// Maximum length in bytes. Nearly all tokens are shorter.
    const SHORT: usize = 48;
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate().take(SHORT) {
        match byte {
            b'\n' | b'\r' => return None,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' if at == 0 => return None,
            b'"' => return bytes.get(at + 1..),
            _ => {}
        }
    }
    None
}

/// Maximum number of digits. Real counts are shorter; longer numbers are left to the scanner.
const DIGITS: usize = 12;

/// Parses the first members of a `usage` object in one step, in the form that vLLM 0.32 and SGLang 0.5 write. With
/// `continuous_usage_stats`, every event has these members.
///
/// Called before the value of `usage`. Parses the start of the object and its three counts, and returns the bytes after
/// the last count. The counts must be in this order, in plain digits and without white space.
///
/// Makes the same calls on `reading` as the scanner: for the start of the object, then for the two numbers that are
/// used. (The `begin` call for a number has no effect.) If the result is `None`, nothing was changed.
pub(crate) fn skip_counts<'a>(
    bytes: &'a [u8],
    scanner: &mut Scanner<Place>,
    reading: &mut ResponseState,
) -> Option<&'a [u8]> {
    let (prompt, rest) = split_digits(bytes.strip_prefix(br#"{"prompt_tokens":"#)?)?;
    let (_, rest) = split_digits(rest.strip_prefix(br#","total_tokens":"#)?)?;
    let (completion, rest) = split_digits(rest.strip_prefix(br#","completion_tokens":"#)?)?;
    if !scanner.is_before(Place::Usage) || !scanner.skip_members(Place::Usage) {
        return None;
    }
    reading.begin(Place::Usage, b'{');
    reading.number(Place::PromptTokens, prompt);
    reading.number(Place::CompletionTokens, completion);
    Some(rest)
}

/// Splits off the digits of an integer; the rest begins with the comma or brace after the integer.
fn split_digits(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = bytes.iter().take(DIGITS + 1).position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at_checked(len)?;
    (len > 0 && matches!(rest.first(), Some(b',' | b'}'))).then_some((digits, rest))
}
