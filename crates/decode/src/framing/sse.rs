//! Incremental parser for server-sent events (WHATWG HTML, section 9.2) that returns the data as it arrives.
//!
//! Only `data` lines are used, and the event name `error`; `id`, `retry`, comments and unknown fields are skipped. Three
//! differences from the standard: the last event of a body is emitted even without its blank line, an event with empty
//! data is ignored unless its name is `error`, and a field `error` also marks an event as an error (llama.cpp before
//! September 2025).

use memchr::memchr2;

const FIELD: &[u8] = b"data";
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The lines that mark an event as an error, and whether more may follow on the line.
const ERRORS: [(&[u8], bool); 3] = [(b"event: error", false), (b"event:error", false), (b"error:", true)];

/// The next item of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The complete first line of an event's data.
    Line(&'a [u8]),
    /// A part of the data.
    Part(&'a [u8]),
    /// A line feed between two lines of data.
    Join,
    /// The event is complete.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the start of the stream, after this many bytes of a byte order mark.
    Bom(u8),
    /// At the start of a line.
    LineStart,
    /// After this many bytes of the field name.
    Name(u8),
    /// After this many bytes of a line that may mark an error: one bit per line of [`ERRORS`] that is still possible.
    Error(u8, u8),
    /// After the colon.
    Colon,
    /// In the value of a data line.
    Data,
    /// In a line that is skipped.
    Skip,
}

/// Splits a stream into the pieces of its events' data.
#[derive(Clone, Copy, Debug)]
pub struct SseFramer {
    state: State,
    /// The last byte was a carriage return; a line feed that follows is part of the same line ending.
    after_return: bool,
    /// The current event has a data line.
    has_data: bool,
    /// A line feed must be returned before the next byte of data.
    join: bool,
    /// The current event is marked as an error.
    is_error: bool,
}

/// A framer at the start of a stream.
impl Default for SseFramer {
    fn default() -> Self {
        Self { state: State::Bom(0), after_return: false, has_data: false, join: false, is_error: false }
    }
}

impl SseFramer {
    /// Removes the next piece from `bytes` and returns it; `None` when `bytes` is empty.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.after_return {
                self.after_return = false;
                if byte == b'\n' {
                    *bytes = rest;
                    continue;
                }
            }
            match self.state {
                State::Bom(seen) => match BOM.get(usize::from(seen)) {
                    Some(expected) if *expected == byte => {
                        self.state = State::Bom(seen + 1);
                        *bytes = rest;
                    }
                    Some(_) if seen > 0 => self.state = State::Skip,
                    _ => self.state = State::LineStart,
                },
                State::LineStart => match byte {
                    b'd' => {
                        if let Some(line) = self.whole_line(bytes) {
                            return Some(Piece::Line(line));
                        }
                        self.state = State::Name(1);
                        *bytes = rest;
                    }
                    b'\n' | b'\r' => {
                        *bytes = rest;
                        self.after_return = byte == b'\r';
                        if self.end_event() {
                            return Some(Piece::End);
                        }
                    }
                    b'e' => self.state = State::Error(0, (1 << ERRORS.len()) - 1),
                    _ => self.state = State::Skip,
                },
                State::Error(seen, possible) => {
                    self.state = self.error_line(seen, possible, byte);
                    if self.state != State::Skip && self.state != State::LineStart {
                        *bytes = rest;
                    } else if self.state == State::LineStart {
                        // Consumes the line ending, which ends no event.
                        *bytes = rest;
                        self.after_return = byte == b'\r';
                    }
                }
                State::Name(seen) => match (FIELD.get(usize::from(seen)), byte) {
                    (Some(expected), _) if *expected == byte => {
                        self.state = State::Name(seen + 1);
                        *bytes = rest;
                    }
                    (None, b':') => {
                        self.begin_data(State::Colon);
                        *bytes = rest;
                    }
                    (None, b'\n' | b'\r') => self.begin_data(State::Data),
                    _ => self.state = State::Skip,
                },
                State::Colon => {
                    self.state = State::Data;
                    if byte == b' ' {
                        *bytes = rest;
                    }
                }
                State::Data => {
                    if self.join {
                        self.join = false;
                        return Some(Piece::Join);
                    }
                    let part = self.rest_of_line(bytes);
                    if !part.is_empty() {
                        return Some(Piece::Part(part));
                    }
                }
                State::Skip => {
                    self.rest_of_line(bytes);
                }
            }
        }
        None
    }

    /// Returns the available bytes from the value of an event's first data line on, without consuming them. `None`
    /// unless the stream is at this line, or at the `event` line before it. The bytes may extend past the line.
    pub fn peek<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.has_data || self.after_return || self.state != State::LineStart {
            return None;
        }
        let value = match bytes.first()? {
            b'd' => bytes,
            _ => after_event_line(bytes)?,
        };
        let value = value.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    }

    /// Marks the line returned by [`SseFramer::peek`] as consumed by the caller, including its line feed.
    pub fn take_line(&mut self) {
        self.has_data = true;
    }

    /// True if the event that just ended was marked as an error, by its name or its field.
    pub fn take_error(&mut self) -> bool {
        std::mem::take(&mut self.is_error)
    }

    /// The state after this byte of a line that may mark an error.
    fn error_line(&mut self, seen: u8, possible: u8, byte: u8) -> State {
        let mut left = 0;
        for (place, (line, open)) in ERRORS.iter().enumerate() {
            let is_possible = possible & 1 << place != 0;
            match line.get(usize::from(seen)) {
                Some(expected) if is_possible && *expected == byte => {
                    left |= 1 << place;
                    self.is_error |= *open && usize::from(seen) + 1 == line.len();
                }
                None if is_possible && matches!(byte, b'\n' | b'\r') => {
                    self.is_error = true;
                    return State::LineStart;
                }
                _ => {}
            }
        }
        if left == 0 { State::Skip } else { State::Error(seen + 1, left) }
    }

    /// Ends the stream; returns true if an event was still open.
    pub fn finish(&mut self) -> bool {
        self.state = State::LineStart;
        self.after_return = false;
        self.end_event()
    }

    fn begin_data(&mut self, state: State) {
        self.state = state;
        self.join = self.has_data;
        self.has_data = true;
    }

    fn end_event(&mut self) -> bool {
        self.join = false;
        std::mem::take(&mut self.has_data) || self.is_error
    }

    /// The value of the data line that begins here, if it is complete and the event's first data line.
    fn whole_line<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        if self.has_data {
            return None;
        }
        let value = bytes.strip_prefix(b"data:")?;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let end = memchr2(b'\n', b'\r', value)?;
        let (line, rest) = value.split_at_checked(end)?;
        let (end, rest) = rest.split_first()?;
        self.after_return = *end == b'\r';
        self.has_data = true;
        *bytes = rest;
        Some(line)
    }

    /// Removes the rest of the line from `bytes`, including its line ending, and returns it.
    fn rest_of_line<'a>(&mut self, bytes: &mut &'a [u8]) -> &'a [u8] {
        let all = *bytes;
        let Some((line, end)) = memchr2(b'\n', b'\r', all).and_then(|end| all.split_at_checked(end)) else {
            *bytes = &[];
            return all;
        };
        if let Some((byte, rest)) = end.split_first() {
            self.state = State::LineStart;
            self.after_return = *byte == b'\r';
            *bytes = rest;
        }
        line
    }
}

/// Returns the bytes after the `event` line that begins here, if the line is complete including its line feed.
fn after_event_line(bytes: &[u8]) -> Option<&[u8]> {
    let name = bytes.strip_prefix(b"event:")?;
    let (name, rest) = name.split_at_checked(memchr2(b'\n', b'\r', name)?)?;
    rest.strip_prefix(b"\n").filter(|_| name.trim_ascii() != b"error")
}

/// Detects event data that begins with `[DONE]`, which is not JSON. Input may be split at any byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DoneMark {
    matched: u8,
    decided: bool,
}

/// The result after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// Undecided: the data so far is a prefix of the marker, and is held back.
    Open,
    /// The data is the marker.
    Done,
    /// The data is not the marker. Contains the bytes held back before, and the current bytes.
    NotDone(&'static [u8], &'a [u8]),
}

impl DoneMark {
    /// The marker, in any case. Clients test for this prefix, so the decoder does too.
    const WORD: &'static [u8] = b"[DONE]";

    /// True if the data is the marker.
    pub(crate) fn matches(data: &[u8]) -> bool {
        data.get(..Self::WORD.len()).is_some_and(|start| start.eq_ignore_ascii_case(Self::WORD))
    }

    /// Processes the next bytes of the data.
    pub(crate) fn take<'a>(&mut self, bytes: &'a [u8]) -> Verdict<'a> {
        if self.is_set() {
            return Verdict::Done;
        }
        if self.decided {
            return Verdict::NotDone(&[], bytes);
        }
        let held_back = self.held_back();
        for byte in bytes {
            if self.is_set() {
                break;
            }
            if Self::WORD.get(usize::from(self.matched)) != Some(&byte.to_ascii_uppercase()) {
                self.rule_out();
                return Verdict::NotDone(held_back, bytes);
            }
            self.matched += 1;
        }
        if self.is_set() { Verdict::Done } else { Verdict::Open }
    }

    /// Records that the whole marker was seen.
    pub(crate) fn set(&mut self) {
        self.matched = Self::WORD.len() as u8;
    }

    /// Records that the data is not the marker.
    pub(crate) fn rule_out(&mut self) {
        *self = Self { matched: 0, decided: true };
    }

    /// True once the whole marker was seen.
    pub(crate) fn is_set(&self) -> bool {
        usize::from(self.matched) == Self::WORD.len()
    }

    /// The bytes seen so far that may become the marker.
    pub(crate) fn held_back(&self) -> &'static [u8] {
        Self::WORD.get(..usize::from(self.matched)).unwrap_or_default()
    }
}
