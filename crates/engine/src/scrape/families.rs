//! The table of engine metric names by quantity, used to parse and document the pages.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use tokometer_observe::closed_enum;

closed_enum! {
    /// A quantity of an engine's state. Its name is that of its metric, the same for all engines.
    pub enum Quantity {
        /// Requests being processed.
        Running = "tokometer.engine.requests.running",
        /// Requests waiting in the queue.
        Waiting = "tokometer.engine.requests.waiting",
        /// Share of the key-value cache in use, 0 to 1.
        KvUsage = "tokometer.engine.kv_cache.usage",
        /// Lookups in the prefix cache, in the engine's own unit (tokens or blocks).
        CacheQueries = "tokometer.engine.prefix_cache.queries",
        /// Lookups that were hits in the prefix cache.
        CacheHits = "tokometer.engine.prefix_cache.hits",
        /// The engine's own hit ratio, 0 to 1, where it has no counts.
        CacheRatio = "tokometer.engine.prefix_cache.hit_ratio",
        /// Requests that were preempted by others and restarted.
        Preemptions = "tokometer.engine.preemptions",
        /// Tokens proposed by a draft.
        Drafted = "tokometer.engine.speculative.drafted",
        /// Proposed tokens accepted by the model.
        Accepted = "tokometer.engine.speculative.accepted",
        /// The engine's own acceptance ratio, 0 to 1, where it has no counts.
        AcceptanceRatio = "tokometer.engine.speculative.acceptance_ratio",
        /// Total seconds that requests waited in the engine's queue.
        QueueSeconds = "tokometer.engine.queue.time",
        /// Requests included in these waits.
        QueueRequests = "tokometer.engine.queue.requests",
    }
}

/// How the series of one name on a page are combined into one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A current value, summed over ranks and models.
    Level,
    /// A ratio that each rank has separately: the maximum, because that rank runs out first.
    Highest,
    /// A ratio that cannot be combined: used only if there is a single series.
    Single,
    /// A count since the engine's start: the increases of all series are summed.
    Count,
}

impl Quantity {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Quantity::Running | Quantity::Waiting => Kind::Level,
            Quantity::KvUsage => Kind::Highest,
            Quantity::CacheRatio | Quantity::AcceptanceRatio => Kind::Single,
            _ => Kind::Count,
        }
    }
}

/// One name on a page, as part of a quantity.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// The name on the page.
    pub name: &'static str,
    /// Only series with this label are used, as (name, value).
    pub label: Option<(&'static str, &'static str)>,
    /// Factor for the value.
    pub scale: f64,
}

/// Where an engine reports a quantity: the sum of its terms, used only if the page has all of them.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// `gen_ai.provider.name` of the engine.
    pub engine: &'static str,
    /// The quantity.
    pub quantity: Quantity,
    /// The names on the page.
    pub terms: &'static [Term],
    /// Used only if each name has one series: with several, it is unknown which belong together.
    pub alone: bool,
    /// A note for the documentation: versions and meaning.
    pub note: &'static str,
}

const fn term(name: &'static str) -> Term {
    Term { name, label: None, scale: 1.0 }
}

const fn labelled(name: &'static str, label: &'static str, value: &'static str) -> Term {
    Term { name, label: Some((label, value)), scale: 1.0 }
}

const fn scaled(name: &'static str, scale: f64) -> Term {
    Term { name, label: None, scale }
}

const fn source(engine: &'static str, quantity: Quantity, terms: &'static [Term], note: &'static str) -> Source {
    Source { engine, quantity, terms, alone: false, note }
}

const fn alone(engine: &'static str, quantity: Quantity, terms: &'static [Term], note: &'static str) -> Source {
    Source { engine, quantity, terms, alone: true, note }
}

const VLLM: &str = "vllm";
const SGLANG: &str = "sglang";
const TGI: &str = "tgi";
const LMDEPLOY: &str = "lmdeploy";
const TENSORRT_LLM: &str = "tensorrt_llm";
const LLAMA_CPP: &str = "llama_cpp";
const TRITON: &str = "triton";
const DYNAMO: &str = "dynamo";

/// Every source. If a page has several sources of a quantity, the first in this order is used. Engines' own names come
/// before those of programs around them (Triton and Dynamo forward vLLM's).
///
/// From the engines' source code: vLLM 0.33.0, SGLang 0.5.23, TGI 3.3.6, LMDeploy 0.18, TensorRT-LLM of 2026, llama.cpp
/// of autumn 2026, Triton 2.73 and its TensorRT-LLM backend, Dynamo 1.6.1; "older" marks names of earlier releases.
#[rustfmt::skip]
pub static SOURCES: &[Source] = &[
    source(VLLM, Quantity::Running, &[term("vllm:num_requests_running")], ""),
    source(VLLM, Quantity::Waiting, &[term("vllm:num_requests_waiting")], ""),
    source(VLLM, Quantity::KvUsage, &[term("vllm:kv_cache_usage_perc")], ""),
    source(VLLM, Quantity::KvUsage, &[term("vllm:gpu_cache_usage_perc")], "older"),
    source(VLLM, Quantity::CacheQueries, &[term("vllm:prefix_cache_queries_total")], "tokens"),
    source(VLLM, Quantity::CacheQueries, &[term("vllm:gpu_prefix_cache_queries_total")], "older; tokens"),
    source(VLLM, Quantity::CacheHits, &[term("vllm:prefix_cache_hits_total")], "tokens"),
    source(VLLM, Quantity::CacheHits, &[term("vllm:gpu_prefix_cache_hits_total")], "older; tokens"),
    source(VLLM, Quantity::CacheRatio, &[term("vllm:gpu_prefix_cache_hit_rate")], "older (V0)"),
    source(VLLM, Quantity::Preemptions, &[term("vllm:num_preemptions_total")], ""),
    source(VLLM, Quantity::Drafted, &[term("vllm:spec_decode_num_draft_tokens_total")], ""),
    source(VLLM, Quantity::Accepted, &[term("vllm:spec_decode_num_accepted_tokens_total")], ""),
    source(VLLM, Quantity::AcceptanceRatio, &[term("vllm:spec_decode_draft_acceptance_rate")], "older (V0)"),
    source(VLLM, Quantity::QueueSeconds, &[term("vllm:request_queue_time_seconds_sum")], "ended requests only"),
    source(VLLM, Quantity::QueueRequests, &[term("vllm:request_queue_time_seconds_count")], "ended requests only"),

    source(SGLANG, Quantity::Running, &[term("sglang:num_running_reqs")], ""),
    source(SGLANG, Quantity::Waiting, &[term("sglang:num_queue_reqs")], ""),
    source(SGLANG, Quantity::KvUsage, &[term("sglang:token_usage")], "maximum over pools"),
    source(SGLANG, Quantity::CacheQueries, &[term("sglang:prompt_tokens_total")], "tokens"),
    source(SGLANG, Quantity::CacheHits, &[term("sglang:cached_tokens_total")], "tokens, all tiers together; appears with the first hit"),
    source(SGLANG, Quantity::CacheRatio, &[term("sglang:cache_hit_rate")], "last batch only"),
    source(SGLANG, Quantity::Preemptions, &[term("sglang:num_retracted_requests_total")], "retractions"),
    source(SGLANG, Quantity::AcceptanceRatio, &[term("sglang:spec_accept_rate")], "last interval only"),
    source(SGLANG, Quantity::QueueSeconds, &[term("sglang:queue_time_seconds_sum")], ""),
    source(SGLANG, Quantity::QueueRequests, &[term("sglang:queue_time_seconds_count")], ""),

    source(TGI, Quantity::Running, &[term("tgi_batch_current_size")], ""),
    source(TGI, Quantity::Waiting, &[term("tgi_queue_size")], ""),
    source(TGI, Quantity::QueueSeconds, &[term("tgi_request_queue_duration_sum")], ""),
    source(TGI, Quantity::QueueRequests, &[term("tgi_request_queue_duration_count")], ""),

    source(LMDEPLOY, Quantity::Running, &[term("lmdeploy:num_requests_running")], ""),
    source(LMDEPLOY, Quantity::Waiting, &[term("lmdeploy:num_requests_waiting")], "in the engine, without requests waiting for a handle"),
    source(LMDEPLOY, Quantity::KvUsage, &[term("lmdeploy:gpu_cache_usage_perc")], ""),
    source(LMDEPLOY, Quantity::CacheRatio, &[term("lmdeploy:prefix_cache_hit_rate")], ""),
    source(LMDEPLOY, Quantity::Drafted, &[term("lmdeploy:spec_decode_num_draft_tokens_total")], ""),
    source(LMDEPLOY, Quantity::Accepted, &[term("lmdeploy:spec_decode_num_accepted_tokens_total")], ""),
    source(LMDEPLOY, Quantity::QueueSeconds, &[term("lmdeploy:request_queue_time_seconds_sum")], "ended requests only"),
    source(LMDEPLOY, Quantity::QueueRequests, &[term("lmdeploy:request_queue_time_seconds_count")], "ended requests only"),

    source(TENSORRT_LLM, Quantity::Running, &[term("trtllm_num_requests_running")], ""),
    source(TENSORRT_LLM, Quantity::Waiting, &[term("trtllm_num_requests_waiting")], ""),
    source(TENSORRT_LLM, Quantity::KvUsage, &[term("trtllm_kv_cache_utilization")], ""),
    source(TENSORRT_LLM, Quantity::CacheQueries, &[term("trtllm_kv_cache_reused_blocks_total"), term("trtllm_kv_cache_missed_blocks_total")], "blocks"),
    source(TENSORRT_LLM, Quantity::CacheHits, &[term("trtllm_kv_cache_reused_blocks_total")], "blocks"),
    source(TENSORRT_LLM, Quantity::CacheRatio, &[term("trtllm_kv_cache_hit_rate")], "older"),
    source(TENSORRT_LLM, Quantity::Drafted, &[term("trtllm_spec_decode_num_draft_tokens_total")], ""),
    source(TENSORRT_LLM, Quantity::Accepted, &[term("trtllm_spec_decode_num_accepted_tokens_total")], ""),
    source(TENSORRT_LLM, Quantity::QueueSeconds, &[term("trtllm_request_queue_time_seconds_sum")], "ended requests only"),
    source(TENSORRT_LLM, Quantity::QueueRequests, &[term("trtllm_request_queue_time_seconds_count")], "ended requests only"),

    source(LLAMA_CPP, Quantity::Running, &[term("llamacpp:requests_processing")], ""),
    source(LLAMA_CPP, Quantity::Waiting, &[term("llamacpp:requests_deferred")], ""),
    source(LLAMA_CPP, Quantity::KvUsage, &[term("llamacpp:kv_cache_usage_ratio")], "older"),
    source(LLAMA_CPP, Quantity::CacheQueries, &[term("llamacpp:prompt_tokens_total"), term("llamacpp:prompt_tokens_cached_total")], "tokens"),
    source(LLAMA_CPP, Quantity::CacheHits, &[term("llamacpp:prompt_tokens_cached_total")], "tokens"),
    source(LLAMA_CPP, Quantity::Drafted, &[term("llamacpp:spec_decode_num_draft_tokens_total")], ""),
    source(LLAMA_CPP, Quantity::Accepted, &[term("llamacpp:spec_decode_num_accepted_tokens_total")], ""),

    source(TRITON, Quantity::Running, &[labelled("nv_trt_llm_request_metrics", "request_type", "scheduled")], "TensorRT-LLM backend"),
    source(TRITON, Quantity::Waiting, &[labelled("nv_trt_llm_request_metrics", "request_type", "waiting")], "TensorRT-LLM backend"),
    source(TRITON, Quantity::KvUsage, &[labelled("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction")], "TensorRT-LLM backend"),
    alone(TRITON, Quantity::Waiting, &[term("nv_inference_pending_request_count")], "only with a single model"),
    alone(TRITON, Quantity::QueueSeconds, &[scaled("nv_inference_queue_duration_us", 1e-6)], "only with a single model"),
    alone(TRITON, Quantity::QueueRequests, &[term("nv_inference_request_success")], "only with a single model"),

    source(DYNAMO, Quantity::Running, &[term("dynamo_frontend_inflight_requests"), scaled("dynamo_frontend_queued_requests", -1.0)], "in flight minus queued"),
    source(DYNAMO, Quantity::Waiting, &[term("dynamo_frontend_queued_requests")], "until their first token"),
    source(DYNAMO, Quantity::KvUsage, &[term("dynamo_component_gpu_cache_usage_percent")], "on a worker's page"),
];

/// Position of a term: index of the source, index of the term in the source.
pub(crate) type Place = (usize, usize);

/// Every term by its name, normalized by [`plain`].
static BY_NAME: LazyLock<HashMap<Vec<u8>, Vec<Place>>> = LazyLock::new(|| {
    let mut places: HashMap<Vec<u8>, Vec<Place>> = HashMap::new();
    for (number, source) in SOURCES.iter().enumerate() {
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

<!-- Generated from the table in crates/engine/src/scrape/families.rs: `UPDATE=1 cargo test engine_state_md` rewrites it. -->

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
        let what = match quantity.kind() {
            Kind::Level => "Sum over ranks and models.",
            Kind::Highest => "Maximum over ranks.",
            Kind::Single => "Used if the page has a single series and the engine has no counts for it.",
            Kind::Count => "Increase of the series, summed over ranks and models.",
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
    let terms: Vec<String> = source.terms.iter().map(names).collect();
    format!("| {} | {} | {} |", source.engine, terms.join(" "), source.note)
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
