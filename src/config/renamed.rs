//! Keys of earlier versions, and what replaces them.

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Now {
    /// It has this name.
    Key(&'static str),
    /// Its value is fixed at this.
    Fixed(&'static str),
    /// Only this variable sets it.
    Variable(&'static str),
}

use Now::{Fixed, Key, Variable};

/// Old key, and what became of it. A key of a list stands without index; a block covers the keys in it.
pub(crate) const RENAMED: [(&str, Now); 83] = [
    ("pairs", Key("listeners")),
    ("process.grace_period_secs", Key("process.grace_period")),
    ("process.lame_duck_secs", Key("process.lame_duck")),
    ("relay.connect_timeout_ms", Key("relay.connect_timeout")),
    ("relay.keepalive_secs", Key("relay.keepalive")),
    ("relay.idle_timeout_secs", Key("relay.idle_timeout")),
    ("relay.half_close_timeout_secs", Key("relay.half_close_timeout")),
    ("relay.remainder_bytes", Fixed("64 KiB")),
    ("relay.scratch_bytes", Fixed("64 KiB")),
    ("observe.memory_bytes", Key("observe.memory")),
    ("observe.stall_ms", Key("observe.stall")),
    ("observe.head_bytes", Fixed("64 KiB")),
    ("observe.max_open_requests", Fixed("1024")),
    ("observe.max_observed", Fixed("100000")),
    ("observe.min_rate_span_ms", Fixed("1 ms")),
    ("observe.coding_window_bytes", Fixed("8 MiB")),
    ("observe.coding_ratio", Fixed("24")),
    ("observe.tokenizer.answer_bytes", Fixed("256 KiB")),
    ("observe.tokenizer.memory_bytes", Fixed("64 MiB")),
    ("observe.tokenizer.queue_answers", Fixed("256")),
    ("scrape.interval_ms", Key("scrape.interval")),
    ("scrape.timeout_ms", Fixed("2 s")),
    ("scrape.page_bytes", Fixed("8 MiB")),
    ("live.max_in_flight", Fixed("65536")),
    ("live.recent_bytes", Fixed("4 MiB")),
    ("live.slowest", Fixed("16")),
    ("live.slowest_secs", Fixed("1 h")),
    ("live", Fixed("the defaults")),
    ("wedge.decode_secs", Key("wedge.decode")),
    ("wedge.prefill_secs", Key("wedge.prefill")),
    ("wedge.prefill_tokens_per_second", Fixed("200")),
    ("wedge.bytes_per_token", Fixed("4")),
    ("wedge.prefill_more_secs", Fixed("480 s")),
    ("wedge.whole_tokens_per_second", Fixed("10")),
    ("wedge.whole_tokens", Fixed("16384")),
    ("otlp.timeout_ms", Key("otlp.timeout")),
    ("otlp.insecure", Variable("OTEL_EXPORTER_OTLP_INSECURE")),
    ("otlp.metrics.interval_ms", Key("otlp.metrics.interval")),
    ("otlp.metrics.endpoint", Variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")),
    ("otlp.metrics.protocol", Variable("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL")),
    ("otlp.metrics.headers", Variable("OTEL_EXPORTER_OTLP_METRICS_HEADERS")),
    ("otlp.metrics.compression", Variable("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION")),
    ("otlp.metrics.timeout_ms", Variable("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT")),
    ("otlp.metrics.insecure", Variable("OTEL_EXPORTER_OTLP_METRICS_INSECURE")),
    ("otlp.metrics.certificate", Variable("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE")),
    ("otlp.metrics.client_certificate", Variable("OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE")),
    ("otlp.metrics.client_key", Variable("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY")),
    ("otlp.traces.endpoint", Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")),
    ("otlp.traces.protocol", Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")),
    ("otlp.traces.headers", Variable("OTEL_EXPORTER_OTLP_TRACES_HEADERS")),
    ("otlp.traces.compression", Variable("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION")),
    ("otlp.traces.timeout_ms", Variable("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")),
    ("otlp.traces.insecure", Variable("OTEL_EXPORTER_OTLP_TRACES_INSECURE")),
    ("otlp.traces.certificate", Variable("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE")),
    ("otlp.traces.client_certificate", Variable("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE")),
    ("otlp.traces.client_key", Variable("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY")),
    ("otlp.traces.keep_first_token_over_ms", Key("otlp.traces.keep_first_token_over")),
    ("otlp.traces.queue_size", Variable("OTEL_BSP_MAX_QUEUE_SIZE")),
    ("otlp.traces.batch_size", Variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")),
    ("otlp.traces.schedule_delay_ms", Variable("OTEL_BSP_SCHEDULE_DELAY")),
    ("queue.otlp_listen", Key("engine_spans.listen")),
    ("queue.wait_ms", Key("engine_spans.wait")),
    ("queue.max_held", Fixed("4096")),
    ("queue.max_message_bytes", Fixed("4 MiB")),
    ("queue.max_waiting_bytes", Fixed("32 MiB")),
    ("queue.max_connections", Fixed("32")),
    ("queue.read_timeout_ms", Fixed("10 s")),
    ("queue.forward_secs", Fixed("300 s")),
    ("queue", Key("engine_spans")),
    ("admin.header_timeout_ms", Fixed("10 s")),
    ("admin.max_connections", Fixed("256")),
    ("log.max_repeats", Fixed("20")),
    ("access_log.queue_lines", Fixed("4096")),
    ("slo.tenant_header", Key("tenants.from_headers")),
    ("slo.min_decode_ms", Fixed("200 ms")),
    ("slo.client_limited_percent", Fixed("10")),
    ("slo.ttft.max_ms", Key("slo.ttft[].max")),
    ("slo.ttft.per_1k_uncached_tokens_ms", Key("slo.ttft[].per_1k_uncached_tokens")),
    ("slo.stall.max_gap_ms", Key("slo.stall[].max_gap")),
    ("slo.request_targets.ttft_min_ms", Fixed("100 ms")),
    ("slo.request_targets.ttft_max_ms", Fixed("600 s")),
    ("slo.request_targets.tpot_min_ms", Fixed("5 ms")),
    ("slo.request_targets.tpot_max_ms", Fixed("10 s")),
];

/// What became of the key with this path, with or without list indices.
pub(crate) fn renamed(path: &str) -> Option<Now> {
    let without_indices: String =
        path.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest)).collect();
    RENAMED.iter().find(|(old, _)| *old == without_indices).map(|(_, now)| *now)
}

/// What became of the key that this variable set, and its variable now.
pub(crate) fn renamed_variable(name: &str) -> Option<String> {
    let variable = |key: &str| format!("TOKOMETER_{}", key.replace('.', "_").to_ascii_uppercase());
    let (_, now) = RENAMED.iter().find(|(old, _)| variable(old) == name)?;
    Some(match now {
        Key(key) => format!("renamed; set {}", variable(key)),
        now => now.to_string(),
    })
}

impl std::fmt::Display for Now {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key(key) => write!(f, "renamed; write `{key}`"),
            Fixed(value) => write!(f, "no longer a setting (fixed: {value}); remove it"),
            Variable(name) => write!(f, "no longer a key; set the variable {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::shape;

    #[test]
    fn new_keys_exist_and_old_ones_do_not() {
        for (old, now) in RENAMED {
            assert!(shape::root().find(old).is_none_or(|shape| shape.variable_only), "{old}");
            if let Key(key) = now {
                assert!(shape::root().find(key).is_some(), "{key}");
            }
        }
    }
}
