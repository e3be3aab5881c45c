//! Message body length, determined by the headers (RFC 9112, section 6).

use httparse::Header;

use crate::body::Body;
use crate::chunked::Chunked;

/// Headers whose length fields are malformed or ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadFraming;

/// The length fields of the headers.
#[derive(Default)]
struct Lengths {
    content_length: Option<u64>,
    /// `Transfer-Encoding` is present.
    coded: bool,
    /// `chunked` is the last transfer coding.
    chunked: bool,
}

/// The items of a comma-separated field value, without surrounding white space.
pub(super) fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Accepts digits only: a sign, inner white space, or a number above 64 bits is malformed.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

impl Lengths {
    fn of(headers: &[Header<'_>]) -> Result<Lengths, BadFraming> {
        let mut lengths = Lengths::default();
        for header in headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                // Repeated equal values are one value (RFC 9110, section 8.6).
                for item in items(header.value) {
                    let length = decimal(item).ok_or(BadFraming)?;
                    if lengths.content_length.is_some_and(|other| other != length) {
                        return Err(BadFraming);
                    }
                    lengths.content_length = Some(length);
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                lengths.coded = true;
                for item in items(header.value).filter(|item| !item.is_empty()) {
                    // No coding may follow `chunked`, not even a second `chunked`.
                    if lengths.chunked {
                        return Err(BadFraming);
                    }
                    lengths.chunked = item.eq_ignore_ascii_case(b"chunked");
                }
            }
        }
        // Request smuggling relies on implementations disagreeing on which of the two applies.
        if lengths.coded && lengths.content_length.is_some() {
            return Err(BadFraming);
        }
        Ok(lengths)
    }
}

/// The body after the headers of a request; `None` without a body.
pub(super) fn of_request(minor: u8, headers: &[Header<'_>]) -> Result<Option<Body>, BadFraming> {
    let lengths = Lengths::of(headers)?;
    match lengths {
        // A request body cannot end with the connection, and HTTP/1.0 servers do not support transfer codings.
        Lengths { coded: true, chunked, .. } if !chunked || minor == 0 => Err(BadFraming),
        Lengths { coded: true, .. } => Ok(Some(Body::Chunked(Chunked::new()))),
        Lengths { content_length: None | Some(0), .. } => Ok(None),
        Lengths { content_length: Some(length), .. } => Ok(Some(Body::Length(length))),
    }
}

/// The body after the headers of a final response to a request other than HEAD and accepted CONNECT; `None` without a
/// body. The version does not matter: llama.cpp and vLLM respond to HTTP/1.0 requests in chunks.
pub(super) fn of_response(status: u16, headers: &[Header<'_>]) -> Result<Option<Body>, BadFraming> {
    if matches!(status, 204 | 304) {
        return Ok(None);
    }
    let lengths = Lengths::of(headers)?;
    match lengths {
        Lengths { chunked: true, .. } => Ok(Some(Body::Chunked(Chunked::new()))),
        Lengths { content_length: Some(0), .. } => Ok(None),
        Lengths { content_length: Some(length), .. } => Ok(Some(Body::Length(length))),
        Lengths { content_length: None, .. } => Ok(Some(Body::UntilClose)),
    }
}
