//! Reads the bytes of a capture file, with errors that contain the position.

use std::io::{self, Read};
use std::time::Duration;

use crate::packet::Link;

/// Maximum length of a packet or block; a larger length means that the file is damaged. The largest packets, of 512
/// KiB, come from segmentation offload.
const MAX_BYTES: u32 = 16 * 1024 * 1024;

/// Why a capture file cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or read.
    #[error("byte {offset}: {error}")]
    Io {
        /// Position in the file.
        offset: u64,
        /// The system error.
        error: io::Error,
    },
    /// The file does not begin like a pcap or pcapng file.
    #[error("byte 0: neither a pcap nor a pcapng file")]
    UnknownFormat,
    /// The file ends within a packet.
    #[error("byte {offset}: the file ends in the middle of a packet; the packets before it were read")]
    Truncated {
        /// Position in the file.
        offset: u64,
    },
    /// The contents of the file are invalid.
    #[error("byte {offset}: {what}")]
    Invalid {
        /// Position in the file.
        offset: u64,
        /// What is invalid.
        what: &'static str,
    },
    /// Packets of a link type that is not supported.
    #[error(
        "byte {offset}: link type {number} is not supported; supported are Ethernet (1), raw IP (101), Linux cooked \
         (113, 276) and BSD loopback (0)"
    )]
    UnsupportedLink {
        /// Position in the file.
        offset: u64,
        /// Number of the link type (<https://www.tcpdump.org/linktypes.html>).
        number: u32,
    },
}

/// The link layer with this number in a file.
pub(super) fn link(number: u32) -> Option<Link> {
    match number {
        // 108 differs only in its byte order.
        0 | 108 => Some(Link::Null),
        1 => Some(Link::Ethernet),
        // 12 and 14: used by some systems instead of 101. 228 and 229: only one IP version.
        12 | 14 | 101 | 228 | 229 => Some(Link::RawIp),
        113 => Some(Link::Cooked),
        276 => Some(Link::Cooked2),
        _ => None,
    }
}

/// A time in ticks, with this many ticks per second.
pub(super) fn duration(ticks: u64, per_second: u64) -> Duration {
    let per_second = per_second.max(1);
    let nanos = u128::from(ticks % per_second) * 1_000_000_000 / u128::from(per_second);
    Duration::from_secs(ticks / per_second) + Duration::from_nanos(nanos as u64)
}

/// Byte order of the numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// Reads a file sequentially.
#[derive(Debug)]
pub(super) struct Input<R> {
    reader: R,
    /// Bytes read so far.
    offset: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R) -> Input<R> {
        Input { reader, offset: 0 }
    }

    /// Position in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// An error at the current position.
    pub(super) fn invalid(&self, what: &'static str) -> Error {
        Error::Invalid { offset: self.offset, what }
    }

    /// Reads `N` bytes; `None` at the end of the file.
    pub(super) fn array_or_end<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Error> {
        let mut bytes = Vec::with_capacity(N);
        self.append(N as u64, &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        match bytes.first_chunk() {
            Some(bytes) => Ok(Some(*bytes)),
            None => Err(Error::Truncated { offset: self.offset }),
        }
    }

    /// Reads `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.array_or_end()?.ok_or(Error::Truncated { offset: self.offset })
    }

    /// Reads this many bytes.
    pub(super) fn bytes(&mut self, len: u32) -> Result<Vec<u8>, Error> {
        if len > MAX_BYTES {
            return Err(self.invalid("the length of a packet is not plausible"));
        }
        // The buffer grows with the bytes read, because the length in the file may be wrong.
        let mut bytes = Vec::new();
        self.append(len.into(), &mut bytes)?;
        if bytes.len() < len as usize {
            return Err(Error::Truncated { offset: self.offset });
        }
        Ok(bytes)
    }

    fn append(&mut self, len: u64, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let read = self.reader.by_ref().take(len).read_to_end(bytes);
        self.offset += bytes.len() as u64;
        read.map(drop).map_err(|error| Error::Io { offset: self.offset, error })
    }
}
