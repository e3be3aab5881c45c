//! An export request on its way through the receiver.

use bytes::Bytes;
use http::HeaderMap;

use crate::engine_spans::budget::Share;

/// Maximum number of forwarded headers per message; further ones are dropped.
const MOST_HEADERS: usize = 16;
/// Maximum bytes of their names and values.
const HEADER_BYTES: usize = 4096;

/// Headers of a single hop, or of the message's encoding (RFC 9110 section 7.6.1; gRPC over HTTP/2).
const OF_THE_HOP: [&str; 17] = [
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
    /// Its end-to-end headers, such as an authorization or a tenant.
    pub(crate) headers: HeaderMap,
    /// Number of spans in it.
    pub(crate) spans: u64,
    /// Returned to the budget when the message is dropped.
    pub(crate) _share: Share,
}

impl Message {
    /// The same message, charged to another share. The bytes are not copied.
    pub(crate) fn shared(&self, share: Share) -> Message {
        Message { bytes: self.bytes.clone(), headers: self.headers.clone(), spans: self.spans, _share: share }
    }
}

/// The headers to forward.
pub(crate) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let of_the_hop = OF_THE_HOP.contains(&name.as_str()) || name.as_str().starts_with("grpc-");
        bytes += if of_the_hop { 0 } else { name.as_str().len() + value.len() };
        if !of_the_hop && kept.len() < MOST_HEADERS && bytes <= HEADER_BYTES {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
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
        let kept = passed_on(&headers);
        let mut names: Vec<&str> = kept.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "x-scope-orgid"]);
    }

    #[test]
    fn number_and_size_of_headers_are_limited() {
        let many = (0..100).map(|n| (format!("x-{n}").parse().unwrap(), "v".parse().unwrap()));
        assert_eq!(passed_on(&many.collect()).len(), MOST_HEADERS);
        let mut long = HeaderMap::new();
        long.insert("x-long", "v".repeat(HEADER_BYTES).parse().unwrap());
        assert!(passed_on(&long).is_empty());
    }
}
