//! The Huffman code of string literals (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes are assigned in increasing order, by length and then by symbol. The codes are therefore
//! computed from the lengths in appendix B.

/// The code length of each symbol in bits; the last entry is EOS.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];

const SYMBOLS: usize = 257;

/// The end-of-string symbol, whose leading bits are used as padding.
const EOS: u16 = 256;

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// The codes of one length, aligned to the top of 32 bits.
#[derive(Clone, Copy)]
struct Length {
    /// The first code.
    first: u32,
    /// The highest 32-bit value that begins with a code of this length; all greater values begin with longer codes.
    last: u32,
    /// Index of the first symbol of this length in [`ORDER`].
    symbols: usize,
}

/// The symbols in the order of their codes.
const ORDER: [u16; SYMBOLS] = {
    let mut order = [0; SYMBOLS];
    let (mut place, mut length) = (0, SHORTEST);
    while length <= LONGEST {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                order[place] = symbol as u16;
                place += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    order
};

const CODES: [Length; LONGEST + 1] = {
    let mut codes = [Length { first: 0, last: 0, symbols: 0 }; LONGEST + 1];
    let (mut next, mut place, mut length) = (0u64, 0, SHORTEST);
    while length <= LONGEST {
        let first = next;
        let symbols = place;
        while place < SYMBOLS && LENGTHS[ORDER[place] as usize] as usize == length {
            next += 1 << (32 - length);
            place += 1;
        }
        let last = if next == 0 { 0 } else { next - 1 };
        codes[length] = Length { first: first as u32, last: last as u32, symbols };
        length += 1;
    }
    codes
};

/// Not a valid string in this code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadCode;

/// Decodes `coded` and appends the text to `text`.
pub(super) fn decode(coded: &[u8], text: &mut Vec<u8>) -> Result<(), BadCode> {
    let mut coded = coded.iter();
    // The lower `held` bits of `bits` have not been decoded yet.
    let (mut bits, mut held) = (0u64, 0u32);
    loop {
        while held <= 32
            && let Some(byte) = coded.next()
        {
            bits = bits << 8 | u64::from(*byte);
            held += 8;
        }
        if held == 0 {
            return Ok(());
        }
        let window = top(bits, held);
        let (symbol, length) = symbol(window).ok_or(BadCode)?;
        if symbol == EOS || length > held {
            // Only padding may remain: fewer than 8 bits, all ones. The rest of the window is filled with ones.
            return if held < 8 && window == u32::MAX { Ok(()) } else { Err(BadCode) };
        }
        text.push(u8::try_from(symbol).map_err(|_| BadCode)?);
        held -= length;
    }
}

/// The lower `held` bits of `bits` at the top of a 32-bit window, followed by ones.
fn top(bits: u64, held: u32) -> u32 {
    if held >= 32 { (bits >> (held - 32)) as u32 } else { (bits << (32 - held)) as u32 | u32::MAX >> held }
}

/// The symbol whose code begins the window, and the length of that code.
fn symbol(window: u32) -> Option<(u16, u32)> {
    let (length, codes) = (SHORTEST..).zip(CODES.get(SHORTEST..)?).find(|(_, codes)| window <= codes.last)?;
    let place = window.checked_sub(codes.first)? >> (32 - length);
    Some((*ORDER.get(codes.symbols + place as usize)?, length as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(coded: &[u8]) -> Result<String, BadCode> {
        let mut text = Vec::new();
        decode(coded, &mut text).map(|()| String::from_utf8(text).expect("these are ASCII"))
    }

    #[test]
    fn codes_match_appendix_b() {
        // First, last and irregular entries of the appendix, as (symbol, code, length).
        for (of, code, length) in [
            (b'0' as u16, 0x0, 5),
            (b't' as u16, 0x9, 5),
            (b' ' as u16, 0x14, 6),
            (b':' as u16, 0x5c, 7),
            (b'Z' as u16, 0xfd, 8),
            (b'!' as u16, 0x3f8, 10),
            (b'\'' as u16, 0x7fa, 11),
            (b'\\' as u16, 0x7fff0, 19),
            (0, 0x1ff8, 13),
            (10, 0x3ffffffc, 30),
            (255, 0x3ffffee, 26),
            (EOS, 0x3fffffff, 30),
        ] {
            assert_eq!(symbol(code << (32 - length)), Some((of, length)), "{of}");
        }
    }

    #[test]
    fn symbols_are_found_by_code_with_any_following_bits() {
        let mut code = 0u64;
        for (place, of) in ORDER.iter().enumerate() {
            let length = u32::from(LENGTHS[usize::from(*of)]);
            let first = (code << (32 - length)) as u32;
            let last = first | u32::MAX.checked_shr(length).unwrap_or(0);
            assert_eq!((symbol(first), symbol(last)), (Some((*of, length)), Some((*of, length))), "{of}");
            code += 1;
            if let Some(next) = ORDER.get(place + 1) {
                code <<= LENGTHS[usize::from(*next)] - LENGTHS[usize::from(*of)];
            }
        }
        assert_eq!(code, 1 << LONGEST, "the code is complete");
    }

    #[test]
    fn padding_must_be_ones_and_shorter_than_a_byte() {
        assert_eq!(text(&[]).as_deref(), Ok(""));
        // `0` is 00000; three ones fill the byte.
        assert_eq!(text(&[0b0000_0111]).as_deref(), Ok("0"));
        assert_eq!(text(&[0b0000_0110]), Err(BadCode));
        assert_eq!(text(&[0b0000_0111, 0xff]), Err(BadCode));
        assert_eq!(text(&[0xff]), Err(BadCode));
        // EOS itself.
        assert_eq!(text(&[0xff, 0xff, 0xff, 0xff]), Err(BadCode));
    }
}
