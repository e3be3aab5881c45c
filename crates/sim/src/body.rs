//! Delimiting of HTTP/1.1 message bodies.

/// How a body is delimited (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimiter {
    /// Bytes left.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(Chunk),
    /// The body ends with the connection.
    Close,
}

/// Position within the chunked coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// In a size line: the size so far, and whether its digits have ended.
    Size(u64, bool),
    /// In chunk data: bytes left.
    Data(u64),
    /// In the line end after the data.
    DataEnd,
    /// In the trailer section: bytes in the current line.
    Trailer(u32),
}

/// State of a body after the bytes taken so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    End,
    /// The bytes violate the transfer coding.
    Broken,
}

impl Delimiter {
    pub(crate) fn chunked() -> Delimiter {
        Delimiter::Chunked(Chunk::Size(0, false))
    }

    /// Consumes the next bytes of the connection and passes those that belong to the body to `data`.
    pub(crate) fn take(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> Progress {
        match self {
            Delimiter::Close => {
                data(bytes);
                Progress::More
            }
            Delimiter::Length(left) => {
                data(bytes);
                match left.checked_sub(bytes.len() as u64) {
                    None => Progress::Broken,
                    Some(rest) => {
                        *left = rest;
                        if rest == 0 { Progress::End } else { Progress::More }
                    }
                }
            }
            Delimiter::Chunked(chunk) => take_chunked(chunk, bytes, data),
        }
    }
}

fn take_chunked(chunk: &mut Chunk, mut bytes: &[u8], mut data: impl FnMut(&[u8])) -> Progress {
    while let Some((first, rest)) = bytes.split_first() {
        match chunk {
            Chunk::Data(left) => {
                let now = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                let (body, rest) = bytes.split_at_checked(now).unwrap_or((bytes, &[]));
                data(body);
                *left -= now as u64;
                if *left == 0 {
                    *chunk = Chunk::DataEnd;
                }
                bytes = rest;
                continue;
            }
            Chunk::DataEnd => match first {
                b'\r' => {}
                b'\n' => *chunk = Chunk::Size(0, false),
                _ => return Progress::Broken,
            },
            Chunk::Size(size, over) => match (first, char::from(*first).to_digit(16)) {
                (b'\n', _) if *size == 0 => *chunk = Chunk::Trailer(0),
                (b'\n', _) => *chunk = Chunk::Data(*size),
                (_, Some(digit)) if !*over => match size.checked_mul(16) {
                    Some(more) => *size = more + u64::from(digit),
                    None => return Progress::Broken,
                },
                (b'\r' | b';' | b' ', _) => *over = true,
                _ if *over => {}
                _ => return Progress::Broken,
            },
            Chunk::Trailer(line) => match first {
                b'\n' if *line == 0 => return if rest.is_empty() { Progress::End } else { Progress::Broken },
                b'\n' => *line = 0,
                b'\r' => {}
                _ => *line += 1,
            },
        }
        bytes = rest;
    }
    Progress::More
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_body_split_at_any_byte_decodes_identically() {
        let whole = b"5\r\nhello\r\nB;x=1\r\n, the world\r\n0\r\nTrailer: x\r\n\r\n";
        for cut in 0..whole.len() {
            let mut delimiter = Delimiter::chunked();
            let mut body = Vec::new();
            let (head, tail) = whole.split_at(cut);
            assert_eq!(delimiter.take(head, |data| body.extend_from_slice(data)), Progress::More, "cut at {cut}");
            assert_eq!(delimiter.take(tail, |data| body.extend_from_slice(data)), Progress::End, "cut at {cut}");
            assert_eq!(body, b"hello, the world");
        }
    }

    #[test]
    fn malformed_body_is_reported_as_broken() {
        for bytes in [&b"xyz\r\n"[..], b"1\r\nab", b"fffffffffffffffff\r\n", b"0\r\n\r\nmore"] {
            assert_eq!(Delimiter::chunked().take(bytes, |_| {}), Progress::Broken, "{bytes:?}");
        }
        assert_eq!(Delimiter::Length(2).take(b"abc", |_| {}), Progress::Broken);
    }
}
