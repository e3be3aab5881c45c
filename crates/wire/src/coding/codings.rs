//! The codings listed in the headers.

use crate::coding::Unreadable;

/// Maximum number of chained codings that are decoded: one more than real senders use.
const MAX: usize = 2;

/// Maximum bytes of all values together; real values have fewer than 50. Limits the names that are compared: with header
/// compression, a client sends a long value with one byte.
const MAX_BYTES: usize = 256;

/// A supported coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`, `x-gzip` (RFC 1952).
    Gzip,
    /// `deflate`: the zlib format (RFC 1950), or raw deflate (RFC 1951) from senders that take the name literally.
    Deflate,
    /// `br` (RFC 7932).
    Brotli,
    /// `zstd` (RFC 8878).
    Zstd,
}

impl Coding {
    /// The coding with this name (case-insensitive).
    pub fn of_name(name: &[u8]) -> Option<Coding> {
        const NAMES: [(&str, Coding); 5] = [
            ("gzip", Coding::Gzip),
            ("x-gzip", Coding::Gzip),
            ("deflate", Coding::Deflate),
            ("br", Coding::Brotli),
            ("zstd", Coding::Zstd),
        ];
        NAMES.into_iter().find_map(|(known, coding)| name.eq_ignore_ascii_case(known.as_bytes()).then_some(coding))
    }
}

/// The codings of one body, in decoding order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    list: [Option<Coding>; MAX],
}

impl Codings {
    /// Parses the values of `Content-Encoding`, then those of `Transfer-Encoding`. Each value lists codings in the
    /// order in which they were applied. Skips `identity` and `chunked`.
    ///
    /// # Errors
    /// An unknown name, or too many codings.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Codings, Unreadable> {
        let mut codings = Codings::default();
        let mut room = MAX_BYTES;
        for value in values {
            room = room.checked_sub(value.len() + 1).ok_or(Unreadable::TooManyCodings)?;
            for name in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                codings.add(name)?;
            }
        }
        Ok(codings)
    }

    fn add(&mut self, name: &[u8]) -> Result<(), Unreadable> {
        if ["", "identity", "chunked"].iter().any(|none| name.eq_ignore_ascii_case(none.as_bytes())) {
            return Ok(());
        }
        let coding = Coding::of_name(name).ok_or(Unreadable::UnknownCoding)?;
        if self.list.iter().all(Option::is_some) {
            return Err(Unreadable::TooManyCodings);
        }
        self.list.rotate_right(1);
        self.list[0] = Some(coding);
        Ok(())
    }

    /// True when there is nothing to decode.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// The codings in decoding order.
    pub fn iter(self) -> impl Iterator<Item = Coding> {
        self.list.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Result<Vec<Coding>, Unreadable> {
        Codings::of(values.iter().map(|value| value.as_bytes())).map(|codings| codings.iter().collect())
    }

    #[test]
    fn codings_are_decoded_in_reverse_order_of_application() {
        assert_eq!(of(&["gzip, br"]), Ok(vec![Coding::Brotli, Coding::Gzip]));
        assert_eq!(of(&["gzip", "br"]), Ok(vec![Coding::Brotli, Coding::Gzip]));
        assert_eq!(of(&["zstd", "X-GZIP , chunked"]), Ok(vec![Coding::Gzip, Coding::Zstd]));
    }

    #[test]
    fn identity_is_not_a_coding_and_unknown_names_are_errors() {
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(of(&["", " identity,", "Chunked"]), Ok(vec![]));
        assert!(Codings::default().is_empty());
        assert_eq!(of(&["compress"]), Err(Unreadable::UnknownCoding));
        assert_eq!(of(&["gzip; q=1"]), Err(Unreadable::UnknownCoding));
    }

    #[test]
    fn more_than_two_chained_codings_are_an_error() {
        assert_eq!(of(&["gzip, identity, br", ""]).map(|codings| codings.len()), Ok(2));
        assert_eq!(of(&["gzip, br", "gzip, chunked"]), Err(Unreadable::TooManyCodings));
    }

    #[test]
    fn long_lists_of_codings_are_not_compared() {
        assert_eq!(of(&[&",".repeat(MAX_BYTES - 1)]), Ok(vec![]));
        assert_eq!(of(&[&",".repeat(MAX_BYTES)]), Err(Unreadable::TooManyCodings));
        let mut read = 0;
        let values = std::iter::repeat_n(b"identity".as_slice(), 100_000).inspect(|_| read += 1);
        assert_eq!(Codings::of(values), Err(Unreadable::TooManyCodings));
        assert_eq!(read, MAX_BYTES / 9 + 1);
    }
}
