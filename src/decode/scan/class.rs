//! Classes of bytes.

use memchr::memchr2;

const SCALAR_END: u8 = 1;
const NUMBER: u8 = 2;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' => SCALAR_END,
            b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E' => NUMBER,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

/// True for a byte that ends a number or a literal.
pub(super) fn is_scalar_end(byte: u8) -> bool {
    CLASSES[usize::from(byte)] == SCALAR_END
}

/// True for a byte that a number may have.
pub(super) fn is_number_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] == NUMBER
}

/// Where the first quote or backslash is.
pub(super) fn string_stop(bytes: &[u8]) -> Option<usize> {
    /// Most keys and token texts are shorter than it takes to call `memchr`.
    const SHORT: usize = 16;
    let (short, long) = bytes.split_at_checked(SHORT).unwrap_or((bytes, &[]));
    match short.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        Some(place) => Some(place),
        None => memchr2(b'"', b'\\', long).map(|place| place + SHORT),
    }
}
