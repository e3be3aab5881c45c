//! `/metrics` with vLLM's names (0.32.0).

use std::fmt::Write;

use crate::server::engine::Engine;

/// Simulated capacity of the key-value cache in tokens.
const CACHE_TOKENS: f64 = 500_000.0;

/// Renders the page.
pub(crate) fn page(engine: &Engine) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let written = write(&mut page, engine);
    debug_assert!(written.is_ok());
    page
}

fn write(page: &mut String, engine: &Engine) -> std::fmt::Result {
    let stats = engine.stats();
    let model = engine.settings.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = format!("engine=\"0\",model_name=\"{model}\"");
    let mean_tokens = (stats.prompt_tokens + stats.generation_tokens) as f64 / stats.requests.max(1) as f64;
    let cache = (stats.running as f64 * mean_tokens / CACHE_TOKENS).min(1.0);
    let gauges = [
        ("num_requests_running", "Number of requests in model execution batches.", stats.running as f64),
        ("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting as f64),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", cache),
    ];
    for (name, help, value) in gauges {
        writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} gauge\nvllm:{name}{{{labels}}} {value:?}")?;
    }
    let counters = [
        ("prompt_tokens_total", "Number of prefill tokens processed.", stats.prompt_tokens),
        ("generation_tokens_total", "Number of generation tokens processed.", stats.generation_tokens),
    ];
    for (name, help, value) in counters {
        writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} counter\nvllm:{name}{{{labels}}} {value}.0")?;
    }
    let name = "vllm:request_success_total";
    writeln!(page, "# HELP {name} Count of successfully processed requests.\n# TYPE {name} counter")?;
    // vLLM's Python front end does not count aborted requests here.
    for (finish, value) in [("stop", stats.stopped), ("length", stats.exhausted), ("abort", 0)] {
        writeln!(page, "{name}{{engine=\"0\",finished_reason=\"{finish}\",model_name=\"{model}\"}} {value}.0")?;
    }
    let histograms = [
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &engine.first_token),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &engine.queue_time),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &engine.latency),
    ];
    for (name, help, histogram) in histograms {
        writeln!(page, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} histogram")?;
        histogram.write(page, &format!("vllm:{name}"), &labels)?;
    }
    Ok(())
}
