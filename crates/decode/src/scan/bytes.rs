//! Byte classes, searches, and string escapes.

use memchr::memchr2;

const SCALAR_END: u8 = 1;
const NUMBER: u8 = 2;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' => SCALAR_END,
            b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E' => NUMBER,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

/// True for a byte that ends a number or a literal.
#[inline]
pub(super) fn is_scalar_end(byte: u8) -> bool {
    CLASSES[usize::from(byte)] == SCALAR_END
}

/// True for a byte that may occur in a number.
#[inline]
pub(super) fn is_number_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] == NUMBER
}

/// The index of the first quote or backslash.
#[inline]
pub(super) fn string_stop(bytes: &[u8]) -> Option<usize> {
    /// Number of 8-byte words searched before `memchr` is called. Most token texts, and all keys of `usage`, end within
    /// them.
    const SHORT: usize = 4;
    let (words, _) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().take(SHORT).enumerate() {
        let word = u64::from_le_bytes(*word);
        let stops = zero_bytes(word ^ repeated(b'"')) | zero_bytes(word ^ repeated(b'\\'));
        if stops != 0 {
            return Some(at * 8 + stops.trailing_zeros() as usize / 8);
        }
    }
    let seen = words.len().min(SHORT) * 8;
    memchr2(b'"', b'\\', bytes.get(seen..).unwrap_or_default()).map(|place| place + seen)
}

/// The index of the first quote, brace or bracket.
#[inline]
pub(super) fn nested_stop(bytes: &[u8]) -> Option<usize> {
    /// The bit that distinguishes a brace from the corresponding bracket.
    const BRACE: u64 = repeated(b'{' ^ b'[');
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let braces = word | BRACE;
        let stops = zero_bytes(word ^ repeated(b'"'))
            | zero_bytes(braces ^ repeated(b'{'))
            | zero_bytes(braces ^ repeated(b'}'));
        if stops != 0 {
            return Some(at * 8 + stops.trailing_zeros() as usize / 8);
        }
    }
    let place = rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))?;
    Some(words.len() * 8 + place)
}

const fn repeated(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// Sets the highest bit of the lowest zero byte, and of no byte below it; bits in higher bytes may be set too.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(0x01)) & !word & repeated(0x80)
}

/// A byte that is never valid in UTF-8. It replaces undecodable input and so makes the whole word invalid.
const INVALID: &[u8] = &[0xff];

/// The state of an escape (RFC 8259 section 7) after a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// More bytes follow.
    Open,
    /// The byte completes the escape.
    Complete,
    /// The byte is not part of the escape and must still be parsed: a quote there ends the string.
    Broken,
}

/// The state of an incomplete escape.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unescape {
    /// The first half of a surrogate pair, or 0.
    high: u16,
    /// The value of the hex digits so far.
    unit: u16,
    /// Remaining hex digits; 0 right after the backslash.
    digits_left: u8,
}

impl Unescape {
    /// Processes one byte after the backslash, and emits the decoded bytes.
    pub(super) fn push(&mut self, byte: u8, out: &mut impl FnMut(&[u8])) -> Escape {
        if self.digits_left > 0 {
            return self.push_digit(byte, out);
        }
        let decoded = match byte {
            b'u' => {
                self.digits_left = 4;
                self.unit = 0;
                return Escape::Open;
            }
            b'"' => b"\"",
            b'\\' => b"\\",
            b'/' => b"/",
            b'b' => b"\x08",
            b'f' => b"\x0c",
            b'n' => b"\n",
            b'r' => b"\r",
            b't' => b"\t",
            _ => INVALID,
        };
        self.settle(out);
        out(decoded);
        Escape::Complete
    }

    /// Emits [`INVALID`] for a first surrogate that is not followed by a second.
    pub(super) fn settle(&mut self, out: &mut impl FnMut(&[u8])) {
        if self.high != 0 {
            self.high = 0;
            out(INVALID);
        }
    }

    fn push_digit(&mut self, byte: u8, out: &mut impl FnMut(&[u8])) -> Escape {
        let Some(digit) = char::from(byte).to_digit(16) else {
            *self = Self::default();
            out(INVALID);
            return Escape::Broken;
        };
        self.unit = self.unit << 4 | digit as u16;
        self.digits_left -= 1;
        if self.digits_left > 0 {
            return Escape::Open;
        }
        match self.unit {
            0xd800..=0xdbff => {
                self.settle(out);
                self.high = self.unit;
            }
            low @ 0xdc00..=0xdfff if self.high != 0 => {
                let code = 0x10000 + ((u32::from(self.high) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
                self.high = 0;
                encode(code, out);
            }
            unit => {
                self.settle(out);
                encode(u32::from(unit), out);
            }
        }
        Escape::Complete
    }
}

fn encode(code: u32, out: &mut impl FnMut(&[u8])) {
    match char::from_u32(code) {
        Some(decoded) => out(decoded.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out(INVALID),
    }
}
