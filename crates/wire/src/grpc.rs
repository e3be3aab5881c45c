//! The messages of a gRPC body (gRPC over HTTP/2, "Length-Prefixed-Message"), decompressed, split at any byte.

use crate::budget::Credit;
use crate::coding::{Coding, Limits, Series, Unreadable};
use crate::slices::{Prefix, take};

/// A compressed flag and a 32-bit length.
const PREFIX_BYTES: usize = 5;

/// A parsed part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The next bytes of the message, decompressed; never empty.
    Data(&'a [u8]),
    /// The message is complete. Reported once per message, including empty ones.
    End,
}

/// Parses the messages of one body. Each compressed message is a separate compressed stream.
#[derive(Debug)]
pub struct Messages {
    framer: Framer,
    /// `None` if the headers specify no known coding.
    compressed: Option<Series>,
}

impl Messages {
    /// A parser for a body with this `grpc-encoding` header; decoding costs are charged to `credit`.
    pub fn new(encoding: Option<&[u8]>, limits: Limits, credit: Credit) -> Messages {
        let coding = encoding.and_then(|name| Coding::of_name(name.trim_ascii()));
        Messages { framer: Framer::START, compressed: coding.map(|coding| Series::new(coding, limits, credit)) }
    }

    /// Parses the next bytes of the body and passes the parts to `each`.
    ///
    /// # Errors
    /// When a compressed message cannot be decoded. Do not use the parser afterwards.
    pub fn feed(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), Unreadable> {
        while let Some(part) = self.framer.next(&mut bytes) {
            if part.compressed {
                let series = self.compressed.as_mut().ok_or(Unreadable::UnknownCoding)?;
                series.feed(part.bytes, &mut |slice| each(Event::Data(slice)))?;
                if part.last {
                    series.end(&mut |slice| each(Event::Data(slice)))?;
                }
            } else if !part.bytes.is_empty() {
                each(Event::Data(part.bytes));
            }
            if part.last {
                each(Event::End);
            }
        }
        Ok(())
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    bytes: &'a [u8],
    /// The message is compressed with the coding in `grpc-encoding`.
    compressed: bool,
    /// The message ends here. Every message, even an empty one, has exactly one such part.
    last: bool,
}

/// Finds message boundaries.
#[derive(Clone, Copy, Debug)]
struct Framer {
    prefix: Prefix<PREFIX_BYTES>,
    /// Remaining bytes of the message, once the prefix is complete.
    left: u32,
}

impl Framer {
    /// A framer at the start of the first message.
    const START: Framer = Framer { prefix: Prefix::new(), left: 0 };

    /// The next part in `bytes`, which is advanced past the part. `None` when all bytes are consumed.
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Part<'a>> {
        let begins = self.prefix.len() < PREFIX_BYTES;
        if !self.prefix.fill(PREFIX_BYTES, bytes) {
            return None;
        }
        let [flag, length @ ..] = *self.prefix.bytes();
        if begins {
            self.left = u32::from_be_bytes(length);
        }
        if bytes.is_empty() && self.left > 0 {
            return None;
        }
        let content = take(bytes, self.left.into());
        self.left -= content.len() as u32;
        let last = self.left == 0;
        if last {
            self.prefix.clear();
        }
        Some(Part { bytes: content, compressed: flag & 1 != 0, last })
    }

    /// True between two messages.
    #[cfg(test)]
    fn is_between(&self) -> bool {
        self.prefix.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages found in these reads: flag and content of each; an incomplete one at the end is omitted.
    fn messages(reads: &[&[u8]]) -> (Vec<(bool, Vec<u8>)>, bool) {
        let mut framer = Framer::START;
        let (mut found, mut content) = (Vec::new(), Vec::new());
        for read in reads {
            let mut rest = *read;
            while let Some(part) = framer.next(&mut rest) {
                content.extend_from_slice(part.bytes);
                if part.last {
                    found.push((part.compressed, std::mem::take(&mut content)));
                }
            }
            assert!(rest.is_empty());
        }
        (found, framer.is_between())
    }

    #[test]
    fn messages_are_found_at_any_split() {
        let body = b"\0\0\0\0\x03abc\0\0\0\0\0\x01\0\0\0\x02de\0\0\0\0\x01f";
        let all = vec![(false, b"abc".to_vec()), (false, vec![]), (true, b"de".to_vec()), (false, b"f".to_vec())];
        assert_eq!(messages(&[body]), (all.clone(), true));
        for first in 0..=body.len() {
            for second in first..=body.len() {
                assert_eq!(messages(&[&body[..first], &body[first..second], &body[second..]]), (all.clone(), true));
            }
        }
        assert_eq!(messages(&[&body[..body.len() - 1]]), (all[..3].to_vec(), false));
    }
}
