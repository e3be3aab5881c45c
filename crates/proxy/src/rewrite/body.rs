//! Request bodies to be changed: each is collected, then edited as a whole.

use std::net::IpAddr;
use std::sync::LazyLock;

use bytes::Bytes;
use http::HeaderMap;
use tokometer_wire::budget::{Account, Budget, Share};
use tokometer_wire::coding::{Codings, Decoder, Limits};

use crate::relay::Outcome;
use crate::rewrite::include_usage::{self, Unchanged};

/// Maximum bytes of bodies held at a time, over all connections. A request or client address may hold at most as many as
/// are still free. Above these limits, requests pass unmodified.
const HELD_BYTES: usize = 64 << 20;

/// Larger bodies are parsed outside of the data path's threads, because this can take milliseconds.
const INLINE_BYTES: usize = 64 << 10;

/// Maximum decoded bytes per compressed byte, against decompression bombs. Prompts do not compress better.
const RATIO: u64 = 200;

/// Bytes of all bodies that the process holds.
static HELD: LazyLock<Budget> = LazyLock::new(|| Budget::new(HELD_BYTES));

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
    account: Account,
    share: Share,
}

impl Body {
    /// Begins to collect the body of a request with these headers, from a client with this address.
    pub(crate) fn new(headers: &HeaderMap, max: usize, client: Option<IpAddr>) -> Body {
        // SGLang has its own header for compressed requests (0.5, `SGLANG_ENABLE_REQUEST_DECOMPRESSION`).
        let codings = if headers.contains_key("x-body-compressed") {
            None
        } else {
            Codings::of(headers.get_all("content-encoding").iter().map(|value| value.as_bytes())).ok()
        };
        let account = HELD.account(client, 0);
        Body { bytes: Vec::new(), codings, max, share: account.share(), account }
    }

    /// True if a body of this length is small enough to be changed.
    pub(crate) fn accepts(&self, length: usize) -> bool {
        length <= self.max
    }

    /// Adds a piece. False if the body is too large to be changed, or too many bytes are held: send it unmodified.
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        self.bytes.extend_from_slice(piece);
        self.accepts(self.bytes.len()) && self.share.hold(self.bytes.len()).is_ok()
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
        Counted::shared(std::mem::take(&mut self.bytes), std::mem::replace(&mut self.share, self.account.share()))
    }

    /// The complete body, changed if possible, and the outcome.
    pub(crate) async fn edited(&mut self) -> (Bytes, Outcome) {
        let (original, codings, max) = (self.take(), self.codings, self.max);
        let share = self.account.share();
        if original.len() <= INLINE_BYTES && !self.is_coded() {
            return edited(original, codings, max, share);
        }
        let copy = original.clone();
        let edit = tokio::task::spawn_blocking(move || edited(copy, codings, max, share));
        // An error means that the runtime is stopping.
        edit.await.unwrap_or((original, Outcome::NotJson))
    }
}

/// `share` holds the changed body.
fn edited(original: Bytes, codings: Option<Codings>, max: usize, mut share: Share) -> (Bytes, Outcome) {
    let Some(codings) = codings else { return (original, Outcome::Encoded) };
    let plain = if codings.is_empty() { None } else { decoded(&original, codings, max, &mut share) };
    let body = match &plain {
        Some(plain) => plain,
        None if codings.is_empty() => &original[..],
        None => return (original, Outcome::Encoded),
    };
    match include_usage::edit(body) {
        Ok(edit) => {
            let bytes = edit.apply(body);
            if share.hold(bytes.len()).is_err() {
                return (original, Outcome::TooLarge);
            }
            (Counted::shared(bytes, share), Outcome::Changed)
        }
        Err(why) => (original, why.into()),
    }
}

/// The decompressed body; `None` if it cannot be decoded, is larger than `max`, or too many bytes are held.
fn decoded(bytes: &[u8], codings: Codings, max: usize, share: &mut Share) -> Option<Vec<u8>> {
    const PIECE_BYTES: usize = 4096;
    let account = Budget::new(HELD_BYTES).account(None, RATIO);
    let mut decoder = Decoder::new(codings, Limits::default(), account.clone());
    let mut plain = Vec::new();
    for piece in bytes.chunks(PIECE_BYTES) {
        account.earn(piece.len());
        decoder.feed(piece, &mut |slice| plain.extend_from_slice(slice)).ok()?;
        if plain.len() > max || share.hold(plain.len()).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn body(client: [u8; 4]) -> Body {
        Body::new(&HeaderMap::new(), 16 << 20, Some(client.into()))
    }

    #[test]
    fn bytes_are_counted_until_the_server_has_them_and_one_client_leaves_room_for_others() {
        let mut first = body([192, 0, 2, 1]);
        assert!(first.accepts(16 << 20) && !first.accepts((16 << 20) + 1));
        assert!(first.add(b"ab") && first.add(b"c"));
        let sent = first.take().slice(1..);
        drop(first);
        assert_eq!(HELD.held(), 3);
        drop(sent);
        assert_eq!(HELD.held(), 0);
        let piece = vec![0; 16 << 20];
        let mut greedy: Vec<Body> = (0..4).map(|_| body([192, 0, 2, 1])).collect();
        let accepted = greedy.iter_mut().map(|body| body.add(&piece)).filter(|fits| *fits).count();
        assert_eq!((accepted, HELD.held()), (2, 32 << 20));
        assert!(body([192, 0, 2, 2]).add(&piece));
        drop(greedy);
        assert_eq!(HELD.held(), 0);
    }
}
