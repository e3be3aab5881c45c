//! The header of a frame (RFC 6455, section 5.2), split at any byte.

/// Maximum header size: two bytes, a length of eight, a mask of four.
const MOST: usize = 14;

/// A parsed frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The last frame of its message.
    pub(super) fin: bool,
    /// RSV1: compressed, on the first frame of a message (RFC 7692, section 6).
    pub(super) compressed: bool,
    /// RSV2 or RSV3: no known extension uses them.
    pub(super) reserved: bool,
    pub(super) opcode: u8,
    /// Bytes of payload.
    pub(super) length: u64,
    pub(super) mask: Option<[u8; 4]>,
}

/// Opcodes (section 11.8). 8 and above are control frames.
pub(super) const CONTINUATION: u8 = 0;
pub(super) const TEXT: u8 = 1;
pub(super) const BINARY: u8 = 2;
pub(super) const CLOSE: u8 = 8;

impl Frame {
    /// A control frame, which may occur between the frames of a message.
    pub(super) fn is_control(&self) -> bool {
        self.opcode >= CLOSE
    }
}

/// A length whose first bit is set, which the RFC does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLength;

/// Collects the bytes of one header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    bytes: [u8; MOST],
    len: u8,
}

impl Header {
    /// Consumes the bytes it needs. `None` while the header is incomplete.
    pub(super) fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, BadLength> {
        loop {
            let have = usize::from(self.len);
            let needed = self.needed();
            if have >= needed {
                return self.frame().map(Some);
            }
            let Some((byte, rest)) = bytes.split_first() else { return Ok(None) };
            *bytes = rest;
            if let Some(place) = self.bytes.get_mut(have) {
                *place = *byte;
            }
            self.len += 1;
        }
    }

    /// The header size in bytes; 2 until the first two bytes are known.
    fn needed(&self) -> usize {
        if self.len < 2 {
            return 2;
        }
        let [_, second, ..] = self.bytes;
        2 + self.length_bytes() + if second & 0x80 == 0 { 0 } else { 4 }
    }

    fn length_bytes(&self) -> usize {
        let [_, second, ..] = self.bytes;
        match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        }
    }

    fn frame(&self) -> Result<Frame, BadLength> {
        let [first, second, a, b, c, d, e, f, g, h, ..] = self.bytes;
        let length = match self.length_bytes() {
            0 => u64::from(second & 0x7f),
            2 => u64::from(u16::from_be_bytes([a, b])),
            _ => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        };
        if length >> 63 == 1 {
            return Err(BadLength);
        }
        let mask = self.bytes.get(2 + self.length_bytes()..).and_then(|rest| rest.first_chunk::<4>());
        Ok(Frame {
            fin: first & 0x80 != 0,
            compressed: first & 0x40 != 0,
            reserved: first & 0x30 != 0,
            opcode: first & 0x0f,
            length,
            mask: mask.copied().filter(|_| second & 0x80 != 0),
        })
    }
}
