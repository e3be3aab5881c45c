//! Reads the first members of a `usage` object, in the form that vLLM 0.32 and SGLang 0.5 write, in one step: with
//! `continuous_usage_stats` every event has them.

use super::Place;
use super::Reading;
use crate::scan::Scanner;
use crate::scan::Sink;

/// Maximum number of digits; no real count has more. The scanner reads longer numbers.
const DIGITS: usize = 12;

/// Called before the value of `usage`: reads the start of the object and its three counts if they come in this order,
/// with plain digits and no white space; returns the bytes after the last of them.
///
/// It makes the same calls on `reading` as the scanner: for the start of the object, then for the two numbers that are
/// used. (The start of a number has no effect there.) If it returns `None`, it changed nothing.
pub(crate) fn skip_counts<'a>(
    bytes: &'a [u8],
    scanner: &mut Scanner<Place>,
    reading: &mut Reading,
) -> Option<&'a [u8]> {
    let (prompt, rest) = split_digits(bytes.strip_prefix(br#"{"prompt_tokens":"#)?)?;
    let (_, rest) = split_digits(rest.strip_prefix(br#","total_tokens":"#)?)?;
    let (completion, rest) = split_digits(rest.strip_prefix(br#","completion_tokens":"#)?)?;
    if !scanner.is_before(Place::Usage) || !scanner.skip_members(Place::Usage) {
        return None;
    }
    reading.begin(Place::Usage, b'{');
    reading.number(Place::PromptTokens, prompt);
    reading.number(Place::CompletionTokens, completion);
    Some(rest)
}

/// Splits off the digits of a whole number; the rest begins with the comma or brace that ends it.
fn split_digits(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = bytes.iter().take(DIGITS + 1).position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at_checked(len)?;
    (len > 0 && matches!(rest.first(), Some(b',' | b'}'))).then_some((digits, rest))
}
