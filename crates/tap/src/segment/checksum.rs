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

/// The one's complement sum.
fn fold(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// True if the one's complement sum is all ones, as it is with a correct checksum.
fn is_correct(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// True if the checksum in the header of an IPv4 packet is correct (RFC 791, section 3.1).
pub(super) fn is_header_correct(header: &[u8]) -> bool {
    is_correct(add(0, header))
}

/// True if the checksum of a TCP segment is correct (RFC 9293, section 3.1). IPv4 addresses in IPv6-mapped form add the
/// same to the pseudo-header as IPv4 addresses, except for the prefix `ffff`, which is zero in one's complement.
pub(super) fn is_segment_correct(source: &[u8; 16], destination: &[u8; 16], segment: &[u8]) -> bool {
    is_correct(add(pseudo(source, destination, segment), segment))
}

/// True if the checksum is still to be computed: it is the sum of the pseudo-header. Linux sets it so in segments that
/// it sends, and in segments that it has merged on receipt after their checksums were verified (`tcp4_gro_complete`).
pub(super) fn is_segment_unfinished(source: &[u8; 16], destination: &[u8; 16], segment: &[u8]) -> bool {
    let sum = fold(pseudo(source, destination, segment));
    segment.get(16..18).is_some_and(|field| field == &sum.to_be_bytes()[6..])
}

fn pseudo(source: &[u8; 16], destination: &[u8; 16], segment: &[u8]) -> u64 {
    add(add(segment.len() as u64 + u64::from(super::ip::TCP), source), destination)
}
