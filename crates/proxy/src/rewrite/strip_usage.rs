//! Removes from a stream the token counts that [`include_usage`](super::include_usage) requested. The client gets the
//! same stream as without the rewrite.
//!
//! Bytes are sent as they arrive. Only an incomplete event is held back, because a client cannot use it either.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::{self, Finder};

use crate::rewrite::events::Boundary;
use crate::rewrite::members::{Member, members};

/// Maximum size of an incomplete event that is held back. Larger events pass unmodified, because events with counts are
/// small.
const HELD_BYTES: usize = 64 * 1024;

/// Strings that identify events of engines that write `"usage":null` in every event, even if counts were not requested
/// (SGLang 0.5.23, `/v1/completions`).
const ALWAYS_NULL: [&[u8]; 1] = [b"\"matched_stop\""];

/// Removes the counts from the stream of one response.
#[derive(Debug, Default)]
pub(crate) struct StripUsage {
    boundary: Boundary,
    /// The incomplete event at the end of the received bytes.
    held: BytesMut,
    /// The rest of the current event passes without being parsed.
    passing: bool,
    /// The event with the finish reason, held until the next event is parsed. Engines write some members only to the
    /// last event (llama.cpp: `timings`, vLLM: `system_fingerprint`). If the event with the counts follows, its members
    /// are moved to the held event.
    finish: Option<Bytes>,
}

/// What to do with an event.
enum Verdict {
    Keep,
    /// Remove the event with the counts.
    Remove,
    /// Replace the event with one that has no `"usage":null`.
    Replace(Bytes),
}

impl StripUsage {
    /// Processes the next bytes of the stream; returns the bytes to send.
    pub(crate) fn feed(&mut self, bytes: Bytes) -> Bytes {
        let bytes = if self.held.is_empty() {
            bytes
        } else {
            self.held.extend_from_slice(&bytes);
            std::mem::take(&mut self.held).freeze()
        };
        let mut out = Output::new(&bytes);
        let mut start = 0;
        while let Some(length) = self.boundary.find(bytes.get(start..).unwrap_or_default()) {
            let end = start + length;
            if std::mem::take(&mut self.passing) {
                out.keep(start, end);
            } else {
                self.event(&bytes, start..end, &mut out);
            }
            start = end;
        }
        let rest = bytes.len() - start;
        if self.passing || rest > HELD_BYTES {
            self.passing = true;
            self.release(&mut out);
            let gone = self.boundary.forget();
            out.keep(start, start + gone);
            start += gone;
        }
        self.held.extend_from_slice(bytes.get(start..).unwrap_or_default());
        let out = out.finish();
        out.unwrap_or(bytes)
    }

    /// The bytes that are still held back when the stream ends.
    pub(crate) fn end(&mut self) -> Bytes {
        let finish = self.finish.take().unwrap_or_default();
        match (finish.is_empty(), self.held.is_empty()) {
            (_, true) => finish,
            (true, false) => std::mem::take(&mut self.held).freeze(),
            (false, false) => [&finish[..], &std::mem::take(&mut self.held)[..]].concat().into(),
        }
    }

    fn event(&mut self, bytes: &Bytes, at: Range<usize>, out: &mut Output<'_>) {
        let event = bytes.get(at.clone()).unwrap_or_default();
        let verdict = verdict(event);
        if let (Verdict::Remove, Some(finish)) = (&verdict, &self.finish) {
            self.finish = Some(with_members_of(finish, event).unwrap_or_else(|| finish.clone()));
        }
        self.release(out);
        match verdict {
            Verdict::Keep if finishes(event) => self.finish = Some(bytes.slice(at)),
            Verdict::Keep => out.keep(at.start, at.end),
            Verdict::Remove => {}
            Verdict::Replace(event) if finishes(&event) => self.finish = Some(event),
            Verdict::Replace(event) => out.add(&event),
        }
    }

    /// Sends the event with the finish reason.
    fn release(&mut self, out: &mut Output<'_>) {
        if let Some(finish) = self.finish.take() {
            out.add(&finish);
        }
    }
}

/// True for an event with a finish reason, which is a string that is not empty. A match cannot be inside a string value, where the quotes would be escaped.
fn finishes(event: &[u8]) -> bool {
    static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"finish_reason\""));
    KEY.find_iter(event).any(|at| {
        let rest = event.get(at + KEY.needle().len()..).unwrap_or_default().trim_ascii_start();
        rest.strip_prefix(b":").is_some_and(|value| {
            let value = value.trim_ascii_start();
            value.starts_with(b"\"") && !value.starts_with(b"\"\"")
        })
    })
}

fn verdict(event: &[u8]) -> Verdict {
    static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));
    if KEY.find(event).is_none() {
        return Verdict::Keep;
    }
    let Some((from, json)) = data(event) else { return Verdict::Keep };
    let Some(all) = members(json) else { return Verdict::Keep };
    let find = |key: &str| all.iter().position(|member| member.key == key);
    let Some((index, usage)) = find("usage").and_then(|index| Some((index, all.get(index)?))) else {
        return Verdict::Keep;
    };
    if usage.value == "null" && !ALWAYS_NULL.iter().any(|mark| memmem::find(event, mark).is_some()) {
        let cut = without(&all, index);
        let parts = [event.get(..from + cut.start), event.get(from + cut.end..)].map(Option::unwrap_or_default);
        return Verdict::Replace(parts.concat().into());
    }
    let choices = find("choices").and_then(|index| all.get(index)).map(|choices| choices.value);
    if choices.is_some_and(is_empty_array) && usage.value.starts_with('{') { Verdict::Remove } else { Verdict::Keep }
}

fn is_empty_array(value: &str) -> bool {
    let inner = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim().is_empty())
}

/// The range to cut out to remove this member and the comma before it, or the comma after the first member.
fn without(all: &[Member<'_>], index: usize) -> Range<usize> {
    let this = &all[index];
    match (index.checked_sub(1).and_then(|before| all.get(before)), all.get(index + 1)) {
        (Some(before), _) => before.at.end..this.at.end,
        (None, Some(after)) => this.name.start..after.name.start,
        (None, None) => this.name.start..this.at.end,
    }
}

/// The data of an event and its position. `None` if the data spans several lines or is missing.
fn data(event: &[u8]) -> Option<(usize, &[u8])> {
    let mut found = None;
    let mut start = 0;
    for line in event.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
        if let Some(value) = line.strip_prefix(b"data:")
            && found.replace((start + 5, value)).is_some()
        {
            return None;
        }
        start += line.len();
    }
    found
}

/// The event `finish`, plus the members that only the event `counts` has, except `usage`.
fn with_members_of(finish: &[u8], counts: &[u8]) -> Option<Bytes> {
    let (from, own) = data(finish)?;
    let own = members(own)?;
    let (_, theirs) = data(counts)?;
    let mut moved = Vec::new();
    for member in members(theirs)?.iter().filter(|member| member.key != "usage") {
        if own.iter().all(|own| own.key != member.key) {
            moved.push(b',');
            moved.extend_from_slice(theirs.get(member.name.start..member.at.end)?);
        }
    }
    let end = from + own.last()?.at.end;
    Some([finish.get(..end)?, &moved, finish.get(end..)?].concat().into())
}

/// The bytes to send. They are copied only if they are not one slice of the input.
struct Output<'a> {
    input: &'a Bytes,
    /// The slice of the input.
    kept: Range<usize>,
    copy: BytesMut,
}

impl<'a> Output<'a> {
    fn new(input: &'a Bytes) -> Output<'a> {
        Output { input, kept: 0..0, copy: BytesMut::new() }
    }

    /// Adds a part of the input.
    fn keep(&mut self, start: usize, end: usize) {
        if self.kept.is_empty() {
            self.kept = start..end;
        } else if self.kept.end == start {
            self.kept.end = end;
        } else {
            self.flush();
            self.kept = start..end;
        }
    }

    /// Adds other bytes.
    fn add(&mut self, bytes: &[u8]) {
        self.flush();
        self.copy.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        let kept = std::mem::replace(&mut self.kept, 0..0);
        self.copy.extend_from_slice(self.input.get(kept).unwrap_or_default());
    }

    /// Returns the bytes to send; `None` if they are the whole input.
    fn finish(mut self) -> Option<Bytes> {
        if !self.copy.is_empty() {
            self.flush();
            return Some(self.copy.freeze());
        }
        // A slice of the whole input would cost an allocation.
        (self.kept != (0..self.input.len())).then(|| self.input.slice(self.kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output for a stream in pieces of this size.
    fn stripped(stream: &[u8], piece: usize) -> Vec<u8> {
        let mut strip = StripUsage::default();
        let mut out = Vec::new();
        for bytes in stream.chunks(piece) {
            out.extend_from_slice(&strip.feed(Bytes::copy_from_slice(bytes)));
        }
        out.extend_from_slice(&strip.end());
        out
    }

    fn check(stream: &str, expected: &str) {
        for piece in 1..=stream.len() {
            let out = stripped(stream.as_bytes(), piece);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "in pieces of {piece}");
        }
    }

    #[test]
    fn event_with_the_counts_is_removed_at_every_split() {
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":null\"}}]}\n\n";
        let counts = "data: {\"id\":\"a\",\"choices\": [ ],\"usage\":{\"completion_tokens\":2}}\n\n";
        check(&format!("{text}{counts}data: [DONE]\n\n"), &format!("{text}data: [DONE]\n\n"));
        let crlf = format!("{text}{counts}data: [DONE]\n\n").replace('\n', "\r\n");
        check(&crlf, &format!("{text}data: [DONE]\n\n").replace('\n', "\r\n"));
    }

    #[test]
    fn null_of_other_events_is_removed_where_the_option_caused_it() {
        for (event, expected) in [
            (r#"{"choices":[{}],"usage":null}"#, r#"{"choices":[{}]}"#),
            (r#"{"choices":[{}], "usage" : null , "model":"m"}"#, r#"{"choices":[{}] , "model":"m"}"#),
            (r#"{"usage":null, "choices":[{}]}"#, r#"{"choices":[{}]}"#),
            (r#"{"usage":null}"#, "{}"),
            (
                r#"{"choices":[{"matched_stop":null}],"usage":null}"#,
                r#"{"choices":[{"matched_stop":null}],"usage":null}"#,
            ),
            (r#"{"choices":[{"usage":null}]}"#, r#"{"choices":[{"usage":null}]}"#),
        ] {
            check(&format!("data: {event}\n\n"), &format!("data: {expected}\n\n"));
        }
    }

    #[test]
    fn everything_else_passes_unchanged() {
        for stream in [
            ": comment\n\nevent: x\ndata: {\"choices\":[{}],\"usage\":{\"completion_tokens\":1}}\n\n",
            "data: {\"choices\":[],\"prompt_filter_results\":[],\"note\":\"usage\"}\n\n",
            "data: {\"error\":{\"message\":\"usage\"}}\n\n",
            "data: {\"choices\":[],\n\ndata: \"usage\":{}}\n\n",
            "data: {\"choices\":[],\ndata: \"usage\":{}}\n\n",
            "data: {\"choices\":[],\"usage\":{\"a\":1}",
            "\n\n\n",
            "",
        ] {
            check(stream, stream);
        }
    }

    #[test]
    fn members_that_moved_return_to_the_event_with_the_finish_reason() {
        let (begin, finish) =
            ("data: {\"choices\":[{\"delta\":{}}]}\n\n", "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"id\":1}");
        let counts = "data: {\"choices\":[],\"id\":1,\"usage\":{\"a\":1},\"timings\":{\"n\":[2]}}\n\n";
        let done = "data: [DONE]\n\n";
        let with = format!("{},\"timings\":{{\"n\":[2]}}}}\n\n", &finish[..finish.len() - 1]);
        check(&format!("{begin}{finish}\n\n{counts}{done}"), &format!("{begin}{with}{done}"));
        check(&format!("{begin}{finish}\n\n{done}"), &format!("{begin}{finish}\n\n{done}"));
        check(&format!("{begin}{finish}\n\n"), &format!("{begin}{finish}\n\n"));
    }

    #[test]
    fn complete_events_are_not_held_back() {
        let mut strip = StripUsage::default();
        let event = Bytes::from_static(b"data: {\"choices\":[{}]}\n\n");
        let out = strip.feed(event.clone());
        assert_eq!((out.as_ptr(), out.len()), (event.as_ptr(), event.len()), "no copy");
        assert_eq!(strip.feed(Bytes::from_static(b"data: {")), "");
        assert_eq!(strip.feed(Bytes::from_static(b"}\n\nda")), "data: {}\n\n");
    }

    #[test]
    fn empty_finish_reason_does_not_delay_an_event() {
        let event = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"\"}]}\n\n";
        assert_eq!(StripUsage::default().feed(Bytes::from(event)), event);
    }

    #[test]
    fn large_event_passes_before_its_end() {
        let large = format!("data: {{\"choices\":[],\"x\":\"{}\",\"usage\":{{}}}}\n\n", "x".repeat(3 * HELD_BYTES));
        let counts = "data: {\"choices\":[],\"usage\":{}}\n\n";
        let stream = format!("{large}{counts}{large}");
        for piece in [1000, 4096, HELD_BYTES, HELD_BYTES + 7] {
            let out = stripped(stream.as_bytes(), piece);
            assert!(out == format!("{large}{large}").as_bytes(), "in pieces of {piece}: {} bytes", out.len());
        }
        let mut strip = StripUsage::default();
        let sent: usize =
            stream.as_bytes()[..2 * HELD_BYTES].chunks(1000).map(|b| strip.feed(Bytes::copy_from_slice(b)).len()).sum();
        assert!(sent > HELD_BYTES, "{sent}");
    }
}
