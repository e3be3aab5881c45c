//! An export request on its way through the receiver, and the memory budget shared by all messages.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of forwarded headers per message; further headers are dropped.
const MAX_HEADERS: usize = 16;
/// Maximum total bytes of the names and values of these headers.
const HEADER_BYTES: usize = 4096;

/// Headers that are not forwarded: hop-by-hop headers (RFC 9110, section 7.6.1), headers of the message's encoding, and
/// headers that apply only to the received request (such as `host` and `user-agent`).
const DROPPED_HEADERS: [&str; 17] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];

/// A message as sent by the engine, without framing and compression.
#[derive(Debug)]
pub(crate) struct Message {
    /// `ExportTraceServiceRequest`.
    pub(crate) bytes: Bytes,
    /// End-to-end headers of the request, such as authorization or tenant.
    pub(crate) headers: HeaderMap,
    /// Number of spans in the message.
    pub(crate) spans: u64,
    /// Memory of the message, returned to its budget when the message is dropped.
    pub(crate) _share: Share,
}

impl Message {
    /// The same message with another share. The bytes are not copied.
    pub(crate) fn shared(&self, share: Share) -> Message {
        Message { bytes: self.bytes.clone(), headers: self.headers.clone(), spans: self.spans, _share: share }
    }
}

/// The headers to forward.
pub(crate) fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let is_dropped = DROPPED_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("grpc-");
        bytes += if is_dropped { 0 } else { name.as_str().len() + value.len() };
        if !is_dropped && kept.len() < MAX_HEADERS && bytes <= HEADER_BYTES {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// Memory of a message in addition to its bytes: its queue entry and headers.
const OVERHEAD: usize = 1024;

/// A memory budget that grants shares. Clones use the same budget.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    most: usize,
    /// One permit per byte.
    free: Arc<Semaphore>,
}

impl Budget {
    /// A budget of this many bytes.
    pub(crate) fn new(most: usize) -> Budget {
        let most = most.min(Semaphore::MAX_PERMITS);
        Budget { most, free: Arc::new(Semaphore::new(most)) }
    }

    /// A share for a message of this size; `None` when there is no room.
    pub(crate) fn share(&self, bytes: usize) -> Option<Share> {
        permit(&self.free, OVERHEAD.saturating_add(bytes)).map(Share)
    }

    /// Bytes of all shares.
    pub(crate) fn used(&self) -> usize {
        self.most - self.free.available_permits()
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(0)
    }
}

/// The share of one message; returned to the budget when dropped.
#[derive(Debug)]
pub(crate) struct Share(OwnedSemaphorePermit);

impl Share {
    /// Adds this many bytes; returns false and adds nothing when there is no room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = permit(self.0.semaphore(), bytes);
        more.map(|more| self.0.merge(more)).is_some()
    }
}

fn permit(free: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    Arc::clone(free).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_headers_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("x-scope-orgid", "team"),
            ("grpc-timeout", "10S"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let kept = forwarded_headers(&headers);
        let mut names: Vec<&str> = kept.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "x-scope-orgid"]);
    }

    #[test]
    fn number_and_size_of_headers_are_limited() {
        let many = (0..100).map(|n| (format!("x-{n}").parse().unwrap(), "v".parse().unwrap()));
        assert_eq!(forwarded_headers(&many.collect()).len(), MAX_HEADERS);
        let mut long = HeaderMap::new();
        long.insert("x-long", "v".repeat(HEADER_BYTES).parse().unwrap());
        assert!(forwarded_headers(&long).is_empty());
    }

    #[test]
    fn shares_are_granted_until_full_and_returned() {
        let budget = Budget::new(4 * OVERHEAD);
        let mut first = budget.share(0).unwrap();
        assert!(first.grow(2 * OVERHEAD));
        assert!(!first.grow(OVERHEAD + 1));
        assert!(!first.grow(usize::MAX));
        let second = budget.share(0).unwrap();
        assert!(budget.share(0).is_none());
        assert_eq!(budget.used(), 4 * OVERHEAD);
        drop(second);
        assert!(first.grow(OVERHEAD));
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
