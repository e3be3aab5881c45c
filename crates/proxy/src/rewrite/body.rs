//! Request bodies to be changed: each is collected, then edited as a whole.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use tokometer_wire::budget::Budget;
use tokometer_wire::coding::{Codings, Decoder, Limits};

use crate::relay::Outcome;
use crate::rewrite::include_usage::{self, Unchanged};

/// Maximum bytes of bodies held at a time, over all connections. Above it, further requests pass unmodified.
const HELD_BYTES: usize = 64 << 20;

/// Larger bodies are parsed outside of the data path's threads, because this can take milliseconds.
const INLINE_BYTES: usize = 64 << 10;

/// Maximum decoded bytes per compressed byte; prompts do not compress better.
const RATIO: u64 = 200;

/// Bytes of all bodies that the process holds.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// A part of [`HELD`], released when dropped.
#[derive(Debug, Default)]
struct Share(usize);

impl Share {
    /// Adds this many bytes. False if too many bytes are held.
    fn grow(&mut self, bytes: usize) -> bool {
        self.0 += bytes;
        HELD.fetch_add(bytes, Ordering::Relaxed) + bytes <= HELD_BYTES
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Bytes that count as held until the last reference to them is dropped, usually once they are sent to the server.
struct Counted {
    bytes: Vec<u8>,
    _share: Share,
}

impl Counted {
    fn shared(bytes: Vec<u8>, share: Share) -> Bytes {
        Bytes::from_owner(Counted { bytes, _share: share })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that is being collected.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    codings: Option<Codings>,
    max: usize,
    share: Share,
    /// Bytes that are counted in `share`, but not received yet.
    reserved: usize,
}

impl Body {
    /// Begins to collect the body of a request with these headers.
    pub(crate) fn new(headers: &HeaderMap, max: usize) -> Body {
        // SGLang has its own header for compressed requests (0.5, `SGLANG_ENABLE_REQUEST_DECOMPRESSION`).
        let codings = if headers.contains_key("x-body-compressed") {
            None
        } else {
            Codings::of(headers.get_all("content-encoding").iter().map(|value| value.as_bytes())).ok()
        };
        Body { bytes: Vec::new(), codings, max, share: Share::default(), reserved: 0 }
    }

    /// Reserves the announced length. False if the body is too large to be changed, or too many bytes are held.
    pub(crate) fn reserve(&mut self, length: usize) -> bool {
        self.reserved = length;
        length <= self.max && self.share.grow(length)
    }

    /// Adds a piece. False if the body is too large to be changed, or too many bytes are held: send it unmodified.
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        self.bytes.extend_from_slice(piece);
        let more = piece.len().saturating_sub(self.reserved);
        self.reserved = self.reserved.saturating_sub(piece.len());
        self.bytes.len() <= self.max && (more == 0 || self.share.grow(more))
    }

    /// Bytes collected so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if the body is compressed; a changed body is then sent uncompressed.
    pub(crate) fn is_coded(&self) -> bool {
        self.codings.is_none_or(|codings| !codings.is_empty())
    }

    /// The bytes collected so far, unchanged.
    pub(crate) fn take(&mut self) -> Bytes {
        Counted::shared(std::mem::take(&mut self.bytes), std::mem::take(&mut self.share))
    }

    /// The complete body, changed if possible, and the outcome.
    pub(crate) async fn edited(&mut self) -> (Bytes, Outcome) {
        let (original, codings, max) = (self.take(), self.codings, self.max);
        if original.len() <= INLINE_BYTES && !self.is_coded() {
            return edited(original, codings, max);
        }
        let copy = original.clone();
        let edit = tokio::task::spawn_blocking(move || edited(copy, codings, max));
        // An error means that the runtime is stopping.
        edit.await.unwrap_or((original, Outcome::NotJson))
    }
}

fn edited(original: Bytes, codings: Option<Codings>, max: usize) -> (Bytes, Outcome) {
    let Some(codings) = codings else { return (original, Outcome::Encoded) };
    let plain = if codings.is_empty() { None } else { decoded(&original, codings, max) };
    let body = match &plain {
        Some((plain, _)) => plain,
        None if codings.is_empty() => &original[..],
        None => return (original, Outcome::Encoded),
    };
    match include_usage::edit(body) {
        Ok(edit) => {
            let (bytes, mut share) = (edit.apply(body), Share::default());
            share.grow(bytes.len());
            (Counted::shared(bytes, share), Outcome::Changed)
        }
        Err(why) => (original, why.into()),
    }
}

/// The decompressed body; `None` if it cannot be decoded, is larger than `max`, or too many bytes are held.
fn decoded(bytes: &[u8], codings: Codings, max: usize) -> Option<(Vec<u8>, Share)> {
    const PIECE_BYTES: usize = 4096;
    let account = Budget::new(HELD_BYTES).account(None, RATIO);
    let mut decoder = Decoder::new(codings, Limits::default(), account.clone());
    let (mut plain, mut share) = (Vec::new(), Share::default());
    for piece in bytes.chunks(PIECE_BYTES) {
        account.earn(piece.len());
        let before = plain.len();
        decoder.feed(piece, &mut |slice| plain.extend_from_slice(slice)).ok()?;
        if plain.len() > max || !share.grow(plain.len() - before) {
            return None;
        }
    }
    Some((plain, share))
}

impl From<Unchanged> for Outcome {
    fn from(why: Unchanged) -> Outcome {
        match why {
            Unchanged::Asked => Outcome::Asked,
            Unchanged::NotStreamed => Outcome::NotStreamed,
            Unchanged::NotJson => Outcome::NotJson,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_until_the_server_has_them() {
        let mut body = Body::new(&HeaderMap::new(), 1 << 20);
        assert!(body.reserve(2) && body.add(b"ab") && body.add(b"c"));
        let sent = body.take().slice(1..);
        drop(body);
        assert_eq!(HELD.load(Ordering::Relaxed), 3);
        let mut others = Share::default();
        assert!(others.grow(HELD_BYTES - 3));
        assert!(!Body::new(&HeaderMap::new(), 1 << 20).reserve(1), "too many are held");
        drop(sent);
        assert!(Body::new(&HeaderMap::new(), 1 << 20).reserve(1));
        assert!(!Body::new(&HeaderMap::new(), 1).reserve(2), "too large");
        drop(others);
        assert_eq!(HELD.load(Ordering::Relaxed), 0);
    }
}
