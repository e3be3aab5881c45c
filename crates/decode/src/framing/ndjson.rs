//! One JSON text per line (<https://github.com/ndjson/ndjson-spec>), split at any byte: Ollama's own routes, and
//! SGLang's copy of them.
//!
//! The standard allows a carriage return before the line feed. It is passed on with the line, because it is white space
//! in JSON. Empty lines yield no event.

use memchr::memchr;

use super::Piece;

/// Removes the next piece from `bytes` and returns it: a part of a line, or its end. `None` when `bytes` is empty.
pub(crate) fn next_piece<'a>(bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
    let all = *bytes;
    if let Some(rest) = all.strip_prefix(b"\n") {
        *bytes = rest;
        return Some(Piece::End);
    }
    let (line, rest) = all.split_at_checked(memchr(b'\n', all).unwrap_or(all.len()))?;
    *bytes = rest;
    (!line.is_empty()).then_some(Piece::Part(line))
}
