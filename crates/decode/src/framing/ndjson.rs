//! One JSON text per line (<https://github.com/ndjson/ndjson-spec>), cut anywhere: Ollama's own routes, and SGLang's copy
//! of them.
//!
//! The standard lets a carriage return stand before the line feed; it is handed on with the line, for JSON it is white
//! space. So is an empty line, which says nothing.

use memchr::memchr;

use super::Piece;

/// The next piece of `bytes`, which is taken from them: a part of a line, or its end. `None` when all bytes are taken.
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
