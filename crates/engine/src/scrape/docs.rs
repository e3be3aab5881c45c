//! `docs/ENGINE_STATE.md`, made from the table of names.

use std::fmt::Write;

use crate::scrape::families::Kind;
use crate::scrape::families::Quantity;
use crate::scrape::families::SOURCES;
use crate::scrape::families::Source;
use crate::scrape::families::Term;

const HEAD: &str = "# The engine's state

<!-- Made from the table in src/scrape/families.rs: `UPDATE=1 cargo test engine_state_md` rewrites it. -->

Tokometer reads the metrics of the engine behind each pair every few seconds and tells what it finds under one set of names,
whatever the engine: how many requests run and wait, how full the key-value cache is, what the prefix cache and speculative
decoding bring, how often a request lost its place. Nothing has to be set; `scrape` in the configuration has the interval, the
limits, path, port number and the switch.

- The reading happens on a thread of its own with low priority and on connections of its own: no relayed connection is used,
  and the readings are in no figure of the traffic.
- What an engine does not tell has no series. When a page cannot be read, all series of that engine but
  `tokometer.engine.scrape.*` end until one is read again; the failures' `reason` says why.
- Counts begin when the engine's page is first read, and go on over restarts of the engine. Of several ranks or models on one
  page, counts and requests are added up (copies of one figure by tensor- and pipeline-parallel ranks are not), and the
  key-value cache is that of the fullest rank. Of a name with more than 256 series nothing is told.
- `tokometer.engine.prefix_cache.hit_ratio` and `tokometer.engine.speculative.acceptance_ratio` are what the counts gained
  between two pages where the engine counts (`source=\"counter_deltas\"`), else the engine's own figure
  (`source=\"engine_gauge\"`). The unit of the cache's counts is the engine's own.
- `tokometer.queue.time.estimate` (`source=\"engine_metrics_estimate\"`) is the mean wait of the requests that the engine's queue
  histogram gained between two pages. It is an estimate for the whole engine: which request waited how long is not in it, and
  most engines count a wait only when the request has ended. It is never mixed with `tokometer.queue.time`, which is told per
  request.

The span of each exchange carries the state that was of the moment at its first token (at its end where none came), with its
age: `tokometer.engine.requests.running`, `tokometer.engine.requests.waiting`, `tokometer.engine.kv_cache.usage`,
`tokometer.engine.preemptions` and `tokometer.engine.state.age` (seconds since the engine wrote the page).

## Pages that reading would change

Reading must not take from anybody else:

- **TensorRT-LLM** answers `/metrics` with statistics that are gone once they are read. It is never asked for them: its
  Prometheus page is `/prometheus/metrics` (with `return_perf_metrics`). Which server it is, is told by `observe.engine`, or found
  with an `OPTIONS` request, before anything is read.
- **llama.cpp** (with `--metrics`) counts the averages `llamacpp:prompt_tokens_seconds` and `llamacpp:predicted_tokens_seconds` anew
  from each reading, so that a Prometheus that reads them too sees shorter stretches, or 0. It is read with
  `scrape.enabled: true` only. Its counters are as they were.

## Names

The first source of which a page has all names is told.
";

/// The text of `docs/ENGINE_STATE.md`.
pub fn markdown() -> String {
    let mut out = String::from(HEAD);
    for quantity in Quantity::ALL {
        line(&mut out, &format!("\n### `{}`\n", quantity.metric()));
        let what = match quantity.kind() {
            Kind::Level => "Added up over ranks and models.",
            Kind::Highest => "Of the fullest rank.",
            Kind::Single => "Told where the page has one series of it, and where the engine has no counts for it.",
            Kind::Count => "What the series gained, added up over ranks and models.",
        };
        line(&mut out, &format!("{what}\n"));
        line(&mut out, "| Engine | Names on its page | Note |\n|---|---|---|");
        for source in SOURCES.iter().filter(|source| source.quantity == quantity) {
            line(&mut out, &row(source));
        }
    }
    out
}

fn row(source: &Source) -> String {
    let terms: Vec<String> = source.terms.iter().map(term).collect();
    format!("| {} | {} | {} |", source.engine, terms.join(" "), source.note)
}

fn term(term: &Term) -> String {
    let label = term.label.map(|(name, value)| format!("{{{name}=\"{value}\"}}")).unwrap_or_default();
    let (sign, scale) = match term.scale {
        -1.0 => ("\u{2212} ", String::new()),
        1.0 => ("", String::new()),
        scale => ("", format!(" \u{d7} {scale}")),
    };
    format!("{sign}`{}{label}`{scale}", term.name)
}

fn line(out: &mut String, text: &str) {
    // Writing to a string cannot fail.
    writeln!(out, "{text}").ok();
}
