//! Detects requests that a server may delimit differently from pingora. They are rejected, because a proxy that
//! re-frames messages makes request smuggling possible (RFC 9112, section 11.2).

use http::{HeaderMap, header};
use pingora::http::RequestHeader;

/// Why this HTTP/1 request is ambiguous; `None` if it is not. `raw` are the headers as received: pingora 0.9.1 accepts
/// requests with Content-Length and Transfer-Encoding, and removes the length from `head`.
pub(crate) fn ambiguous(head: &RequestHeader, raw: &[u8]) -> Option<&'static str> {
    let values = |name| head.headers.get_all(name).iter().map(|value| value.as_bytes());
    let mut codings = values("transfer-encoding");
    let mut lengths = values("content-length");
    const LENGTH: &[u8] = b"content-length";
    let is_length = |line: &[u8]| line.get(..LENGTH.len()).is_some_and(|name| name.eq_ignore_ascii_case(LENGTH));
    let has_length = || raw.split(|byte| *byte == b'\n').any(is_length);
    match (codings.next(), codings.next(), lengths.next(), lengths.next()) {
        (Some(_), ..) if has_length() => Some("both Content-Length and Transfer-Encoding"),
        (Some(_), Some(_), ..) => Some("more than one Transfer-Encoding"),
        (Some(coding), None, ..) if !coding.eq_ignore_ascii_case(b"chunked") => {
            Some("a Transfer-Encoding other than chunked")
        }
        (_, _, Some(_), Some(_)) => Some("more than one Content-Length"),
        (_, _, Some(length), None) if !length.iter().all(u8::is_ascii_digit) => Some("an invalid Content-Length"),
        _ => None,
    }
}

/// Approximate memory of parsed headers.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    const ENTRY_BYTES: usize = 100;
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + ENTRY_BYTES).sum()
}

/// The announced length of a body.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_framing_is_recognised() {
        for (headers, ambiguous_for) in [
            (&[("content-length", "5")][..], false),
            (&[("transfer-encoding", "Chunked")], false),
            (&[], false),
            (&[("content-length", "5"), ("transfer-encoding", "chunked")], true),
            (&[("content-length", "5"), ("content-length", "5")], true),
            (&[("content-length", "5, 5")], true),
            (&[("content-length", "+5")], true),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], true),
            (&[("transfer-encoding", "gzip, chunked")], true),
            (&[("transfer-encoding", "\u{b}chunked")], true),
        ] {
            let raw: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let mut head = RequestHeader::build("POST", b"/", None).unwrap();
            for (name, value) in headers {
                let value = http::HeaderValue::from_bytes(value.as_bytes())
                    .unwrap_or_else(|_| http::HeaderValue::from_static("xchunked"));
                head.append_header(*name, value).unwrap();
            }
            assert_eq!(
                ambiguous(&head, format!("POST / HTTP/1.1\r\n{raw}").as_bytes()).is_some(),
                ambiguous_for,
                "{headers:?}"
            );
        }
    }
}
