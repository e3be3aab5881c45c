//! Which codings a head names.

use crate::coding::Unreadable;

/// Codings in a row that are undone. Two are one more than real senders use.
const MOST: usize = 2;

/// A coding that can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`, `x-gzip` (RFC 1952).
    Gzip,
    /// `deflate`: the zlib format (RFC 1950), or, from senders that read the name literally, raw deflate (RFC 1951).
    Deflate,
    /// `br` (RFC 7932).
    Brotli,
    /// `zstd` (RFC 8878).
    Zstd,
}

impl Coding {
    /// The coding of this name (any case).
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

/// The codings of one body, in the order in which they are undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    list: [Option<Coding>; MOST],
}

impl Codings {
    /// The codings that these values of `Content-Encoding` and, later, `Transfer-Encoding` name: each a list in the order
    /// in which they were applied. `identity` and `chunked` are none.
    ///
    /// # Errors
    /// A name that is not known, or too many.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Codings, Unreadable> {
        let mut codings = Codings::default();
        for name in values.into_iter().flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii) {
            let none = ["", "identity", "chunked"].iter().any(|none| name.eq_ignore_ascii_case(none.as_bytes()));
            if none {
                continue;
            }
            let coding = Coding::of_name(name).ok_or(Unreadable::UnknownCoding)?;
            if codings.list.iter().all(Option::is_some) {
                return Err(Unreadable::TooManyCodings);
            }
            codings.list.rotate_right(1);
            codings.list[0] = Some(coding);
        }
        Ok(codings)
    }

    /// True when there is nothing to undo.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// The codings, the one to undo first in front.
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
    fn what_was_applied_last_is_undone_first() {
        assert_eq!(of(&["gzip, br"]), Ok(vec![Coding::Brotli, Coding::Gzip]));
        assert_eq!(of(&["gzip", "br"]), Ok(vec![Coding::Brotli, Coding::Gzip]));
        assert_eq!(of(&["zstd", "X-GZIP , chunked"]), Ok(vec![Coding::Gzip, Coding::Zstd]));
    }

    #[test]
    fn no_coding_is_told_from_an_unknown_one() {
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(of(&["", " identity,", "Chunked"]), Ok(vec![]));
        assert!(Codings::default().is_empty());
        assert_eq!(of(&["compress"]), Err(Unreadable::UnknownCoding));
        assert_eq!(of(&["gzip; q=1"]), Err(Unreadable::UnknownCoding));
    }

    #[test]
    fn more_than_two_in_a_row_are_too_many() {
        assert_eq!(of(&["gzip, identity, br", ""]).map(|codings| codings.len()), Ok(2));
        assert_eq!(of(&["gzip, br", "gzip, chunked"]), Err(Unreadable::TooManyCodings));
    }
}
