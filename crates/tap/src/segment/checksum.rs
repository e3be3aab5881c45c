//! The Internet checksum (RFC 1071).

/// Sum of the bytes as 16-bit words, which the caller continues with the next bytes or folds. Adds 32-bit words, which
/// gives the same sum (RFC 1071, section 2, C); only the last bytes may have an odd length.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum = words.iter().fold(sum, |sum, word| sum + u64::from(u32::from_be_bytes(*word)));
    let mut last = [0; 4];
    last.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
    sum + u64::from(u32::from_be_bytes(last))
}

/// True if the one's complement sum is all ones, as it is with a correct checksum.
fn is_correct(mut sum: u64) -> bool {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

/// True if the checksum in the header of an IPv4 packet is correct (RFC 791, section 3.1).
pub(super) fn is_header_correct(header: &[u8]) -> bool {
    is_correct(add(0, header))
}

/// True if the checksum of a TCP segment is correct (RFC 9293, section 3.1). IPv4 addresses in IPv6-mapped form add the
/// same to the pseudo-header as IPv4 addresses, except for the prefix `ffff`, which is zero in one's complement.
pub(super) fn is_segment_correct(source: &[u8; 16], destination: &[u8; 16], segment: &[u8]) -> bool {
    let pseudo = segment.len() as u64 + u64::from(super::ip::TCP);
    is_correct(add(add(add(pseudo, source), destination), segment))
}
