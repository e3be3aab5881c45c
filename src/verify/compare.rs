//! Compares proxied responses with direct ones, at the strictest level at which the server's own responses are identical.

use std::collections::BTreeSet;

use crate::client::Caller;
use crate::client::Failure;
use crate::client::Recording;
use crate::client::header_of;
use crate::verify::mask::Hide;
use crate::verify::mask::masked;

/// Strictness of the comparison. Each level includes the ones after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Every byte except ids and times, and chunk boundaries.
    Whole,
    /// Every byte except ids and times.
    Text,
    /// The kinds of events in their order, and chunk boundaries; not the model's output.
    Chunks,
    /// The kinds of events in their order.
    Events,
}

impl Level {
    const ALL: [Level; 4] = [Level::Whole, Level::Text, Level::Chunks, Level::Events];

    /// What is identical at this level.
    pub(super) fn words(self) -> &'static str {
        match self {
            Level::Whole => "headers, chunks, events and text, byte for byte except ids and times",
            Level::Text => {
                "headers, events and text, byte for byte except ids and times (the server's own chunks vary)"
            }
            Level::Chunks => {
                "headers, chunks and kinds of events, byte for byte except values that vary (the server's own text varies)"
            }
            Level::Events => {
                "headers and kinds of events, byte for byte except values that vary (the server's own text and chunks vary)"
            }
        }
    }
}

/// Headers whose values always differ.
const MOMENTARY: &[&[u8]] = &[b"date", b"x-request-id", b"content-length"];

/// Minimum number of differing responses that rules out the server as the cause: by chance, so many of them would all
/// be on one side once in 32 times.
const CERTAIN: usize = 5;

/// Result of comparing streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// No difference at this level.
    Same(Level),
    /// The server's own streams differ even in their kinds of events.
    Incomparable,
    /// Proxied streams differ.
    Differ {
        /// How many.
        responses: usize,
        /// The server is ruled out as the cause.
        certain: bool,
        /// Position of the first difference, with excerpts of both sides.
        place: String,
    },
}

/// Compares direct streams with proxied ones.
pub(super) fn compare_streams(direct: &[Recording], proxied: &[Recording]) -> Likeness {
    let varying = varying_headers(direct);
    let mut forms = Vec::new();
    for level in Level::ALL {
        let own: BTreeSet<Vec<u8>> = direct.iter().map(|recording| form(recording, level, &varying)).collect();
        if let (Some(own), 1) = (own.first(), own.len()) {
            forms.push((level, own.clone()));
        }
    }
    let (Some((level, closest)), Some((loosest, loose))) = (forms.first(), forms.last()) else {
        return Likeness::Incomparable;
    };
    let differing = |level: Level, own: &[u8]| -> Vec<Vec<u8>> {
        proxied.iter().map(|recording| form(recording, level, &varying)).filter(|form| form != own).collect()
    };
    let different = differing(*level, closest);
    let Some(first) = different.first() else { return Likeness::Same(*level) };
    // The loosest form contains nothing that sampling or timing can change.
    let structural = *loosest == Level::Events && !differing(*loosest, loose).is_empty();
    let certain = structural || different.len() >= CERTAIN;
    Likeness::Differ { responses: different.len(), certain, place: place(closest, first) }
}

fn momentary_headers() -> BTreeSet<Vec<u8>> {
    MOMENTARY.iter().map(|name| name.to_vec()).collect()
}

/// Lower-case names of headers whose values differ among these responses.
fn varying_headers(recordings: &[Recording]) -> BTreeSet<Vec<u8>> {
    let mut varying = momentary_headers();
    let mut first: Option<Vec<(Vec<u8>, Vec<u8>)>> = None;
    for recording in recordings {
        let headers = recording.head().skip(1).filter_map(header_of);
        let headers: Vec<_> = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect();
        match &first {
            None => first = Some(headers),
            Some(known) => {
                let new = headers.iter().filter(|header| !known.contains(header));
                varying
                    .extend(new.filter(|(name, _)| known.iter().any(|(own, _)| own == name)).map(|(n, _)| n.clone()));
            }
        }
    }
    varying
}

/// The part of a stream that is compared at this level.
fn form(recording: &Recording, level: Level, varying: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let mut form = head(recording, varying);
    let hide = match level {
        Level::Whole | Level::Text => Hide::Momentary,
        Level::Chunks | Level::Events => Hide::Spoken,
    };
    let chunks = matches!(level, Level::Whole | Level::Chunks) && recording.is_chunked();
    let ends = if chunks { recording.chunk_ends() } else { Vec::new() };
    let body = recording.body();
    let (mut event, mut last, mut at) = (Vec::new(), Vec::new(), 0);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let range = at + 1..=at + line.len();
        at += line.len();
        // Comments are skipped: they are sent by a timer, not by the model.
        if !line.starts_with(b":") {
            match line.strip_prefix(b"data:") {
                Some(data) => {
                    event.extend_from_slice(b"data:");
                    event.extend_from_slice(&masked(data, hide));
                }
                None => event.extend_from_slice(line),
            }
        }
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
    if hide == Hide::Momentary || event != last {
        form.extend_from_slice(event);
    }
    std::mem::swap(event, last);
    event.clear();
}

/// The headers, with values that vary masked.
fn head(recording: &Recording, varying: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let mut head = Vec::new();
    for line in recording.head() {
        match header_of(line).filter(|(name, _)| varying.contains(&name.to_ascii_lowercase())) {
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
pub(super) enum SideError {
    Direct(Failure),
    Proxied(Failure),
}

/// Maximum number of attempts to get two identical direct responses.
const TRIES: usize = 4;

/// Compares one response byte for byte: sends the request directly, proxied and directly again, with the bytes that
/// `request` makes for each side. If the direct responses are identical, including times, the proxied one must be too.
pub(super) fn compare_exact(
    direct: &mut Caller,
    proxied: &mut Caller,
    request: impl Fn(&Caller) -> Vec<u8>,
) -> Result<Outcome, SideError> {
    let send_direct = |caller: &mut Caller| caller.ask(&request(caller)).map_err(SideError::Direct);
    let mut before = send_direct(direct)?;
    let mut best = Outcome::Incomparable;
    for _ in 0..TRIES {
        let between = proxied.ask(&request(proxied)).map_err(SideError::Proxied)?;
        let after = send_direct(direct)?;
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
fn hidden(responses: [&Recording; 3], closeness: Closeness, hide: Hide) -> Option<Outcome> {
    let [before, between, after] = responses.map(|response| masked_response(response, hide));
    (before == after).then(|| match between == before {
        true => Outcome::Same(closeness),
        false => Outcome::Differs(place(&before, &between)),
    })
}

/// Headers and body. `content-length` is masked, because it depends on masked values.
fn masked_response(response: &Recording, hide: Hide) -> Vec<u8> {
    let mut form = head(response, &momentary_headers());
    form.extend_from_slice(&masked(&response.body(), hide));
    form
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::recorded;

    fn stream(server: &str, date: &str, events: &[&str], joined: bool) -> Recording {
        let mut text =
            format!("HTTP/1.1 200 OK\r\ndate: {date}\r\nserver: {server}\r\ntransfer-encoding: chunked\r\n\r\n");
        let whole = events.iter().map(|data| format!("data: {data}\n\n"));
        let chunks: Vec<String> = if joined { vec![whole.collect()] } else { whole.collect() };
        chunks.iter().for_each(|chunk| text.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len())));
        text.push_str("0\r\n\r\n");
        recorded(&[(&text, 1)])
    }

    fn detail(words: &[&str]) -> Recording {
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
        assert_eq!(compare_streams(&[one(1, "x"), one(2, "y")], &[one(3, "z")]), Likeness::Same(Level::Whole));
        let merged = stream("s", "x", &[&event(1, "a"), &event(1, "b"), "[DONE]"], true);
        assert_eq!(compare_streams(&[one(1, "x"), merged.clone()], &[merged]), Likeness::Same(Level::Text));
        assert_eq!(
            compare_streams(&[detail(&["a", "b"]), detail(&["c", "d", "e"])], &[detail(&["f"])]),
            Likeness::Same(Level::Chunks)
        );
        let other = stream("s", "d", &["{\"kind\":1}"], false);
        assert_eq!(compare_streams(&[detail(&["a"]), other], &[detail(&["a"])]), Likeness::Incomparable);
    }

    #[test]
    fn changed_header_or_event_kind_is_certain_at_once() {
        let own = [detail(&["a", "b"]), detail(&["a", "b"])];
        for changed in [
            stream("t", "d", &[&event(1, "a"), &event(1, "b")], false),
            stream("s", "d", &[&event(1, "a"), "{\"id\":\"1\",\"kontent\":\"b\"}"], false),
        ] {
            let Likeness::Differ { responses: 1, certain: true, place } =
                compare_streams(&own, &[changed, detail(&["a", "b"])])
            else {
                panic!("the streams must differ")
            };
            assert!(place.starts_with("at byte "), "{place}");
        }
    }

    #[test]
    fn different_text_is_certain_only_when_repeated() {
        let own: Vec<Recording> = (0..6).map(|_| detail(&["a", "b"])).collect();
        let proxied = |odd: usize| -> Vec<Recording> {
            (0..6).map(|number| if number < odd { detail(&["a", "x"]) } else { detail(&["a", "b"]) }).collect()
        };
        for (odd, expected) in [(1, false), (4, false), (5, true), (6, true)] {
            let Likeness::Differ { responses, certain, .. } = compare_streams(&own, &proxied(odd)) else {
                panic!("{odd} streams must differ")
            };
            assert_eq!((responses, certain), (odd, expected));
        }
    }

    fn response(id: u32, content: &str) -> Recording {
        let body = format!("{{\"id\":{id},\"content\":\"{content}\"}}");
        recorded(&[(&format!("HTTP/1.1 200 OK\r\ndate: {id}\r\ncontent-length: {}\r\n\r\n{body}", body.len()), 1)])
    }

    #[test]
    fn only_values_that_differ_directly_are_masked() {
        let compared = |responses: [&Recording; 3], hide| hidden(responses, Closeness::Masked, hide);
        let (one, two, three) = (response(1, "a"), response(22, "a"), response(333, "a"));
        assert_eq!(compared([&one, &two, &three], Hide::Momentary), Some(Outcome::Same(Closeness::Masked)));
        let outcome = compared([&one, &response(2, "b"), &three], Hide::Momentary);
        assert!(matches!(outcome, Some(Outcome::Differs(_))), "{outcome:?}");
        assert_eq!(compared([&one, &two, &response(3, "b")], Hide::Momentary), None);
        assert!(matches!(compared([&one, &two, &response(3, "b")], Hide::Spoken), Some(Outcome::Same(_))));
    }
}
