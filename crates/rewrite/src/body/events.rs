//! Boundaries of server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): an event ends
//! with an empty line; lines end with LF, CR or CRLF.

use memchr::memchr2;

/// Searches for the end of an event whose bytes arrive in pieces. Each byte is examined once.
#[derive(Debug, Default)]
pub(crate) struct Boundary {
    /// Bytes of the event searched so far.
    searched: usize,
    /// Start of the current line; `Before` if the line starts before the kept bytes and is therefore not empty.
    line: Line,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    At(usize),
    Before,
}

impl Default for Line {
    fn default() -> Line {
        Line::At(0)
    }
}

impl Boundary {
    /// Length of the event at the start of `bytes`, including the empty line; `None` while the event is incomplete.
    /// Call again with the same bytes and more.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            let found = bytes.get(self.searched..).and_then(|rest| memchr2(b'\n', b'\r', rest));
            let Some(at) = found.map(|at| self.searched + at) else {
                self.searched = bytes.len();
                return None;
            };
            let after = match (bytes.get(at), bytes.get(at + 1)) {
                (Some(b'\n'), _) => at + 1,
                (_, Some(b'\n')) => at + 2,
                (_, Some(_)) => at + 1,
                // A CR at the end may be half of a CRLF.
                (_, None) => {
                    self.searched = at;
                    return None;
                }
            };
            let empty = self.line == Line::At(at);
            (self.searched, self.line) = (after, Line::At(after));
            if empty {
                *self = Boundary::default();
                return Some(after);
            }
        }
    }

    /// Forgets the bytes searched so far and returns their number. Do not pass them again.
    pub(crate) fn forget(&mut self) -> usize {
        let by = std::mem::take(&mut self.searched);
        self.line = match self.line {
            Line::At(start) if start == by => Line::At(0),
            _ => Line::Before,
        };
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_end_with_an_empty_line_at_every_split() {
        for (text, expected) in [
            (&b"data: a\n\ndata: b\n\n"[..], vec![9, 9]),
            (b"data: a\r\n\r\n:c\r\n\r\nx", vec![11, 6]),
            (b"data: a\r\rb\r\rc", vec![9, 3]),
            (b"\ndata: a\ndata: b\n\n", vec![1, 17]),
            (b"a\n\r\nb", vec![4]),
            (b"a\n", vec![]),
        ] {
            for split in 1..=text.len() {
                let (mut boundary, mut start, mut lengths) = (Boundary::default(), 0, Vec::new());
                for end in (split..text.len()).step_by(split).chain([text.len()]) {
                    while let Some(length) = boundary.find(&text[start..end]) {
                        lengths.push(length);
                        start += length;
                    }
                }
                assert_eq!(lengths, expected, "{} in pieces of {split}", text.escape_ascii());
            }
        }
    }

    #[test]
    fn forgotten_bytes_do_not_hide_the_boundary() {
        let text = b"data: abc\r\n\r\nnext\n\n";
        for cut in 0..13 {
            let mut boundary = Boundary::default();
            assert_eq!(boundary.find(&text[..cut]), None);
            let gone = boundary.forget();
            assert_eq!(boundary.find(&text[gone..]), Some(13 - gone), "cut at {cut}");
        }
    }
}
