//! The names on engines' metrics pages: found by name, and documented.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use tokometer_decode::Engine;
use tokometer_decode::engine::Combine;
use tokometer_decode::engine::Quantity;
use tokometer_decode::engine::Source;
use tokometer_decode::engine::Term;

/// Every source with its engine, in the order of preference: if a page has several sources of a quantity, the first is
/// used.
pub static SOURCES: LazyLock<Vec<(Engine, &'static Source)>> = LazyLock::new(|| {
    let of = |engine: Engine| engine.info().metrics.iter().map(move |source| (engine, source));
    Engine::ALL.into_iter().flat_map(of).collect()
});

/// Position of a term: index of the source, index of the term in the source.
pub(crate) type Place = (usize, usize);

/// Every term by its name, normalized by [`plain`].
static BY_NAME: LazyLock<HashMap<Vec<u8>, Vec<Place>>> = LazyLock::new(|| {
    let mut places: HashMap<Vec<u8>, Vec<Place>> = HashMap::new();
    for (number, (_, source)) in SOURCES.iter().enumerate() {
        for (which, term) in source.terms.iter().enumerate() {
            places.entry(plain(term.name.as_bytes()).collect()).or_default().push((number, which));
        }
    }
    places
});

/// Length of the longest name in the table.
static LONGEST: LazyLock<usize> = LazyLock::new(|| BY_NAME.keys().map(Vec::len).max().unwrap_or(0));

/// A name with `_` for `:`, as collectors and relabelling rules may rewrite it.
fn plain(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| if *byte == b':' { b'_' } else { *byte })
}

/// The terms with this name. `room` is a reusable buffer.
pub(crate) fn places(name: &[u8], room: &mut Vec<u8>) -> &'static [Place] {
    if name.len() > *LONGEST {
        return &[];
    }
    room.clear();
    room.extend(plain(name));
    BY_NAME.get(room.as_slice()).map(Vec::as_slice).unwrap_or_default()
}

/// The start of `docs/ENGINE_STATE.md`.
const DOCUMENT_HEAD: &str = "# The engine's state

<!-- Generated from the table in crates/decode/src/engine: `UPDATE=1 cargo test engine_state_md` rewrites it. -->

Tokometer scrapes the metrics of the engine behind each listener every few seconds and exports them under the same names for
all engines: running and waiting requests, key-value cache usage, prefix cache and speculative decoding efficiency, and
preemptions. No configuration is required. The `scrape` block of the configuration sets the interval, the limits, the path and the
port number, and can disable scraping.

- Scraping runs on a separate low-priority thread with its own connections. It uses no relayed connection and is not
  included in any traffic metric.
- Values that an engine does not report have no series. When a page cannot be read, all series of that engine except
  `tokometer.engine.scrape.*` end until a page is read again; the label `reason` of the failures gives the cause.
- Counts start when the engine's page is first read, and continue across restarts of the engine. With several ranks or models on one
  page, counts and requests are summed (except copies of one value from tensor- and pipeline-parallel ranks), and the
  key-value cache usage is the maximum over the ranks. Names with more than 256 series are ignored.
- `tokometer.engine.prefix_cache.hit_ratio` and `tokometer.engine.speculative.acceptance_ratio` are computed from the increase of
  the counts between two pages if the engine has counts (`source=\"counter_deltas\"`); otherwise they are the engine's own value
  (`source=\"engine_gauge\"`). The unit of the cache counts is the engine's own.
- `tokometer.queue.time.estimate` (`source=\"engine_metrics_estimate\"`) is the mean wait of the requests added to the engine's
  queue histogram between two pages. It is an estimate for the whole engine: it does not show how long an individual request waited, and
  most engines count a wait only when the request has ended. It is never mixed with `tokometer.queue.time`, which is recorded per
  request.

The span of each request has the engine's state at its first token (at its end if it had none), with the state's
age: `tokometer.engine.requests.running`, `tokometer.engine.requests.waiting`, `tokometer.engine.kv_cache.usage`,
`tokometer.engine.preemptions` and `tokometer.engine.state.age` (seconds since the engine wrote the page).

## Pages that change when read

Scraping must not take data from other readers:

- **TensorRT-LLM** responds to `/metrics` with statistics that are removed once read. Tokometer never requests them: its
  Prometheus page is `/prometheus/metrics` (with `return_perf_metrics`). The server is identified by `observe.engine` or
  by an `OPTIONS` request before anything is read.
- **llama.cpp** (with `--metrics`) restarts the averages `llamacpp:prompt_tokens_seconds` and `llamacpp:predicted_tokens_seconds`
  at each read, so a Prometheus that also reads them sees shorter periods, or 0. Tokometer reads the page only with
  `scrape.enabled: true`. Its counters are not affected.

## Names

The first source whose names are all on the page is used.
";

/// The text of `docs/ENGINE_STATE.md`.
pub fn markdown() -> String {
    let mut out = String::from(DOCUMENT_HEAD);
    for quantity in Quantity::ALL {
        line(&mut out, &format!("\n### `{}`\n", quantity.as_str()));
        let what = match quantity.combine() {
            Combine::Level => "Sum over ranks and models.",
            Combine::Highest => "Maximum over ranks.",
            Combine::Single => "Used if the page has a single series and the engine has no counts for it.",
            Combine::Count => "Increase of the series, summed over ranks and models.",
        };
        line(&mut out, &format!("{what}\n"));
        line(&mut out, "| Engine | Names on its page | Note |\n|---|---|---|");
        for (engine, source) in SOURCES.iter().filter(|(_, source)| source.quantity == quantity) {
            line(&mut out, &row(*engine, source));
        }
    }
    out
}

fn row(engine: Engine, source: &Source) -> String {
    let terms: Vec<String> = source.terms.iter().map(names).collect();
    format!("| {} | {} | {} |", engine.as_str(), terms.join(" "), source.note)
}

fn names(term: &Term) -> String {
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
