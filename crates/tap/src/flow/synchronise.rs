//! Recognises the first bytes of a message, in a connection whose beginning was not captured.

/// Content types of TLS records, and their versions (RFC 8446, section 5.1).
const TLS_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
const TLS_MAJOR: u8 = 3;
const TLS_MAX_MINOR: u8 = 4;
/// Content type of a record with a handshake message.
const TLS_HANDSHAKE: u8 = 22;
/// Maximum length of a record with an encrypted message (RFC 5246, section 6.2.3).
const TLS_MAX_RECORD: u16 = (1 << 14) + 2048;

/// Maximum length of a method; the longest registered method has 17 bytes (IANA, HTTP method registry).
const MAX_METHOD: usize = 17;

/// True if the bytes begin with a whole HTTP/1 request line (RFC 9112, section 3), where an observer can start.
pub(crate) fn begins_request(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return false };
    let line = bytes.get(..end).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let is_method = (1..=MAX_METHOD).contains(&method.len())
        && method.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'-');
    let is_target = !target.is_empty() && target.iter().all(|byte| byte.is_ascii_graphic() || !byte.is_ascii());
    is_method && is_target && matches!(version, b"HTTP/1.1" | b"HTTP/1.0")
}

/// True if the bytes begin with the header of a TLS record.
pub(super) fn is_tls(bytes: &[u8]) -> bool {
    let Some([kind, major, minor, high, low]) = bytes.first_chunk() else { return false };
    let len = u16::from_be_bytes([*high, *low]);
    TLS_TYPES.contains(kind) && *major == TLS_MAJOR && *minor <= TLS_MAX_MINOR && (1..=TLS_MAX_RECORD).contains(&len)
}

/// True if the bytes begin with a TLS handshake.
pub(super) fn begins_tls(bytes: &[u8]) -> bool {
    is_tls(bytes) && bytes.first() == Some(&TLS_HANDSHAKE)
}

/// Type of the TLS handshake message that the bytes begin with.
pub(crate) fn tls_handshake(bytes: &[u8]) -> Option<u8> {
    bytes.get(5).copied().filter(|_| begins_tls(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_request_lines_are_recognised() {
        for line in
            ["GET / HTTP/1.1\r\n", "POST /v1/chat/completions?a=b HTTP/1.0\nHost: a\n", "M-SEARCH * HTTP/1.1\r\n"]
        {
            assert!(begins_request(line.as_bytes()), "{line:?}");
            for end in 0..line.find('\n').unwrap() {
                assert!(!begins_request(&line.as_bytes()[..end]), "{line:?} up to {end}");
            }
        }
        for line in [
            "PRI * HTTP/2.0\r\n",
            "GET /\r\n",
            " GET / HTTP/1.1\r\n",
            "get / HTTP/1.1\r\n",
            "GET  / HTTP/1.1\r\n",
            "\r\n",
        ] {
            assert!(!begins_request(line.as_bytes()), "{line:?}");
        }
    }

    #[test]
    fn tls_records_are_recognised() {
        assert!(begins_tls(&[22, 3, 1, 2, 0, 1, 0]));
        assert!(is_tls(&[23, 3, 3, 0, 40, 9]) && !begins_tls(&[23, 3, 3, 0, 40, 9]));
        for bytes in [
            &[22, 3, 1, 2][..],
            &[22, 2, 1, 2, 0],
            &[22, 3, 9, 2, 0],
            &[22, 3, 1, 0xff, 0],
            &[23, 3, 3, 0, 0],
            b"GET /",
        ] {
            assert!(!is_tls(bytes), "{bytes:?}");
        }
    }
}
