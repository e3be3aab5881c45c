//! `docs/ENGINES.md`, made from what the recordings gave. `UPDATE=1` writes it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use tokometer_observe::measure::Record;

use super::{Case, all};

const INTRODUCTION: &str = "\
# Engines

<!-- Made from what tests/it/truth ran: `UPDATE=1 cargo test --test it truth::document` rewrites it. -->

What is read of each engine, by API. Every row is the sum of recordings of the real server (`tests/fixtures/captures`) that
the tests run through the observer, or, where it says so, of fixtures written from its source (`tests/fixtures/written`); the
numbers in brackets say how many of them gave what is named. Counts are held against the engines' own counters, outcomes
against what the recorder saw, times against a naive reading of the recordings (`tests/it/truth`).

- **Output tokens**, **prompt tokens**: where the count comes from. `deltas_lower_bound` marks a lower bound: the stream carried no count, or
  broke off before it came. With a vocabulary (`observe.tokenizer`) its text is counted in its place, see below.
- **First token**: when the first token was seen, against the head and the first event of the stream. Without a stream it is
  not known.
- **Other ends**: outcomes other than `ok`, and what the engine called the error.
- **Queue time**: its source, where the answer tells one.

What is not HTTP/1.1 is held by tests of its own: `tests/it/http2` (HTTP/2 and gRPC: the services of vLLM, SMG and TensorRT-LLM,
whose chunks carry token counts or ids, and Triton's, whose do not) and `tests/it/websocket` (`/v1/realtime`). A call of Triton's
`ModelStreamInfer` is one exchange, however many requests share it, and its count is a lower bound: their ids are the client's, and may
be empty or the same, and a decoupled model marks a request's last response only for a client that asks for it. Each answer of a
realtime session is an exchange.

## Where the count comes from

The first of these that an answer has: `usage`; `token_ids`, the ids in its events; `native_counter`, a counter of the engine's own;
`tokenizer`, its text; `deltas_lower_bound`. The first three are exact.

`tokenizer` is an estimate, and never taken for more: it gives no `gen_ai` token metric and no time per output token, and its rate is
told under its own `source`. Tokometer keeps the answer's text in memory while it runs, cuts it by the `tokenizer.json` that
`observe.tokenizer` names, and forgets it. So it is the count of the text. In the recordings (`tests/it/truth/texts.rs`, one model,
five servers) that is what was sampled but for the end-of-text token where the model ended the answer, and for 2 to 4 tokens more
where it reasoned: the marks around reasoning, and white space that a parser took off. It may be less by more: reasoning that is
asked not to be told, a stop string that was cut off, special tokens that are not written, and text that was sampled in other pieces
than a tokenizer cuts it in (under a grammar; that may also make it more). Of a cut answer it is what came. It is told only of text: not where tools were
called, nor of several answers in one (`n`), an echoed prompt, audio, gRPC and realtime, nor where it comes to fewer tokens than were
seen, for then the vocabulary is not the model's; `tokometer.tokenizer.uncounted` counts these by reason. Prompts are not counted so:
a chat template, which is not known here, comes between them and their tokens.

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
        let read = record.labels.route != tokometer_decode::Route::Other;
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
