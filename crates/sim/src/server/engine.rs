//! State shared by all requests: the queue, the counters, `/metrics` and the random number seed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::server::fault::Fault;
use crate::server::generation::Finish;
use crate::server::pacer::Pacer;
use crate::server::settings::Settings;
use crate::server::spans::Tracer;

/// Counters of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Generation requests received, including refused requests.
    pub requests: u64,
    /// Requests generating now.
    pub running: u64,
    /// Requests waiting in the queue now.
    pub waiting: u64,
    /// Prompt tokens of all scheduled requests.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens, including tokens that reached no client.
    pub generation_tokens: u64,
    /// Requests that ended with the end-of-text token.
    pub stopped: u64,
    /// Requests that reached their `max_tokens`.
    pub exhausted: u64,
    /// Requests whose client disconnected before the end.
    pub aborted: u64,
    /// Requests that received an error status.
    pub refused: u64,
    /// Requests hit by a fault.
    pub faulted: u64,
}

/// State shared by all requests.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) pacer: Option<Arc<Pacer>>,
    pub(crate) tracer: Option<Tracer>,
    slots: Semaphore,
    stats: Mutex<Stats>,
    /// Responses by handler, method and first digit of the status.
    responses: Mutex<BTreeMap<(String, String, char), u64>>,
    /// Generated tokens, and the steps that generated them. Outside the mutex, because every event increments them.
    generation_tokens: AtomicU64,
    steps: AtomicU64,
    first_token: Histogram,
    queue_time: Histogram,
    latency: Histogram,
}

impl Engine {
    pub(crate) fn new(settings: Settings, tracer: Option<Tracer>) -> Engine {
        Engine {
            pacer: settings.spin.then(Arc::default),
            tracer,
            slots: Semaphore::new(settings.max_concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            settings,
            stats: Mutex::default(),
            responses: Mutex::default(),
            generation_tokens: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            first_token: Histogram::new(FIRST_TOKEN),
            queue_time: Histogram::new(REQUEST),
            latency: Histogram::new(REQUEST),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { generation_tokens: self.generation_tokens.load(Relaxed), ..*self.counters() }
    }

    /// Locks the counters for an update.
    pub(crate) fn counters(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a response whose status begins with `class`.
    pub(crate) fn count_response(&self, handler: &str, method: &str, class: char) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((handler.to_owned(), method.to_owned(), class)).or_default() += 1;
    }

    /// Sleeps with the precision configured in the settings.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        match &self.pacer {
            Some(pacer) => pacer.sleep_until(at).await,
            None => tokio::time::sleep_until(at).await,
        }
    }

    /// Counts a request; returns its random number generator and its random fault.
    pub(crate) fn begin(&self) -> (fastrand::Rng, Option<Fault>) {
        let number = {
            let mut counters = self.counters();
            counters.requests += 1;
            counters.requests
        };
        // An odd multiplier spreads adjacent numbers over all seeds.
        let mut chance = fastrand::Rng::with_seed(self.settings.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut draw = chance.f64();
        for (fault, probability) in &self.settings.faults {
            if draw < *probability {
                return (chance, Some(*fault));
            }
            draw -= probability;
        }
        (chance, None)
    }

    /// Waits for a free slot; `cached_tokens` of the prompt are in the prefix cache. Dropping the future before it
    /// completes counts the request as aborted.
    pub(crate) async fn schedule(&self, prompt_tokens: u64, cached_tokens: u64) -> Slot<'_> {
        let arrived = Instant::now();
        let mut waiting = Waiting { engine: self, scheduled: false };
        self.counters().waiting += 1;
        // The semaphore is never closed; without a permit the request would run without a slot.
        let permit = self.slots.acquire().await.ok();
        waiting.scheduled = true;
        drop(waiting);
        let scheduled = Instant::now();
        let mut counters = self.counters();
        counters.running += 1;
        counters.prompt_tokens += prompt_tokens;
        counters.cached_tokens += cached_tokens;
        self.queue_time.observe(scheduled - arrived);
        Slot { engine: self, _permit: permit, arrived, scheduled, ended: false }
    }

    /// The metrics page, with vLLM's names (0.32.0).
    pub(crate) fn metrics(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let written = self.write_metrics(&mut page);
        debug_assert!(written.is_ok());
        page
    }

    fn write_metrics(&self, page: &mut String) -> std::fmt::Result {
        let stats = self.stats();
        let model = self.settings.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = format!("engine=\"0\",model_name=\"{model}\"");
        let (prompts, generated) = (stats.prompt_tokens as f64, stats.generation_tokens as f64);
        let mean_tokens = (prompts + generated) / stats.requests.max(1) as f64;
        let cache = (stats.running as f64 * mean_tokens / self.settings.kv_cache_tokens.max(1) as f64).min(1.0);
        // In a step with several tokens, all tokens but one are draft tokens. They are accepted unless the stream ends
        // first.
        let steps = self.steps.load(Relaxed) as f64;
        let drafted = steps * f64::from(self.settings.pace.tokens_per_chunk.saturating_sub(1));
        for (name, kind, help, value) in [
            ("num_requests_running", "gauge", "Number of requests in model execution batches.", stats.running as f64),
            ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", stats.waiting as f64),
            ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", cache),
            (
                "prefix_cache_queries_total",
                "counter",
                "Prefix cache queries, in terms of number of queried tokens.",
                prompts,
            ),
            (
                "prefix_cache_hits_total",
                "counter",
                "Prefix cache hits, in terms of number of cached tokens.",
                stats.cached_tokens as f64,
            ),
            // The simulated cache is never full.
            ("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", 0.0),
            ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", prompts),
            ("generation_tokens_total", "counter", "Number of generation tokens processed.", generated),
            ("spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens.", drafted),
            (
                "spec_decode_num_accepted_tokens_total",
                "counter",
                "Number of accepted tokens.",
                (generated - steps).clamp(0.0, drafted),
            ),
        ] {
            writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value:?}")?;
        }
        let name = "vllm:request_success_total";
        writeln!(page, "# HELP {name} Count of successfully processed requests.\n# TYPE {name} counter")?;
        // vLLM's Python front end does not count aborted requests here.
        for (finish, value) in [("stop", stats.stopped), ("length", stats.exhausted), ("abort", 0)] {
            writeln!(page, "{name}{{engine=\"0\",finished_reason=\"{finish}\",model_name=\"{model}\"}} {value}.0")?;
        }
        for (name, help, histogram) in [
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &self.first_token),
            ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &self.queue_time),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &self.latency),
        ] {
            writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} histogram")?;
            histogram.write(page, &format!("vllm:{name}"), &labels)?;
        }
        let name = "http_requests_total";
        writeln!(page, "# HELP {name} Total number of requests by method, status and handler.\n# TYPE {name} counter")?;
        let responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        for ((handler, method, class), value) in &*responses {
            writeln!(page, "{name}{{handler=\"{handler}\",method=\"{method}\",status=\"{class}xx\"}} {value}.0")?;
        }
        Ok(())
    }
}

/// A request in the queue.
struct Waiting<'a> {
    engine: &'a Engine,
    scheduled: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut counters = self.engine.counters();
        counters.waiting -= 1;
        counters.aborted += u64::from(!self.scheduled);
    }
}

/// A running request. If it is dropped before `end`, it counts as aborted by its client.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    engine: &'a Engine,
    _permit: Option<SemaphorePermit<'a>>,
    arrived: Instant,
    scheduled: Instant,
    ended: bool,
}

impl Slot<'_> {
    pub(crate) fn scheduled(&self) -> Instant {
        self.scheduled
    }

    pub(crate) fn queue_time(&self) -> Duration {
        self.scheduled - self.arrived
    }

    pub(crate) fn first_token(&self) {
        self.engine.first_token.observe(self.arrived.elapsed());
    }

    pub(crate) fn generate(&self, tokens: u64) {
        self.engine.generation_tokens.fetch_add(tokens, Relaxed);
        self.engine.steps.fetch_add(1, Relaxed);
    }

    pub(crate) fn end(mut self, finish: Finish) {
        self.ended = true;
        match finish {
            Finish::Stop => self.engine.counters().stopped += 1,
            Finish::Length => self.engine.counters().exhausted += 1,
            Finish::Fault => return,
        }
        self.engine.latency.observe(self.arrived.elapsed());
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut counters = self.engine.counters();
        counters.running -= 1;
        counters.aborted += u64::from(!self.ended);
    }
}

/// Bucket bounds of vLLM's `time_to_first_token_seconds` (0.32.0).
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];

/// Bucket bounds of vLLM's `request_queue_time_seconds`, `e2e_request_latency_seconds` and similar (0.32.0).
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// Counts of durations per bucket.
#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    /// One count per bound, plus one count above all bounds.
    counts: Vec<AtomicU64>,
    sum_us: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum_us: AtomicU64::new(0) }
    }

    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.sum_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// Writes the samples in the Prometheus text format; `labels` without braces.
    fn write(&self, page: &mut String, name: &str, labels: &str) -> std::fmt::Result {
        let mut count = 0;
        for (index, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Relaxed);
            match self.bounds.get(index) {
                Some(bound) => writeln!(page, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}.0")?,
                None => writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}.0")?,
            }
        }
        writeln!(page, "{name}_count{{{labels}}} {count}.0")?;
        writeln!(page, "{name}_sum{{{labels}}} {:?}", self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}
