//! Removes from a stream the token counts that [`include_usage`](super::include_usage) requested. The client gets the
//! same stream as without the rewrite.
//!
//! Bytes are sent as they arrive. Only an incomplete event is held back, because a client cannot use it either.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use memchr::memmem::{self, Finder};

use tokometer_wire::budget::{Account, Share};

use crate::body::events::Boundary;
use crate::body::members::{Member, members};

/// Maximum size of an incomplete event that is held back. Larger events pass unmodified, because events with counts are
/// small.
const HELD_BYTES: usize = 64 * 1024;

/// Maximum number of members of the event with the counts. Engines write about ten.
const MOVED: usize = 32;

/// Strings that identify events of engines that write `"usage":null` in every event, even if counts were not requested
/// (SGLang 0.5.23, `/v1/completions`).
const ALWAYS_NULL: [&[u8]; 1] = [b"\"matched_stop\""];

/// Removes the counts from the stream of one response.
#[derive(Debug)]
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
    /// Holds `held` and `finish`.
    share: Share,
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
    /// Charges held events to this account.
    pub(crate) fn new(account: &Account) -> StripUsage {
        let (boundary, share) = (Boundary::default(), account.share());
        StripUsage { boundary, held: BytesMut::new(), passing: false, finish: None, share }
    }

    /// Processes the next bytes of the stream; returns the bytes to send.
    pub(crate) fn feed(&mut self, bytes: Bytes) -> Bytes {
        let mut found;
        let bytes = if self.held.is_empty() {
            found = self.boundary.find(&bytes);
            bytes
        } else {
            self.held.extend_from_slice(&bytes);
            found = self.boundary.find(&self.held);
            if found.is_none() && !self.passing && self.may_hold(0) {
                return Bytes::new();
            }
            std::mem::take(&mut self.held).freeze()
        };
        let mut out = Output::new(&bytes);
        let mut start = 0;
        while let Some(length) = found {
            let end = start + length;
            if std::mem::take(&mut self.passing) {
                out.keep(start, end);
            } else {
                self.event(&bytes, start..end, &mut out);
            }
            start = end;
            found = self.boundary.find(bytes.get(start..).unwrap_or_default());
        }
        if self.passing || !self.may_hold(bytes.len() - start) {
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

    /// True if this many more bytes may be held back.
    fn may_hold(&mut self, more: usize) -> bool {
        let finish = self.finish.as_ref().map_or(0, Bytes::len);
        let held = (self.held.len() + more).max(self.held.capacity());
        self.held.len() + more <= HELD_BYTES && self.share.hold(held + finish).is_ok()
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
        if let (Verdict::Remove, Some(finish)) = (&verdict, &mut self.finish)
            && let Some(whole) = with_members_of(finish, event)
        {
            *finish = whole;
        }
        self.release(out);
        match verdict {
            Verdict::Keep if self.holds_finish(event) => {}
            Verdict::Keep => out.keep(at.start, at.end),
            Verdict::Remove => {}
            Verdict::Replace(event) if self.holds_finish(&event) => {}
            Verdict::Replace(event) => out.add(&event),
        }
    }

    /// Holds this event back if it has a finish reason. It is copied, so that it does not keep the received bytes alive.
    fn holds_finish(&mut self, event: &[u8]) -> bool {
        let holds = finishes(event) && self.share.hold(event.len()).is_ok();
        if holds {
            self.finish = Some(Bytes::copy_from_slice(event));
        }
        holds
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
    let mut usage: Option<Member<'_>> = None;
    // Ends of the members before and at `usage`, and start of the one after.
    let (mut before, mut after, mut empty_choices, mut end) = (None, None, false, None);
    let is_object = members(json, |member| {
        if usage.is_some() {
            after.get_or_insert(member.name.start);
        }
        if member.is("choices") {
            empty_choices = is_empty_array(member.value);
        } else if usage.is_none() && member.is("usage") {
            before = end;
            usage = Some(member.clone());
        }
        end = Some(member.at.end);
    });
    let Some(usage) = usage.filter(|_| is_object.is_some()) else { return Verdict::Keep };
    if usage.value == "null" && !ALWAYS_NULL.iter().any(|mark| memmem::find(event, mark).is_some()) {
        // Cuts out the comma before the member too, or the comma after the first member.
        let cut = match (before, after) {
            (Some(before), _) => before..usage.at.end,
            (None, after) => usage.name.start..after.unwrap_or(usage.at.end),
        };
        let parts = [event.get(..from + cut.start), event.get(from + cut.end..)].map(Option::unwrap_or_default);
        return Verdict::Replace(parts.concat().into());
    }
    if empty_choices && usage.value.starts_with('{') { Verdict::Remove } else { Verdict::Keep }
}

fn is_empty_array(value: &str) -> bool {
    let inner = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
    inner.is_some_and(|inner| inner.trim().is_empty())
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

/// The event `finish`, plus the members that only the event `counts` has, except `usage`. `None` if there are more than
/// [`MOVED`] of them, because `finish` is searched for each.
fn with_members_of(finish: &[u8], counts: &[u8]) -> Option<Bytes> {
    let (from, own) = data(finish)?;
    let (_, theirs) = data(counts)?;
    let mut end = None;
    members(own, |member| end = Some(member.at.end))?;
    let (mut moved, mut searches) = (Vec::new(), 0);
    members(theirs, |member| {
        searches += 1;
        if searches > MOVED || member.is("usage") {
            return;
        }
        let mut is_own = false;
        members(own, |own| is_own |= own.same_key(&member));
        if !is_own {
            moved.push(b',');
            moved.extend_from_slice(theirs.get(member.name.start..member.at.end).unwrap_or_default());
        }
    })?;
    let end = from + end.filter(|_| searches <= MOVED)?;
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
    use tokometer_wire::budget::Budget;

    use super::*;

    fn strip() -> StripUsage {
        StripUsage::new(&Account::unlimited())
    }

    /// The output for a stream in pieces of this size.
    fn stripped(stream: &[u8], piece: usize) -> Vec<u8> {
        let mut strip = strip();
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
        let mut strip = strip();
        let event = Bytes::from_static(b"data: {\"choices\":[{}]}\n\n");
        let out = strip.feed(event.clone());
        assert_eq!((out.as_ptr(), out.len()), (event.as_ptr(), event.len()), "no copy");
        assert_eq!(strip.feed(Bytes::from_static(b"data: {")), "");
        assert_eq!(strip.feed(Bytes::from_static(b"}\n\nda")), "data: {}\n\n");
    }

    #[test]
    fn empty_finish_reason_does_not_delay_an_event() {
        let event = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"\"}]}\n\n";
        assert_eq!(strip().feed(Bytes::from(event)), event);
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
        let mut strip = strip();
        let sent: usize =
            stream.as_bytes()[..2 * HELD_BYTES].chunks(1000).map(|b| strip.feed(Bytes::copy_from_slice(b)).len()).sum();
        assert!(sent > HELD_BYTES, "{sent}");
    }

    #[test]
    fn held_events_are_charged_and_pass_if_the_budget_is_exhausted() {
        let budget = Budget::new(1 << 20);
        let mut strip = StripUsage::new(&budget.account(None, 0));
        let start = format!("data: {{\"x\":\"{}", "x".repeat(10_000));
        for piece in start.as_bytes().chunks(7) {
            assert_eq!(strip.feed(Bytes::copy_from_slice(piece)), "");
            // The first piece is charged before its capacity is rounded up.
            assert!(budget.held() + 64 >= strip.held.capacity());
        }
        assert!((10_000..30_000).contains(&budget.held()), "{}", budget.held());
        budget.set_limit(0);
        let sent = strip.feed(Bytes::from("y".repeat(30_000)));
        assert_eq!(sent.len(), start.len() + 30_000, "all of it");
        assert_eq!(strip.feed(Bytes::from_static(b"\"}\n\n")), "\"}\n\n");
        let finish = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(strip.feed(Bytes::from(finish)), finish, "not held back");
        budget.set_limit(1 << 20);
        assert_eq!(strip.feed(Bytes::from(finish)), "");
        assert_eq!(budget.held(), finish.len());
        drop(strip);
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn members_of_large_events_are_not_moved() {
        let member = |at: usize| format!("\"{at}\":1,");
        let finish = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
        let counts = |members: usize| {
            let extra: String = (0..members).map(member).collect();
            format!("data: {{{extra}\"choices\":[],\"usage\":{{}}}}\n\n")
        };
        let with = |stream: &str| stripped(stream.as_bytes(), 1 << 20).len();
        assert!(with(&format!("{finish}{}", counts(MOVED - 2))) > finish.len());
        assert_eq!(with(&format!("{finish}{}", counts(6000))), finish.len());
    }
}
