//! Request bodies to be changed: each is collected, then edited as a whole.

pub(crate) mod events;
pub(crate) mod include_usage;
pub(crate) mod members;
pub(crate) mod strip_usage;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::Semaphore;
use tokometer_wire::budget::{Account, Exhausted, Share};
use tokometer_wire::coding::{Codings, Decoder, Limits};
use tokometer_wire::websocket::Sender;

use crate::body::include_usage::{ADDED_BYTES, Edit, Unchanged};
use tokometer_proxy::relay::Outcome;

/// Larger bodies are parsed outside of the data path's threads, because this can take milliseconds.
const INLINE_BYTES: usize = 64 << 10;

/// Maximum number of bodies parsed outside of the data path's threads at a time. Each needs a thread.
static PARSERS: Semaphore = Semaphore::const_new(4);

/// Maximum decoded bytes per compressed byte, against decompression bombs. Prompts do not compress better.
pub(crate) const RATIO: u64 = 200;

/// Bytes that are charged to the budget until they are dropped, usually once they are sent to the server.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    share: Share,
}

impl Held {
    fn new(account: &Account) -> Held {
        Held { bytes: Vec::new(), share: account.share() }
    }

    /// Makes room for `more` bytes and an edit, if the budget allows.
    fn reserve(&mut self, more: usize) -> Result<(), Exhausted> {
        let needed = self.bytes.len() + more + ADDED_BYTES;
        if needed <= self.bytes.capacity() {
            return Ok(());
        }
        // More than needed, so that a body in small pieces is seldom copied.
        let capacity = [needed + needed / 2, needed].into_iter().find(|size| self.share.hold(*size).is_ok());
        self.bytes.reserve_exact(capacity.ok_or(Exhausted)? - self.bytes.len());
        Ok(())
    }

    fn add(&mut self, piece: &[u8]) -> Result<(), Exhausted> {
        self.reserve(piece.len())?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that is being collected. At most as many bytes are held as the memory budget allows. Above this limit,
/// requests pass unmodified.
#[derive(Debug)]
pub(crate) struct Body {
    held: Held,
    codings: Option<Codings>,
    max: usize,
    account: Account,
}

impl Body {
    /// Begins to collect the body of a request with these headers. `account` limits the decoded bytes by [`RATIO`].
    pub(crate) fn new(headers: &HeaderMap, max: usize, account: Account) -> Body {
        // SGLang has its own header for compressed requests (0.5, `SGLANG_ENABLE_REQUEST_DECOMPRESSION`).
        let codings = if headers.contains_key("x-body-compressed") {
            None
        } else {
            Codings::of(headers.get_all("content-encoding").iter().map(|value| value.as_bytes())).ok()
        };
        Body { held: Held::new(&account), codings, max, account }
    }

    /// True if a body of this length is small enough to be changed.
    pub(crate) fn accepts(&self, length: usize) -> bool {
        length <= self.max
    }

    /// Makes room for the rest of the body, and for another copy of it, which the returned share holds.
    pub(crate) fn reserve_twice(&mut self, rest: usize) -> Result<Share, Exhausted> {
        let mut copy = self.account.share();
        copy.hold(rest)?;
        self.held.reserve(rest)?;
        Ok(copy)
    }

    /// Adds a piece. False if the body is then too large to be changed, or too many bytes are held: send it unmodified.
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        let fits = self.accepts(self.len() + piece.len()) && self.held.reserve(piece.len()).is_ok();
        if !fits {
            // Not charged, but at most as large as one read.
            self.held.bytes.reserve_exact(piece.len());
        }
        self.held.bytes.extend_from_slice(piece);
        fits
    }

    /// Bytes collected so far.
    pub(crate) fn len(&self) -> usize {
        self.held.bytes.len()
    }

    /// True if the body is compressed; a changed body is then sent uncompressed.
    pub(crate) fn is_coded(&self) -> bool {
        self.codings.is_none_or(|codings| !codings.is_empty())
    }

    /// The bytes collected so far, unchanged.
    pub(crate) fn take(&mut self) -> Bytes {
        Bytes::from_owner(self.take_held())
    }

    fn take_held(&mut self) -> Held {
        std::mem::replace(&mut self.held, Held::new(&self.account))
    }

    /// The complete body, changed if possible, and the outcome.
    pub(crate) async fn edited(&mut self) -> (Bytes, Outcome) {
        let (codings, max, account) = (self.codings, self.max, self.account.clone());
        let mut held = Arc::new(self.take_held());
        let change = if held.bytes.len() <= INLINE_BYTES && !self.is_coded() {
            change(&held.bytes, codings, max, &account)
        } else {
            // The semaphore is never closed.
            let _permit = PARSERS.acquire().await;
            let shared = Arc::clone(&held);
            let parsing = tokio::task::spawn_blocking(move || change(&shared.bytes, codings, max, &account));
            // An error means that the runtime is stopping.
            parsing.await.unwrap_or(Err(Outcome::NotJson))
        };
        let outcome = match (change, Arc::get_mut(&mut held)) {
            (Ok(Change::Decoded(plain)), _) => return (Bytes::from_owner(plain), Outcome::Changed),
            (Ok(Change::InPlace(edit)), Some(held)) => {
                edit.apply(&mut held.bytes);
                Outcome::Changed
            }
            // Never: the parser's reference is dropped.
            (Ok(Change::InPlace(_)), None) => Outcome::TooLarge,
            (Err(outcome), _) => outcome,
        };
        (Bytes::from_owner(Original(held)), outcome)
    }
}

/// A body as received, except for an edit.
struct Original(Arc<Held>);

impl AsRef<[u8]> for Original {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// How a body is changed.
enum Change {
    InPlace(Edit),
    /// The body was compressed; this is the changed plain body.
    Decoded(Held),
}

fn change(original: &[u8], codings: Option<Codings>, max: usize, account: &Account) -> Result<Change, Outcome> {
    let codings = codings.ok_or(Outcome::Encoded)?;
    if codings.is_empty() {
        return Ok(Change::InPlace(include_usage::edit(original)?));
    }
    let mut plain = decoded(original, codings, max, account).ok_or(Outcome::Encoded)?;
    include_usage::edit(&plain.bytes)?.apply(&mut plain.bytes);
    Ok(Change::Decoded(plain))
}

/// The decompressed body; `None` if it cannot be decoded, is larger than `max`, or too many bytes are held.
fn decoded(bytes: &[u8], codings: Codings, max: usize, account: &Account) -> Option<Held> {
    const PIECE_BYTES: usize = 4096;
    let mut decoder = Decoder::new(codings, Limits::default(), account.credit(Sender::Server));
    let (mut plain, mut fits) = (Held::new(account), true);
    for piece in bytes.chunks(PIECE_BYTES) {
        account.earn(Sender::Server, piece.len());
        let mut add = |slice: &[u8]| {
            fits = fits && plain.bytes.len() + slice.len() <= max && plain.add(slice).is_ok();
        };
        decoder.feed(piece, &mut add).ok()?;
        if !fits {
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
    use std::net::IpAddr;

    use tokometer_wire::budget::Budget;

    use super::*;

    const MIB: usize = 1 << 20;

    fn body(budget: &Budget, last: u8) -> Body {
        Body::new(&HeaderMap::new(), 16 * MIB, budget.account(Some(IpAddr::from([192, 0, 2, last])), RATIO))
    }

    #[test]
    fn bytes_are_counted_until_the_server_has_them_and_one_client_leaves_room_for_others() {
        let budget = Budget::new(64 * MIB);
        let mut first = body(&budget, 1);
        assert!(first.accepts(16 * MIB) && !first.accepts(16 * MIB + 1));
        assert!(first.add(b"ab") && first.add(b"c"));
        let sent = first.take().slice(1..);
        drop(first);
        assert_eq!(budget.held(), (2 + ADDED_BYTES) * 3 / 2);
        drop(sent);
        assert_eq!(budget.held(), 0);
        let piece = vec![0; 4 * MIB - ADDED_BYTES];
        let mut greedy: Vec<Body> = (0..16).map(|_| body(&budget, 1)).collect();
        let accepted = greedy.iter_mut().map(|body| body.add(&piece)).filter(|fits| *fits).count();
        assert_eq!((accepted, budget.held() >> 20), (9, 54));
        assert!(body(&budget, 2).add(&vec![0; 2 * MIB]));
        drop(greedy);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn allocated_memory_is_charged_while_a_body_grows() {
        let budget = Budget::new(usize::MAX);
        let mut body = body(&budget, 1);
        for size in (0..20_000).map(|at| at % 700) {
            assert!(body.add(&vec![b'x'; size]));
            assert_eq!(budget.held(), body.held.bytes.capacity());
            assert!(body.held.bytes.capacity() <= body.len() * 3 / 2 + 2 * ADDED_BYTES + 1000);
        }
        let copy = body.reserve_twice(MIB).unwrap();
        assert!(budget.held() >= body.len() + 2 * MIB);
        drop((body, copy));
        assert_eq!(budget.held(), 0);
    }
}
