//! Escapes of JSON strings (RFC 8259 section 7), resumable at any byte.

/// A byte that is never valid in UTF-8. It replaces undecodable input, so that the whole word is detected as invalid.
const INVALID: &[u8] = &[0xff];

/// The state of an escape after a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// More bytes follow.
    Open,
    /// The byte was its last.
    Complete,
    /// The byte is not part of the escape and must still be read: a quote there ends the string.
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
    /// Takes one byte after the backslash and outputs the decoded bytes.
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

    /// Called when something other than a second surrogate follows: a lone first surrogate is invalid.
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
