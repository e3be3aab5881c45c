//! The state machine of the JSON scanner.

use super::bytes::{Escape, Unescape, is_number_byte, is_scalar_end, nested_stop, string_stop};
use super::partial::Capture;
use super::position::State;
use super::{Place, Position, Shape, Sink};

/// Maximum length of keys and numbers that are read. Known keys are shorter, and so are numbers: the shortest exact
/// form of a double has at most 24 characters.
const LONGEST: usize = 36;

/// Where [`Scanner::feed`] pauses before the end of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nowhere.
    Never,
    /// After the opening quote of a [`Shape::Text`] string.
    TextStart,
    /// After the closing quote of the current string.
    TextEnd,
    /// Before the value of each member of the top-level object.
    Member,
}

/// Scans consecutive JSON texts; see the module documentation.
///
/// Accepts some invalid texts, because rejecting them has no benefit: control characters in strings, leading zeros, and
/// mismatched brackets inside a skipped container.
#[derive(Clone, Copy, Debug)]
pub struct Scanner<P> {
    position: Position<P>,
    /// Number of open containers in a skipped value, including the outermost.
    nested: u32,
    partial: Capture<LONGEST>,
    unescape: Unescape,
}

impl<P: Place> Scanner<P> {
    /// A scanner at the start of a text whose top-level value is at `root`.
    pub fn new(root: P) -> Self {
        let position = Position::before(root);
        Self { position, nested: 0, partial: Capture::default(), unescape: Unescape::default() }
    }

    /// Resets the scanner for the next text.
    pub fn restart(&mut self, root: P) {
        self.position = Position::before(root);
        self.partial.clear();
        self.unescape = Unescape::default();
    }

    /// The current position. At a pause of [`Scanner::feed`], this is the whole state.
    pub fn position(&self) -> Position<P> {
        self.position
    }

    /// Sets the position. It must be one that [`Scanner::position`] returned at a pause; the next [`Scanner::feed`]
    /// continues from there.
    pub fn resume_at(&mut self, position: Position<P>) {
        self.position = position;
    }

    /// True while only white space was seen.
    pub fn is_untouched(&self) -> bool {
        self.position.state == State::Value && self.position.is_top()
    }

    /// True once the top-level value is complete.
    pub fn is_done(&self) -> bool {
        self.position.state == State::Done
    }

    /// True where [`Pause::TextStart`] stops.
    pub fn is_at_text(&self) -> bool {
        self.position.state == State::Text
    }

    /// True if the next byte is the first of the value at `place`, or white space before it.
    pub fn is_before(&self, place: P) -> bool {
        self.position.state == State::Value && self.position.place == Some(place)
    }

    /// True where [`Pause::Member`] stops.
    pub fn is_before_member(&self) -> bool {
        self.position.is_before_member()
    }

    /// Before the object at `place`: enters the object and continues after some of its members, which the caller has
    /// already parsed. The state does not depend on which members were parsed, because the next key determines the
    /// place of the next value. Returns false if the stack is full.
    pub fn skip_members(&mut self, place: P) -> bool {
        let has_room = self.position.descend(place, true);
        if has_room {
            self.position.end_value();
        }
        has_room
    }

    /// Ends the text, which completes a top-level number or literal.
    pub fn finish<S: Sink<P>>(&mut self, sink: &mut S) {
        if self.position.state == State::Scalar {
            self.end_scalar(&[], sink);
        }
    }

    /// Scans the next bytes of the text. Returns the number of bytes consumed: all, unless the scanner paused.
    pub fn feed<S: Sink<P>>(&mut self, bytes: &[u8], pause: Pause, sink: &mut S) -> usize {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            match self.position.state {
                State::Value | State::FirstValue => match byte {
                    b' ' | b'\n' | b'\r' | b'\t' => at += 1,
                    b']' if self.position.state == State::FirstValue => {
                        self.position.ascend();
                        at += 1;
                    }
                    _ => {
                        at += usize::from(self.begin_value(byte, sink));
                        match self.position.state {
                            State::Scalar => at = self.take_scalar(bytes, at, sink),
                            State::Text if pause == Pause::TextStart => return at,
                            _ => {}
                        }
                    }
                },
                State::FirstKey | State::NextKey => {
                    match byte {
                        b' ' | b'\n' | b'\r' | b'\t' => {}
                        b'"' => self.begin_key(),
                        b'}' if self.position.state == State::FirstKey => self.position.ascend(),
                        _ => self.position.state = State::Broken,
                    }
                    at += 1;
                }
                State::Key => {
                    at = self.take_key(bytes, at);
                    if pause == Pause::Member && self.position.is_before_member() {
                        return at;
                    }
                }
                State::KeyEscape => {
                    let partial = &mut self.partial;
                    let escape = self.unescape.push(byte, &mut |part| partial.push(part));
                    if escape != Escape::Open {
                        // No known key has a character that needs two escapes.
                        self.unescape.settle(&mut |part| partial.push(part));
                        self.position.state = State::Key;
                    }
                    at += usize::from(escape != Escape::Broken);
                }
                State::Colon => {
                    match byte {
                        b' ' | b'\n' | b'\r' | b'\t' => {}
                        b':' => self.position.state = State::Value,
                        _ => self.position.state = State::Broken,
                    }
                    at += 1;
                }
                State::AfterValue => at = self.after_value(bytes, at),
                State::Text => {
                    self.position.state = State::String;
                    if let Some(place) = self.position.place {
                        sink.text(place, byte == b'"');
                        if sink.wants_text(place) {
                            self.position.state = State::Word;
                        }
                    }
                }
                State::String => {
                    at = self.skip_string(bytes, at);
                    if pause == Pause::TextEnd && self.position.has_ended_value() {
                        return at;
                    }
                }
                State::StringEscape => {
                    self.position.state = State::String;
                    at += 1;
                }
                State::Word => at = self.take_word(bytes, at, sink),
                State::WordEscape => {
                    let escape = match self.position.place {
                        Some(place) => self.unescape.push(byte, &mut |part| sink.word_part(place, part)),
                        None => Escape::Complete,
                    };
                    if escape != Escape::Open {
                        self.position.state = State::Word;
                    }
                    at += usize::from(escape != Escape::Broken);
                }
                State::Scalar => at = self.take_scalar(bytes, at, sink),
                State::Nested => at = self.skip_nested(bytes, at),
                State::NestedString => at = self.skip_string(bytes, at),
                State::NestedEscape => {
                    self.position.state = State::NestedString;
                    at += 1;
                }
                State::Done => {
                    if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                        self.position.state = State::Broken;
                    }
                    at += 1;
                }
                State::Broken => return bytes.len(),
            }
        }
        at
    }

    /// Starts a value with this byte. Returns true if the byte was consumed.
    fn begin_value<S: Sink<P>>(&mut self, byte: u8, sink: &mut S) -> bool {
        let place = self.position.place;
        let shape = place.map(|place| {
            sink.begin(place, byte);
            (place, place.shape())
        });
        self.position.state = match (byte, shape) {
            (b'{', Some((place, shape))) if shape.keys().is_some() && self.position.descend(place, true) => {
                State::FirstKey
            }
            (b'[', Some((place, shape))) if shape.element().is_some() && self.position.descend(place, false) => {
                self.position.place = shape.element();
                State::FirstValue
            }
            (b'{' | b'[', _) => {
                self.nested = 1;
                State::Nested
            }
            (b'"', Some((_, shape))) if shape.is_text() => State::Text,
            (b'"', Some((place, shape))) if shape.is_word() && sink.wants_word(place) => State::Word,
            (b'"', _) => State::String,
            // Python's encoder also writes NaN, Infinity and -Infinity.
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I', _) => {
                self.partial.clear();
                self.position.state = State::Scalar;
                return false;
            }
            _ => State::Broken,
        };
        true
    }

    /// Inside a key; returns the index after the consumed bytes.
    fn take_key(&mut self, bytes: &[u8], start: usize) -> usize {
        let rest = bytes.get(start..).unwrap_or_default();
        let Some(len) = string_stop(rest) else {
            self.partial.push(rest);
            return bytes.len();
        };
        let (part, end) = rest.split_at_checked(len).unwrap_or((rest, &[]));
        if end.first() == Some(&b'\\') {
            self.partial.push(part);
            self.position.state = State::KeyEscape;
            return start + len + 1;
        }
        self.position.place = match (self.partial.complete(part), self.position.container()) {
            (Some(key), Some(shape)) => shape.keys().and_then(|keys| match keys.find(key) {
                None if P::FOLDS && !key.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'_')) => {
                    keys.find_folded(key).and_then(P::folded)
                }
                place => place,
            }),
            (None, Some(shape)) => shape.keys().and_then(|keys| keys.others()),
            (_, None) => None,
        };
        // Fast path: all known servers write the colon directly after the key.
        if end.get(1) == Some(&b':') {
            self.position.state = State::Value;
            return start + len + 2;
        }
        self.position.state = State::Colon;
        start + len + 1
    }

    /// After a value. Consumes a comma with the quote of the next key, or all closing brackets; returns the index after
    /// the consumed bytes.
    fn after_value(&mut self, bytes: &[u8], start: usize) -> usize {
        let mut at = start;
        while let (State::AfterValue, Some(byte)) = (self.position.state, bytes.get(at)) {
            at += 1;
            match (byte, self.position.is_in_object()) {
                (b',', true) => {
                    self.position.state = State::NextKey;
                    if bytes.get(at) == Some(&b'"') {
                        self.begin_key();
                        at += 1;
                    }
                }
                (b',', false) => {
                    self.position.place = self.position.container().and_then(|shape| shape.element());
                    self.position.state = State::Value;
                }
                (b'}', true) | (b']', false) => self.position.ascend(),
                (b' ' | b'\n' | b'\r' | b'\t', _) => {}
                _ => self.position.state = State::Broken,
            }
        }
        at
    }

    fn begin_key(&mut self) {
        self.partial.clear();
        self.position.state = State::Key;
    }

    /// Inside a skipped string; returns the index after the consumed bytes.
    fn skip_string(&mut self, bytes: &[u8], start: usize) -> usize {
        let in_nested = self.position.state == State::NestedString;
        let mut at = start;
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(len) = string_stop(rest) else { return bytes.len() };
            at += len + 1;
            match (rest.get(len), in_nested) {
                (Some(b'"'), true) => self.position.state = State::Nested,
                (Some(b'"'), false) => self.position.end_value(),
                // The byte after the backslash is available, so the escape state need not be stored.
                _ if at < bytes.len() => {
                    at += 1;
                    continue;
                }
                (_, true) => self.position.state = State::NestedEscape,
                (_, false) => self.position.state = State::StringEscape,
            }
            return at;
        }
    }

    /// Inside a wanted string; returns the index after the consumed bytes.
    fn take_word<S: Sink<P>>(&mut self, bytes: &[u8], start: usize, sink: &mut S) -> usize {
        let Some(place) = self.position.place else {
            self.position.state = State::String;
            return start;
        };
        let rest = bytes.get(start..).unwrap_or_default();
        let len = string_stop(rest).unwrap_or(rest.len());
        let (part, end) = rest.split_at_checked(len).unwrap_or((rest, &[]));
        let closes = end.first() == Some(&b'"');
        if !part.is_empty() || closes {
            self.unescape.settle(&mut |part| sink.word_part(place, part));
        }
        if !part.is_empty() {
            sink.word_part(place, part);
        }
        if closes {
            sink.word_end(place);
            self.position.end_value();
        } else if !end.is_empty() {
            self.position.state = State::WordEscape;
        }
        start + len + usize::from(!end.is_empty())
    }

    /// Inside a number or literal; returns the index after the consumed bytes.
    fn take_scalar<S: Sink<P>>(&mut self, bytes: &[u8], start: usize, sink: &mut S) -> usize {
        let rest = bytes.get(start..).unwrap_or_default();
        if let [b'n', b'u', b'l', b'l', end, ..] = rest
            && is_scalar_end(*end)
            && self.partial.is_empty()
        {
            self.position.end_value();
            return start + 4;
        }
        match rest.iter().position(|byte| is_scalar_end(*byte)) {
            Some(len) => {
                let part = rest.get(..len).unwrap_or_default();
                self.end_scalar(part, sink);
                start + len
            }
            None => {
                self.partial.push(rest);
                bytes.len()
            }
        }
    }

    /// Ends the number or literal; `last` contains its last bytes.
    fn end_scalar<S: Sink<P>>(&mut self, last: &[u8], sink: &mut S) {
        self.position.end_value();
        let Some(whole) = self.partial.complete(last) else { return };
        match whole {
            b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity" => {}
            _ if !whole.iter().all(|byte| is_number_byte(*byte)) => {
                self.position.state = State::Broken;
            }
            _ => {
                if let Some(place) = self.position.place
                    && matches!(place.shape(), Shape::Number)
                {
                    sink.number(place, whole);
                }
            }
        }
    }

    /// Inside a skipped container; returns the index after the consumed bytes.
    fn skip_nested(&mut self, bytes: &[u8], start: usize) -> usize {
        let mut at = start;
        while let Some(rest) = bytes.get(at..)
            && let Some(len) = nested_stop(rest)
        {
            at += len + 1;
            match rest.get(len) {
                Some(b'"') => {
                    self.position.state = State::NestedString;
                    return at;
                }
                Some(b'{' | b'[') => self.nested = self.nested.saturating_add(1),
                _ => {
                    self.nested = self.nested.saturating_sub(1);
                    if self.nested == 0 {
                        self.position.end_value();
                        return at;
                    }
                }
            }
        }
        bytes.len()
    }
}
