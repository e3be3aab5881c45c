//! The first members of a `usage` object, as vLLM 0.32 and SGLang 0.5 write them, read in one go: with
//! `continuous_usage_stats` every event has them.

use super::Place;
use super::Reading;
use crate::scan::Scanner;
use crate::scan::Sink;

/// More than any count has. The scanner takes longer numbers too; this only says which are read here.
const DIGITS: usize = 12;

/// Before the value of `usage`: reads the start of the object and its three counts if they stand there in this order,
/// with plain digits and no white space; returns what follows the last of them.
///
/// It tells `reading` what the scanner would: that the object begins, then the two numbers that mean something. (That a
/// number begins means nothing to it.) If it returns `None`, nothing was done.
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

/// The digits of a whole number, and what follows: the comma or the brace that ends it.
fn split_digits(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = bytes.iter().take(DIGITS + 1).position(|byte| !byte.is_ascii_digit())?;
    let (digits, rest) = bytes.split_at_checked(len)?;
    (len > 0 && matches!(rest.first(), Some(b',' | b'}'))).then_some((digits, rest))
}
