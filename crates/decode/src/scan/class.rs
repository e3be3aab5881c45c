//! Byte classes and searches.

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
#[inline]
pub(super) fn is_scalar_end(byte: u8) -> bool {
    CLASSES[usize::from(byte)] == SCALAR_END
}

/// True for a byte that may occur in a number.
#[inline]
pub(super) fn is_number_byte(byte: u8) -> bool {
    CLASSES[usize::from(byte)] == NUMBER
}

/// The index of the first quote or backslash.
#[inline]
pub(super) fn string_stop(bytes: &[u8]) -> Option<usize> {
    /// In words of 8 bytes. Most token texts, and all keys of `usage`, end before a call of `memchr` pays off.
    const SHORT: usize = 4;
    let (words, _) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().take(SHORT).enumerate() {
        let word = u64::from_le_bytes(*word);
        let stops = zero_bytes(word ^ repeated(b'"')) | zero_bytes(word ^ repeated(b'\\'));
        if stops != 0 {
            return Some(at * 8 + stops.trailing_zeros() as usize / 8);
        }
    }
    let seen = words.len().min(SHORT) * 8;
    memchr2(b'"', b'\\', bytes.get(seen..).unwrap_or_default()).map(|place| place + seen)
}

/// The index of the first quote, brace or bracket.
#[inline]
pub(super) fn nested_stop(bytes: &[u8]) -> Option<usize> {
    /// The bit that distinguishes a brace from the corresponding bracket.
    const BRACE: u64 = repeated(b'{' ^ b'[');
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let braces = word | BRACE;
        let stops = zero_bytes(word ^ repeated(b'"'))
            | zero_bytes(braces ^ repeated(b'{'))
            | zero_bytes(braces ^ repeated(b'}'));
        if stops != 0 {
            return Some(at * 8 + stops.trailing_zeros() as usize / 8);
        }
    }
    let place = rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))?;
    Some(words.len() * 8 + place)
}

const fn repeated(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// Sets the highest bit of the lowest zero byte, and of no lower byte; higher bytes may be set too.
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(repeated(0x01)) & !word & repeated(0x80)
}
