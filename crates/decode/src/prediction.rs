//! Skips what was read before: consecutive events of a stream are the same bytes but for one string, and for the numbers
//! of `usage` if each event has them (`continuous_usage_stats`).
//!
//! Why the result is the same as without it: what the scanner and the reading do is a function of the bytes and of what
//! they know at the start. Every event starts with the same scanner and an empty draft. So after the same head they
//! stand where they stood (`at_text`, `facts_at_text`); and after the same tail, begun with the same facts, where they
//! stood then (`after_tail`, `facts_after_tail`). A tail that is known ends with the event, or before the value of a
//! member of the top-level object; what follows it is scanned. What is kept over events, the first id and model and the
//! marks of engines, was taken from these bytes when they were scanned, and taking it twice changes nothing. Bytes after
//! which more is known of the event than [`Facts`] say, or in which an error's kind was found, are never learned.

use std::hint::black_box;

use memchr::memchr2;

use super::dialect::Facts;
use super::dialect::Place;
use super::dialect::Reading;
use super::dialect::skip_counts;
use super::scan::Pause;
use super::scan::Position;
use super::scan::Scanner;

/// Room for vLLM's head, which is 141 bytes and the model's name, with its tail of 58 or, up to the value of `usage`, 66;
/// or for llama.cpp's 65 and 180.
const ROOM: usize = 256;

/// Bytes that come from memory together, on most processors.
const CACHE_LINE: usize = 64;

/// An earlier event without its first measured string: the bytes before it (the head) and after it (the tail).
#[derive(Clone, Copy, Debug)]
pub(super) struct Prediction {
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
    /// Knows nothing yet of a stream whose events lie at `root`.
    pub(super) fn new(root: Place) -> Self {
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

    /// Asks for the memory that the next event will need.
    pub(super) fn warm(&self) {
        for byte in self.bytes.iter().step_by(CACHE_LINE) {
            black_box(*byte);
        }
        black_box((self.head_len, self.after_tail));
    }

    /// Skips the first line of an event's data if it is the known head, a short string that is not empty, the known tail
    /// and a line feed; returns what follows. What stands between the tail and the line feed is scanned. `value` need not
    /// end where the line ends: finding that end would cost more than all the rest.
    pub(super) fn skip_line<'a>(
        &self,
        value: &'a [u8],
        scanner: &mut Scanner<Place>,
        reading: &mut Reading,
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
    pub(super) fn scan_line(&mut self, line: &[u8], scanner: &mut Scanner<Place>, reading: &mut Reading) {
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
            // The string was empty, or more is known than facts say.
            scanner.feed(tail, Pause::Never, reading);
            return;
        }
        match self.tail().and_then(|known| tail.strip_prefix(known)) {
            Some(rest) => self.scan_after_tail(rest, scanner, reading),
            None => self.scan_tail(tail, scanner, reading),
        }
    }

    /// Stands where the known tail ends.
    #[inline]
    fn resume_after_tail(&self, scanner: &mut Scanner<Place>, reading: &mut Reading) {
        scanner.resume_at(self.after_tail);
        reading.assume(self.facts_after_tail);
    }

    /// Scans what follows the known tail. Not inlined: the common line, of which nothing follows, would pay for it.
    #[inline(never)]
    fn scan_after_tail(&self, rest: &[u8], scanner: &mut Scanner<Place>, reading: &mut Reading) {
        self.resume_after_tail(scanner, reading);
        let rest = skip_counts(rest, scanner, reading).unwrap_or(rest);
        scanner.feed(rest, Pause::Never, reading);
    }

    /// Scans the tail of an event whose string was not empty, and learns as much of it as [`Facts`] tell.
    fn scan_tail(&mut self, tail: &[u8], scanner: &mut Scanner<Place>, reading: &mut Reading) {
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

    fn learn_head(&mut self, head: &[u8], scanner: &Scanner<Place>, reading: &Reading) {
        self.head_len = 0;
        self.tail_len = 0;
        if let (Some(facts), Some(room)) = (reading.plain_facts(), self.bytes.get_mut(..head.len())) {
            room.copy_from_slice(head);
            self.head_len = head.len() as u16;
            self.at_text = scanner.position();
            self.facts_at_text = facts;
        }
    }

    /// Learns what was scanned of a tail, if it fits and [`Facts`] say all. It goes with the head that is known; without
    /// one there is nothing to learn.
    fn learn_tail(&mut self, tail: &[u8], scanner: &Scanner<Place>, reading: &Reading) {
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

/// What follows the string that begins here (after its quote), if it is not empty, is short, and ends before the line.
fn skip_short_string(bytes: &[u8]) -> Option<&[u8]> {
    /// Nearly every token is shorter.
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
