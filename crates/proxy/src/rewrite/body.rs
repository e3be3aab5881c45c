//! Request bodies that are changed: they are collected, then edited as a whole.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use tokometer_wire::budget::Budget;
use tokometer_wire::coding::{Codings, Decoder, Limits};

use crate::relay::Outcome;
use crate::rewrite::include_usage::{self, Unchanged};

/// Maximum bytes of bodies that are collected at a time, over all connections. Further requests pass unmodified.
const COLLECTED_BYTES: usize = 64 << 20;

/// Bodies above this size are parsed outside of the data path's threads: a large one takes milliseconds.
const INLINE_BYTES: usize = 64 << 10;

/// Decoded bytes that each byte of a coded body pays for: a prompt is not smaller.
const RATIO: u64 = 200;

/// Bytes held by all collected bodies of the process.
static COLLECTED: AtomicUsize = AtomicUsize::new(0);

/// A body that is being collected.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    codings: Option<Codings>,
    max: usize,
    /// Bytes counted in [`COLLECTED`].
    counted: usize,
}

impl Body {
    /// Begins to collect the body of a request with these headers.
    pub(crate) fn new(headers: &HeaderMap, max: usize) -> Body {
        // SGLang has its own header for coded requests (0.5, `SGLANG_ENABLE_REQUEST_DECOMPRESSION`).
        let codings = if headers.contains_key("x-body-compressed") {
            None
        } else {
            Codings::of(headers.get_all("content-encoding").iter().map(|value| value.as_bytes())).ok()
        };
        Body { bytes: Vec::new(), codings, max, counted: 0 }
    }

    /// Adds a piece. False if the body is too large to be changed, or too many are collected: it has to be sent as it
    /// is.
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        self.bytes.extend_from_slice(piece);
        self.counted += piece.len();
        let all = COLLECTED.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        self.bytes.len() <= self.max && all <= COLLECTED_BYTES
    }

    /// Bytes collected so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if the body is compressed, so that a changed one is sent without its coding.
    pub(crate) fn is_coded(&self) -> bool {
        self.codings.is_none_or(|codings| !codings.is_empty())
    }

    /// The bytes collected so far, unchanged.
    pub(crate) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }

    /// The complete body, changed if possible, and what was done.
    pub(crate) async fn edited(&mut self) -> (Bytes, Outcome) {
        let bytes = std::mem::take(&mut self.bytes);
        let (codings, max) = (self.codings, self.max);
        if bytes.len() <= INLINE_BYTES && !self.is_coded() {
            return edited(bytes, codings, max);
        }
        let original = Bytes::from(bytes);
        let copy = original.clone();
        let edit = tokio::task::spawn_blocking(move || edited(copy.into(), codings, max));
        // An error means that the runtime stops.
        edit.await.unwrap_or((original, Outcome::NotJson))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        COLLECTED.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

fn edited(bytes: Vec<u8>, codings: Option<Codings>, max: usize) -> (Bytes, Outcome) {
    let Some(codings) = codings else { return (bytes.into(), Outcome::Encoded) };
    if codings.is_empty() {
        return match include_usage::edit(&bytes) {
            Ok(edit) => (edit.apply(&bytes).into(), Outcome::Changed),
            Err(why) => (bytes.into(), why.into()),
        };
    }
    let Some(plain) = decoded(&bytes, codings, max) else { return (bytes.into(), Outcome::Encoded) };
    match include_usage::edit(&plain) {
        Ok(edit) => (edit.apply(&plain).into(), Outcome::Changed),
        Err(why) => (bytes.into(), why.into()),
    }
}

/// The body without its codings; `None` if it cannot be decoded, or is larger than `max`.
fn decoded(bytes: &[u8], codings: Codings, max: usize) -> Option<Vec<u8>> {
    const PIECE_BYTES: usize = 4096;
    let account = Budget::new(COLLECTED_BYTES).account(None, RATIO);
    let mut decoder = Decoder::new(codings, Limits::default(), account.clone());
    let mut plain = Vec::new();
    for piece in bytes.chunks(PIECE_BYTES) {
        account.earn(piece.len());
        decoder.feed(piece, &mut |slice| plain.extend_from_slice(slice)).ok()?;
        if plain.len() > max {
            return None;
        }
    }
    Some(plain)
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
