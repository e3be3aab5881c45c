//! A resumable protobuf scanner: extracts the values of known fields. Input may be split at any byte.
//!
//! Like the JSON scanner, it builds no tree. Fields that are not in the tables are skipped by length.

/// Maximum nesting depth of scanned messages; deeper messages are skipped.
const DEPTH: usize = 6;

/// The known fields of a message, by number.
#[derive(Debug)]
pub(crate) struct Fields<P: 'static>(pub(crate) &'static [(u32, Shape<P>)]);

/// The type of a known field.
#[derive(Debug)]
pub(crate) enum Shape<P: 'static> {
    /// A message.
    Message(P, &'static Fields<P>),
    /// An integer, boolean or enumeration value, or a packed sequence of them.
    Number(P),
    /// A string or bytes.
    Bytes(P),
}

/// Receives the values that the scanner finds.
pub(crate) trait Sink<P> {
    /// A message or string begins; `length` is in bytes.
    fn begin(&mut self, place: P, length: u64);
    /// A part of a string; empty strings have none.
    fn part(&mut self, place: P, part: &[u8]);
    /// A message or string is complete.
    fn end(&mut self, place: P);
    /// A number as encoded. Negative values have all upper bits set.
    fn number(&mut self, place: P, value: u64);
}

/// An open message.
#[derive(Clone, Copy, Debug)]
struct Open<P: 'static> {
    fields: &'static Fields<P>,
    /// The end of the message, as a byte offset in the outermost message.
    end: u64,
    /// `None` for the outermost message.
    place: Option<P>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At<P> {
    /// In a field's number and wire type.
    Key,
    /// In a number; `None` if its place is unknown.
    Number(Option<P>),
    /// In the length of the field with this number.
    Length(u32),
    /// In a packed sequence of numbers that ends at this offset.
    Packed(P, u64),
    /// In a string that ends at this offset.
    Bytes(P, u64),
    /// In a skipped field that ends at this offset.
    Skipped(u64),
    /// After data that is not protobuf.
    Broken,
}

/// Scans consecutive messages.
#[derive(Clone, Debug)]
pub(crate) struct Scanner<P: Copy + 'static> {
    open: [Open<P>; DEPTH],
    depth: usize,
    at: At<P>,
    /// Number of bytes of the message so far.
    read: u64,
    /// The current integer so far, and its number of bits.
    value: u64,
    bits: u8,
}

impl<P: Copy + PartialEq + 'static> Scanner<P> {
    /// A scanner at the start of a message with these fields.
    pub(crate) fn new(fields: &'static Fields<P>) -> Self {
        let outermost = Open { fields, end: u64::MAX, place: None };
        Self { open: [outermost; DEPTH], depth: 0, at: At::Key, read: 0, value: 0, bits: 0 }
    }

    /// Ends the message and prepares for the next; returns true if the message was complete.
    pub(crate) fn finish(&mut self) -> bool {
        let whole = self.at == At::Key && self.bits == 0 && self.depth == 0;
        (self.depth, self.at, self.read, self.value, self.bits) = (0, At::Key, 0, 0, 0);
        whole
    }

    /// Scans the next bytes of the message.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], sink: &mut impl Sink<P>) {
        loop {
            self.close(sink);
            let (end, place) = match self.at {
                At::Broken => return,
                At::Bytes(place, end) => (end, Some(place)),
                At::Skipped(end) => (end, None),
                At::Key | At::Number(_) | At::Length(_) | At::Packed(..) => {
                    let Some((byte, rest)) = bytes.split_first() else { return };
                    bytes = rest;
                    self.read += 1;
                    self.integer(*byte, sink);
                    continue;
                }
            };
            if bytes.is_empty() {
                return;
            }
            let here = usize::try_from(end - self.read).unwrap_or(usize::MAX).min(bytes.len());
            let (part, rest) = bytes.split_at_checked(here).unwrap_or((bytes, &[]));
            bytes = rest;
            self.read += here as u64;
            if let Some(place) = place {
                sink.part(place, part);
            }
        }
    }

    /// Closes all fields and messages that end at the current offset.
    fn close(&mut self, sink: &mut impl Sink<P>) {
        match self.at {
            At::Bytes(place, end) if end == self.read => {
                sink.end(place);
                self.at = At::Key;
            }
            At::Skipped(end) if end == self.read => self.at = At::Key,
            At::Packed(_, end) if end == self.read && self.bits == 0 => self.at = At::Key,
            // A number extends past the end of its sequence.
            At::Packed(_, end) if end <= self.read => self.at = At::Broken,
            _ => {}
        }
        while self.depth > 0
            && let Some(Open { end, place, .. }) = self.open.get(self.depth).copied()
            && end <= self.read
            && self.at != At::Broken
        {
            // The message ends inside a field, or a field extends past the end of the message.
            if self.at != At::Key || self.bits > 0 || end < self.read {
                self.at = At::Broken;
                return;
            }
            if let Some(place) = place {
                sink.end(place);
            }
            self.depth -= 1;
        }
    }

    /// Processes the next byte of an integer.
    fn integer(&mut self, byte: u8, sink: &mut impl Sink<P>) {
        if self.bits >= 64 {
            self.at = At::Broken;
            return;
        }
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        if byte & 0x80 != 0 {
            return;
        }
        let value = std::mem::take(&mut self.value);
        self.bits = 0;
        self.at = match self.at {
            At::Key => self.begin_field(value),
            At::Length(number) => self.begin_content(number, value, sink),
            At::Packed(place, end) => {
                sink.number(place, value);
                At::Packed(place, end)
            }
            At::Number(place) => {
                if let Some(place) = place {
                    sink.number(place, value);
                }
                At::Key
            }
            other => other,
        };
    }

    fn shape(&self, number: u32) -> Option<&'static Shape<P>> {
        let fields: &'static Fields<P> = self.open.get(self.depth)?.fields;
        fields.0.iter().find(|(known, _)| *known == number).map(|(_, shape)| shape)
    }

    /// Starts a field, whose number and wire type are in `key`.
    fn begin_field(&mut self, key: u64) -> At<P> {
        let Some(number) = u32::try_from(key >> 3).ok().filter(|number| *number > 0) else { return At::Broken };
        match key & 7 {
            0 => match self.shape(number) {
                Some(Shape::Number(place)) => At::Number(Some(*place)),
                _ => At::Number(None),
            },
            1 => At::Skipped(self.read + 8),
            2 => At::Length(number),
            5 => At::Skipped(self.read + 4),
            // Groups are deprecated and no longer used.
            _ => At::Broken,
        }
    }

    fn begin_content(&mut self, number: u32, length: u64, sink: &mut impl Sink<P>) -> At<P> {
        let Some(end) = self.read.checked_add(length) else { return At::Broken };
        if self.open.get(self.depth).is_none_or(|open| end > open.end) {
            return At::Broken;
        }
        match self.shape(number) {
            Some(Shape::Bytes(place)) => {
                sink.begin(*place, length);
                At::Bytes(*place, end)
            }
            Some(Shape::Number(place)) => At::Packed(*place, end),
            Some(Shape::Message(place, fields)) => match self.open.get_mut(self.depth + 1) {
                Some(open) => {
                    *open = Open { fields, end, place: Some(*place) };
                    self.depth += 1;
                    sink.begin(*place, length);
                    At::Key
                }
                None => At::Skipped(end),
            },
            None => At::Skipped(end),
        }
    }
}
