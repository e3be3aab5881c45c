//! `docs/ENGINES.md`, made from what the recordings gave. `UPDATE=1` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use tokometer::measure::Record;

use super::{Case, all};

const INTRODUCTION: &str = "\
# Engines

<!-- Made from what tests/it/truth ran: `UPDATE=1 cargo test --test it truth::document` rewrites it. -->

What is read of each engine, by API. Every row is the sum of recordings of the real server (`tests/fixtures/captures`) that
the tests run through the observer, or, where it says so, of fixtures written from its source (`tests/fixtures/written`); the
numbers in brackets say how many of them gave what is named. Counts are held against the engines' own counters, outcomes
against what the recorder saw, times against a naive reading of the recordings (`tests/it/truth`).

- **Output tokens**, **prompt tokens**: where the count comes from. `deltas_lower_bound` marks a lower bound: the stream carried no count, or
  broke off before it came.
- **First token**: when the first token was seen, against the head and the first event of the stream. Without a stream it is
  not known.
- **Other ends**: outcomes other than `ok`, and what the engine called the error.
- **Queue time**: its source, where the answer tells one.

What is not HTTP/1.1 is held by tests of its own: `tests/it/http2` (HTTP/2 and gRPC: the services of vLLM, SMG and TensorRT-LLM,
whose chunks carry token counts or ids, and Triton's, whose do not) and `tests/it/websocket` (`/v1/realtime`). A call of Triton's
`ModelStreamInfer` is one exchange, however many requests share it, and its count is a lower bound; compressed gRPC messages are
not read, only how their call ended. Each answer of a realtime session is an exchange.

";

/// What the recordings of one row gave.
#[derive(Default)]
struct Row {
    named: BTreeSet<String>,
    counts: BTreeMap<String, usize>,
    inputs: BTreeMap<String, usize>,
    first_token: BTreeMap<String, usize>,
    finishes: BTreeMap<String, usize>,
    ends: BTreeMap<String, usize>,
    queue: BTreeMap<String, usize>,
    cases: Vec<String>,
}

impl Row {
    fn add(&mut self, case: &Case, record: &Record) {
        type Column = BTreeMap<String, usize>;
        let mut count = |of: fn(&mut Row) -> &mut Column, what: String| {
            *of(self).entry(what).or_default() += 1;
        };
        if let Some(output) = record.output_tokens {
            count(|row| &mut row.counts, format!("`{}`", output.source.as_str()));
        }
        if let Some(input) = record.input_tokens {
            count(|row| &mut row.inputs, format!("`{}`", input.source.as_str()));
        }
        if let Some(first) = record.first_token {
            let with = match () {
                () if Some(first) == record.headers => "with the head",
                () if Some(first) == record.first_event => "with the first event",
                () => "after the first event",
            };
            count(|row| &mut row.first_token, with.to_owned());
        }
        let finishes: BTreeSet<&str> = record.finish_reasons.iter().map(|reason| reason.as_str()).collect();
        for reason in finishes {
            count(|row| &mut row.finishes, format!("`{reason}`"));
        }
        if !record.outcome.is_ok() {
            let kind = record.error_type.as_ref().map(|kind| format!(": {kind}")).unwrap_or_default();
            count(|row| &mut row.ends, format!("`{}`{kind}", record.outcome.as_str()));
        }
        if let Some(queue) = record.queue {
            count(|row| &mut row.queue, format!("`{}`", queue.source.as_str()));
        }
        self.named.extend(record.labels.engine.map(|engine| format!("`{engine}`")));
        let kind = if case.is_written() { " (fixture)" } else { "" };
        self.cases.push(format!("`{}`{kind}", case.name));
    }

    fn cells(&self) -> [String; 8] {
        let counted = |map: &BTreeMap<String, usize>| {
            let mut parts: Vec<_> = map.iter().collect();
            parts.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            let parts: Vec<String> = parts.into_iter().map(|(what, n)| format!("{what} ({n})")).collect();
            if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
        };
        let named: Vec<&str> = self.named.iter().map(String::as_str).collect();
        let shown = self.cases.len().min(3);
        let more = self.cases.len() - shown;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        [
            if named.is_empty() { "-".to_owned() } else { named.join(", ") },
            counted(&self.counts),
            counted(&self.inputs),
            counted(&self.first_token),
            counted(&self.finishes),
            counted(&self.ends),
            counted(&self.queue),
            format!("{}{more}", self.cases[..shown].join(", ")),
        ]
    }
}

/// The whole document.
fn made() -> String {
    let mut engines: BTreeMap<String, BTreeMap<(String, bool), Row>> = BTreeMap::new();
    for case in all() {
        let Some(record) = case.record() else { continue };
        let route = format!("{} {}", case.text("method"), case.text("path"));
        let read = record.labels.route != tokometer::decode::Route::Other;
        if case.recording.reads.is_empty() || !read {
            continue;
        }
        let streaming = record.labels.streaming == Some(true);
        engines.entry(case.engine.clone()).or_default().entry((route, streaming)).or_default().add(&case, &record);
    }
    let mut text = INTRODUCTION.to_owned();
    for (engine, rows) in engines {
        writeln!(text, "## {engine}\n").expect("a String takes all");
        text += "| Route | Streaming | Recognised as | Output tokens | Prompt tokens | First token | Finish | Other ends | Queue time | Recordings |\n";
        text += "|---|---|---|---|---|---|---|---|---|---|\n";
        for ((route, streaming), row) in rows {
            let streaming = if streaming { "yes" } else { "no" };
            writeln!(text, "| `{route}` | {streaming} | {} |", row.cells().join(" | ")).expect("a String takes all");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[test]
fn engines_md_is_what_the_recordings_gave() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ENGINES.md");
    let made = made();
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        fs::write(&path, &made).expect("a folder of this repository can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "docs/ENGINES.md is out of date: UPDATE=1 cargo test --test it truth::document");
}
