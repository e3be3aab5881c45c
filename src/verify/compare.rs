//! Compares proxied responses with direct ones, at the strictest level at which the direct responses are identical.

use std::collections::BTreeSet;

use crate::client::{Recording, header_of};
use crate::verify::mask::{Hide, masked};

/// Result of a comparison. The text begins with what was compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Same(String),
    /// The server's own responses differ too much.
    Unsure(String),
    Differs(String),
}

/// What is compared of two streams, the strictest level first: the masked values, whether chunk boundaries are compared,
/// and what is identical at this level.
const LEVELS: [(Hide, bool, &str); 4] = [
    (Hide::Varying, true, "headers, chunks, events and text, byte for byte except ids and times"),
    (
        Hide::Varying,
        false,
        "headers, events and text, byte for byte except ids and times (the server's own chunks vary)",
    ),
    (
        Hide::Output,
        true,
        "headers, chunks and kinds of events, byte for byte except values that vary (the server's own text varies)",
    ),
    (
        Hide::Output,
        false,
        "headers and kinds of events, byte for byte except values that vary (the server's own text and chunks vary)",
    ),
];

/// Headers whose values always differ.
const VARYING: &[&[u8]] = &[b"date", b"x-request-id", b"content-length"];

/// Minimum number of differing proxied streams at which the server is ruled out as the cause. A difference caused by
/// the server would be as likely in a direct stream: the probability that all five are in proxied streams is 1/32.
const CERTAIN: usize = 5;

/// Compares direct streams with proxied ones, at the strictest level at which the direct ones are identical.
pub(super) fn compare_streams(direct: &[&Recording], proxied: &[&Recording]) -> Outcome {
    let varying = varying_headers(direct);
    // The form of the direct streams, and the forms of proxied streams that differ from it. `None` if the direct
    // streams differ among themselves.
    let compare = |(hide, chunks, _): &(Hide, bool, &str)| {
        let forms = |recordings: &[&Recording]| -> Vec<Vec<u8>> {
            recordings.iter().map(|recording| form(recording, *hide, *chunks, &varying)).collect()
        };
        let mut own = forms(direct);
        own.dedup();
        let [own] = <[Vec<u8>; 1]>::try_from(own).ok()?;
        let mut different = forms(proxied);
        different.retain(|form| *form != own);
        Some((own, different))
    };
    let Some((words, (own, different))) = LEVELS.iter().find_map(|level| Some((level.2, compare(level)?))) else {
        return Outcome::Unsure("streams: the server's own streams differ in their kinds of events".to_owned());
    };
    let (count, differing) = (proxied.len(), different.len());
    let Some(first) = different.first() else { return Outcome::Same(format!("{count} streams: {words}")) };
    // A difference at the last level is certain: sampling and timing do not change what that level compares.
    let is_structural = LEVELS.last().and_then(compare).is_some_and(|(_, different)| !different.is_empty());
    let place = place(&own, first);
    match is_structural || differing >= CERTAIN {
        true => Outcome::Differs(format!("{differing} of {count} streams, {place}")),
        false => Outcome::Unsure(format!(
            "{differing} of {count} streams differ, possibly because of the server itself ({place})"
        )),
    }
}

/// Lower-case names of headers whose values differ among these responses.
fn varying_headers(recordings: &[&Recording]) -> BTreeSet<Vec<u8>> {
    let headers = |recording: &&Recording| -> Vec<(Vec<u8>, Vec<u8>)> {
        let headers = recording.head().skip(1).filter_map(header_of);
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect()
    };
    let first = recordings.first().map(headers).unwrap_or_default();
    let is_known = |name: &[u8]| first.iter().any(|(known, _)| known == name);
    let others = recordings.iter().flat_map(headers).filter(|header| !first.contains(header));
    others.map(|(name, _)| name).filter(|name| is_known(name)).collect()
}

/// The part of a stream that is compared: without the values that `hide` masks, and with chunk boundaries if `chunks`.
fn form(recording: &Recording, hide: Hide, chunks: bool, varying: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let mut form = head(recording, varying);
    let ends = if chunks { recording.chunk_ends() } else { Vec::new() };
    let body = recording.body();
    let (mut event, mut last, mut at) = (Vec::new(), Vec::new(), 0);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let range = at + 1..=at + line.len();
        at += line.len();
        // Comments are skipped: they are sent by a timer, not by the model.
        if let Some(data) = line.strip_prefix(b"data:") {
            event.extend_from_slice(b"data:");
            event.extend_from_slice(&masked(data, hide));
        } else if !line.starts_with(b":") {
            event.extend_from_slice(line);
        }
        // Marks the end of a chunk: `|` at the end of a line, `/` within the line.
        let ends = ends.iter().filter(|end| range.contains(end));
        event.extend(ends.map(|end| if *end == at { b'|' } else { b'/' }));
        if line.trim_ascii().is_empty() {
            push(&mut form, &mut event, &mut last, hide);
        }
    }
    push(&mut form, &mut event, &mut last, hide);
    form
}

/// Appends an event. Where text is hidden, consecutive events of one kind are merged, because their number depends on
/// sampling.
fn push(form: &mut Vec<u8>, event: &mut Vec<u8>, last: &mut Vec<u8>, hide: Hide) {
    if hide == Hide::Varying || event != last {
        form.extend_from_slice(event);
    }
    std::mem::swap(event, last);
    event.clear();
}

/// The headers, with the values of the headers in `varying` and of those that always vary masked.
fn head(recording: &Recording, varying: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let is_varying = |name: Vec<u8>| VARYING.contains(&name.as_slice()) || varying.contains(&name);
    let mut head = Vec::new();
    for line in recording.head() {
        match header_of(line).filter(|(name, _)| is_varying(name.to_ascii_lowercase())) {
            Some((name, _)) => {
                head.extend_from_slice(name);
                head.extend_from_slice(b": ?");
            }
            None => head.extend_from_slice(line),
        }
        head.push(b'\n');
    }
    head
}

/// Position of the first difference, with excerpts of both sides.
fn place(own: &[u8], other: &[u8]) -> String {
    const BEFORE: usize = 12;
    const AFTER: usize = 28;
    let at = own.iter().zip(other).take_while(|(own, other)| own == other).count();
    let part = |form: &[u8]| {
        let part = form.get(at.saturating_sub(BEFORE)..form.len().min(at + AFTER)).unwrap_or_default();
        part.escape_ascii().to_string()
    };
    format!("at byte {at}: direct `{}`, proxied `{}`", part(own), part(other))
}

/// Maximum number of attempts to get two identical direct responses.
const TRIES: usize = 4;

/// Compares the responses to one request. The request is sent directly, through the proxy, and directly again. If the
/// direct responses are identical, the proxied one must be identical too; otherwise varying values are masked.
///
/// # Errors
/// The error of a request that got no response.
pub(super) fn compare_exact<E>(
    name: &str,
    mut direct: impl FnMut() -> Result<Recording, E>,
    mut proxied: impl FnMut() -> Result<Recording, E>,
) -> Result<Outcome, E> {
    let same = |exception: &str| Outcome::Same(format!("{name}: every byte{exception}"));
    let mut before = direct()?;
    let mut best = Outcome::Unsure(format!("{name}: the server's own responses differ"));
    for _ in 0..TRIES {
        let between = proxied()?;
        let after = direct()?;
        if before.bytes() == after.bytes() {
            return Ok(match between.bytes() == before.bytes() {
                true => same(""),
                false => Outcome::Differs(format!("{name}, {}", place(before.bytes(), between.bytes()))),
            });
        }
        let compared = [(" except ids and times", Hide::Varying), (" except values that vary", Hide::Output)]
            .into_iter()
            .find_map(|(exception, hide)| Some((exception, hidden([&before, &between, &after], hide)?)));
        // The model's output may differ once because of the server; a proxy that changes bytes does so every time.
        match compared {
            Some(_) if matches!(best, Outcome::Same(_)) => {}
            Some((exception, None)) => best = same(exception),
            Some((_, Some(place))) => best = Outcome::Differs(format!("{name}, {place}")),
            None => {}
        }
        before = after;
    }
    Ok(best)
}

/// Compares with masked values; `None` if the two direct responses still differ, otherwise the position where the
/// proxied response differs.
fn hidden(responses: [&Recording; 3], hide: Hide) -> Option<Option<String>> {
    let [before, between, after] = responses.map(|response| masked_response(response, hide));
    (before == after).then(|| (between != before).then(|| place(&before, &between)))
}

/// Headers and body. `content-length` is masked, because it depends on masked values.
fn masked_response(response: &Recording, hide: Hide) -> Vec<u8> {
    let mut form = head(response, &BTreeSet::new());
    form.extend_from_slice(&masked(response.body(), hide));
    form
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::recorded;

    fn stream(server: &str, date: &str, events: &[&str], joined: bool) -> Recording {
        let head = format!("date: {date}\r\nserver: {server}\r\ntransfer-encoding: chunked\r\n");
        let whole = events.iter().map(|data| format!("data: {data}\n\n"));
        let chunks: Vec<String> = if joined { vec![whole.collect()] } else { whole.collect() };
        recorded(&head, &chunks.iter().map(|chunk| (chunk.as_str(), 1)).collect::<Vec<_>>())
    }

    fn compared(direct: &[Recording], proxied: &[Recording]) -> Outcome {
        compare_streams(&direct.iter().collect::<Vec<_>>(), &proxied.iter().collect::<Vec<_>>())
    }

    fn spoken(words: &[&str]) -> Recording {
        let events: Vec<String> =
            words.iter().map(|word| format!("{{\"id\":\"{word}\",\"content\":\"{word}\"}}")).collect();
        stream("s", "d", &events.iter().map(String::as_str).collect::<Vec<_>>(), false)
    }

    fn event(id: u32, content: &str) -> String {
        format!("{{\"id\":\"{id}\",\"content\":\"{content}\"}}")
    }

    #[test]
    fn comparison_is_as_strict_as_the_servers_own_streams_allow() {
        let one = |id: u32, date: &str| stream("s", date, &[&event(id, "a"), &event(id, "b"), "[DONE]"], false);
        let same = |level: usize| Outcome::Same(format!("1 streams: {}", LEVELS[level].2));
        assert_eq!(compared(&[one(1, "x"), one(2, "y")], &[one(3, "z")]), same(0));
        let merged = stream("s", "x", &[&event(1, "a"), &event(1, "b"), "[DONE]"], true);
        assert_eq!(compared(&[one(1, "x"), merged.clone()], &[merged]), same(1));
        assert_eq!(compared(&[spoken(&["a", "b"]), spoken(&["c", "d", "e"])], &[spoken(&["f"])]), same(2));
        let other = stream("s", "d", &["{\"kind\":1}"], false);
        assert!(matches!(compared(&[spoken(&["a"]), other], &[spoken(&["a"])]), Outcome::Unsure(_)));
    }

    #[test]
    fn changed_header_or_event_kind_is_certain_at_once() {
        let own = [spoken(&["a", "b"]), spoken(&["a", "b"])];
        for changed in [
            stream("t", "d", &[&event(1, "a"), &event(1, "b")], false),
            stream("s", "d", &[&event(1, "a"), "{\"id\":\"1\",\"kontent\":\"b\"}"], false),
        ] {
            let Outcome::Differs(words) = compared(&own, &[changed, spoken(&["a", "b"])]) else {
                panic!("the streams must differ")
            };
            assert!(words.starts_with("1 of 2 streams, at byte "), "{words}");
        }
    }

    #[test]
    fn different_text_is_certain_only_when_repeated() {
        let own: Vec<Recording> = (0..6).map(|_| spoken(&["a", "b"])).collect();
        let proxied = |odd: usize| -> Vec<Recording> {
            (0..6).map(|number| if number < odd { spoken(&["a", "x"]) } else { spoken(&["a", "b"]) }).collect()
        };
        for (odd, expected) in [(1, false), (4, false), (5, true), (6, true)] {
            let (words, certain) = match compared(&own, &proxied(odd)) {
                Outcome::Differs(words) => (words, true),
                Outcome::Unsure(words) => (words, false),
                Outcome::Same(_) => panic!("{odd} streams must differ"),
            };
            assert!(words.starts_with(&format!("{odd} of 6 streams")), "{words}");
            assert_eq!(certain, expected);
        }
    }

    fn response(id: u32, content: &str) -> Recording {
        let body = format!("{{\"id\":{id},\"content\":\"{content}\"}}");
        recorded(&format!("date: {id}\r\ncontent-length: {}\r\n", body.len()), &[(&body, 1)])
    }

    #[test]
    fn only_values_that_differ_directly_are_masked() {
        let (one, two, three) = (response(1, "a"), response(22, "a"), response(333, "a"));
        assert_eq!(hidden([&one, &two, &three], Hide::Varying), Some(None));
        let changed = hidden([&one, &response(2, "b"), &three], Hide::Varying);
        assert!(matches!(changed, Some(Some(_))), "{changed:?}");
        assert_eq!(hidden([&one, &two, &response(3, "b")], Hide::Varying), None);
        assert_eq!(hidden([&one, &two, &response(3, "b")], Hide::Output), Some(None));
    }
}
