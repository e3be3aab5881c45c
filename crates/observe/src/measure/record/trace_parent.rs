//! The trace context that a client sends.

/// An incoming W3C `traceparent` (<https://www.w3.org/TR/trace-context/>, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id, never all zero.
    pub trace_id: u128,
    /// The caller's span id, never zero.
    pub span_id: u64,
    /// The caller's `sampled` flag.
    pub sampled: bool,
}

/// Maximum bytes of a `traceparent` value. Version 00 has 55; later versions may append fields.
const TRACE_PARENT_BYTES: usize = 512;

impl TraceParent {
    /// Parses a header value. `None` if it is invalid; all versions except `ff` are accepted.
    pub fn parse(value: &[u8]) -> Option<TraceParent> {
        if value.len() > TRACE_PARENT_BYTES {
            return None;
        }
        let text = std::str::from_utf8(value).ok()?.trim();
        let hex = |range: std::ops::Range<usize>| {
            text.get(range).filter(|s| s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
        };
        let version = hex(0..2).filter(|v| *v != "ff")?;
        let long_enough =
            if version == "00" { text.len() == 55 } else { text.len() == 55 || text.as_bytes().get(55) == Some(&b'-') };
        let dashes = [2, 35, 52].iter().all(|&i| text.as_bytes().get(i) == Some(&b'-'));
        if !long_enough || !dashes {
            return None;
        }
        let trace_id = u128::from_str_radix(hex(3..35)?, 16).ok().filter(|id| *id != 0)?;
        let span_id = u64::from_str_radix(hex(36..52)?, 16).ok().filter(|id| *id != 0)?;
        let flags = u8::from_str_radix(hex(53..55)?, 16).ok()?;
        Some(TraceParent { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}
