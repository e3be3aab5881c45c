//! Byte-for-byte comparison: a proxied response is taken between two direct ones. If the direct ones are identical,
//! including times, the proxied one must be too.

use crate::client::Caller;
use crate::client::Failure;
use crate::client::Recording;
use crate::client::header_of;
use crate::verify::likeness::place;
use crate::verify::mask::Hide;
use crate::verify::mask::masked;

/// How strictly a response could be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closeness {
    /// Every byte.
    Exact,
    /// Every byte except ids and times.
    Masked,
    /// Every byte except ids, times and the model's output.
    Shape,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Same(Closeness),
    /// The server's own responses differ.
    Incomparable,
    Differs(String),
}

/// Which side failed to respond.
#[derive(Debug)]
pub(super) enum Silent {
    Beside(Failure),
    Through(Failure),
}

/// Maximum number of attempts to get two identical direct responses.
const TRIES: usize = 4;

/// Sends the request directly, proxied and directly again, with the bytes that `request` makes for each side.
pub(super) fn compare(
    beside: &mut Caller,
    through: &mut Caller,
    request: impl Fn(&Caller) -> Vec<u8>,
) -> Result<Outcome, Silent> {
    let ask_beside = |caller: &mut Caller| caller.ask(&request(caller)).map_err(Silent::Beside);
    let mut before = ask_beside(beside)?;
    let mut best = Outcome::Incomparable;
    for _ in 0..TRIES {
        let between = through.ask(&request(through)).map_err(Silent::Through)?;
        let after = ask_beside(beside)?;
        if before.bytes() == after.bytes() {
            return Ok(match between.bytes() == before.bytes() {
                true => Outcome::Same(Closeness::Exact),
                false => Outcome::Differs(place(before.bytes(), between.bytes())),
            });
        }
        let compared = [(Closeness::Masked, Hide::Momentary), (Closeness::Shape, Hide::Spoken)]
            .into_iter()
            .find_map(|(closeness, hide)| hidden([&before, &between, &after], closeness, hide));
        // The model's output may differ once because of the server; a proxy that changes bytes does so every time.
        if !matches!(best, Outcome::Same(_)) {
            best = compared.unwrap_or(best);
        }
        before = after;
    }
    Ok(best)
}

/// Compares with values masked; `None` when the two direct responses still differ.
fn hidden(answers: [&Recording; 3], closeness: Closeness, hide: Hide) -> Option<Outcome> {
    let [before, between, after] = answers.map(|answer| form(answer, hide));
    (before == after).then(|| match between == before {
        true => Outcome::Same(closeness),
        false => Outcome::Differs(place(&before, &between)),
    })
}

/// Headers and body. `content-length` is masked, because it depends on masked values.
fn form(answer: &Recording, hide: Hide) -> Vec<u8> {
    let mut form = Vec::new();
    for line in answer.head() {
        let momentary = |name: &[u8]| {
            [&b"date"[..], b"content-length", b"x-request-id"].iter().any(|own| own.eq_ignore_ascii_case(name))
        };
        match header_of(line).filter(|(name, _)| momentary(name)) {
            Some((name, _)) => form.extend_from_slice(name),
            None => form.extend_from_slice(line),
        }
        form.push(b'\n');
    }
    form.extend_from_slice(&masked(&answer.body(), hide));
    form
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::recorded;

    fn answer(id: u32, content: &str) -> Recording {
        let body = format!("{{\"id\":{id},\"content\":\"{content}\"}}");
        recorded(&[(&format!("HTTP/1.1 200 OK\r\ndate: {id}\r\ncontent-length: {}\r\n\r\n{body}", body.len()), 1)])
    }

    #[test]
    fn only_values_that_differ_directly_are_masked() {
        let compared = |answers: [&Recording; 3], hide| hidden(answers, Closeness::Masked, hide);
        let (one, two, three) = (answer(1, "a"), answer(22, "a"), answer(333, "a"));
        assert_eq!(compared([&one, &two, &three], Hide::Momentary), Some(Outcome::Same(Closeness::Masked)));
        let said = compared([&one, &answer(2, "b"), &three], Hide::Momentary);
        assert!(matches!(said, Some(Outcome::Differs(_))), "{said:?}");
        assert_eq!(compared([&one, &two, &answer(3, "b")], Hide::Momentary), None);
        assert!(matches!(compared([&one, &two, &answer(3, "b")], Hide::Spoken), Some(Outcome::Same(_))));
    }
}
