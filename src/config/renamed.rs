//! Keys of earlier versions, and their replacements.

use crate::config::shape;

/// Current state of an old key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Now<'a> {
    /// Renamed to this key.
    Key(&'a str),
    /// Removed; the setting always has this value.
    Fixed(&'a str),
    /// Removed; only this variable sets the value.
    Variable(&'a str),
}

use Now::{Fixed, Key, Variable};

/// Old keys and their current state. An entry for a block covers all of its keys. Two rules cover keys that are not
/// listed: names that ended with their unit, and overrides of one OTLP signal, which only variables can set.
pub(crate) const RENAMED: [(&str, Now<'static>); 50] = [
    ("pairs", Key("listeners")),
    ("relay.remainder_bytes", Fixed("64 KiB")),
    ("relay.scratch_bytes", Fixed("64 KiB")),
    ("observe.head_bytes", Fixed("64 KiB")),
    ("observe.max_open_requests", Fixed("1024")),
    ("observe.max_observed", Fixed("100000")),
    ("observe.min_rate_span_ms", Fixed("1 ms")),
    ("observe.coding_window_bytes", Fixed("8 MiB")),
    ("observe.coding_ratio", Fixed("24")),
    ("observe.tokenizer.answer_bytes", Fixed("256 KiB")),
    ("observe.tokenizer.memory_bytes", Fixed("64 MiB")),
    ("observe.tokenizer.queue_answers", Fixed("256")),
    ("scrape.timeout_ms", Fixed("2 s")),
    ("scrape.page_bytes", Fixed("8 MiB")),
    ("live.max_in_flight", Fixed("65536")),
    ("live.recent_bytes", Fixed("4 MiB")),
    ("live.slowest", Fixed("16")),
    ("live.slowest_secs", Fixed("1 h")),
    ("live", Fixed("the defaults")),
    ("prometheus.exemplars", Variable("OTEL_METRICS_EXEMPLAR_FILTER")),
    ("telemetry.prompt_classes.input_length_bounds", Fixed("1024, 8192, 32768 and 131072")),
    ("wedge.prefill_tokens_per_second", Fixed("200")),
    ("wedge.bytes_per_token", Fixed("4")),
    ("wedge.prefill_more_secs", Fixed("480 s")),
    ("wedge.whole_tokens_per_second", Fixed("10")),
    ("wedge.whole_tokens", Fixed("16384")),
    ("otlp.traces.queue_size", Variable("OTEL_BSP_MAX_QUEUE_SIZE")),
    ("otlp.traces.batch_size", Variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")),
    ("otlp.traces.schedule_delay", Variable("OTEL_BSP_SCHEDULE_DELAY")),
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
    ("slo.request_targets.ttft_min_ms", Fixed("100 ms")),
    ("slo.request_targets.ttft_max_ms", Fixed("600 s")),
    ("slo.request_targets.tpot_min_ms", Fixed("5 ms")),
    ("slo.request_targets.tpot_max_ms", Fixed("10 s")),
];

/// Unit suffixes of old key names.
const UNITS: [&str; 3] = ["_ms", "_secs", "_bytes"];

/// The message for the key with this path, if an earlier version had it.
pub(crate) fn renamed(path: &str) -> Option<String> {
    // `slo.ttft[0].max_ms` is listed as `slo.ttft[].max_ms`.
    let without_index = |part: &str| part.split_once(']').map_or(part.to_owned(), |(_, rest)| format!("]{rest}"));
    let path = path.split('[').map(without_index).collect::<Vec<_>>().join("[");
    if let Some((_, now)) = RENAMED.iter().find(|(old, _)| *old == path) {
        return Some(now.to_string());
    }
    let key = UNITS.iter().find_map(|unit| path.strip_suffix(unit)).unwrap_or(&path);
    match shape::root().find(key)? {
        shape if shape.variable_only => Some(Variable(&shape::exporter_variable(key)).to_string()),
        _ => (key != path).then(|| Key(key).to_string()),
    }
}

/// The message for this variable, if it set a key of an earlier version.
pub(crate) fn renamed_variable(name: &str) -> Option<String> {
    let set_by = |path: &str, name: &str| shape::variable(path).is_some_and(|variable| variable == name);
    if let Some((_, now)) = RENAMED.iter().find(|(old, _)| set_by(old, name)) {
        return Some(match now {
            Key(key) => format!("renamed; set {}", shape::variable(key)?),
            now => now.to_string(),
        });
    }
    let stem = UNITS.iter().find_map(|unit| name.strip_suffix(&unit.to_ascii_uppercase())).unwrap_or(name);
    match shape::all_keys().into_iter().find(|(path, _)| set_by(path, stem))? {
        (path, shape) if shape.variable_only => Some(Variable(&shape::exporter_variable(&path)).to_string()),
        _ => (stem != name).then(|| format!("renamed; set {stem}")),
    }
}

impl std::fmt::Display for Now<'_> {
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

    #[test]
    fn new_keys_exist_and_old_ones_do_not() {
        for (old, now) in RENAMED {
            assert!(shape::root().find(old).is_none_or(|shape| shape.variable_only), "{old}");
            if let Key(key) = now {
                assert!(shape::root().find(key).is_some(), "{key}");
            }
        }
    }

    #[test]
    fn units_in_names_and_signal_overrides_are_covered_by_rules() {
        for (old, expected) in [
            ("relay.keepalive_secs", Some("renamed; write `relay.keepalive`")),
            ("observe.memory_bytes", Some("renamed; write `observe.memory`")),
            ("slo.ttft[3].max_ms", Some("renamed; write `slo.ttft[].max`")),
            ("otlp.metrics.timeout_ms", Some("no longer a key; set the variable OTEL_EXPORTER_OTLP_METRICS_TIMEOUT")),
            ("otlp.traces.client_key", Some("no longer a key; set the variable OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY")),
            ("otlp.insecure", Some("no longer a key; set the variable OTEL_EXPORTER_OTLP_INSECURE")),
            ("relay.keepalive", None),
            ("relay.nothing_ms", None),
        ] {
            assert_eq!(renamed(old).as_deref(), expected, "{old}");
        }
        for (old, expected) in [
            ("TOKOMETER_RELAY_KEEPALIVE_SECS", Some("renamed; set TOKOMETER_RELAY_KEEPALIVE")),
            (
                "TOKOMETER_OTLP_TRACES_ENDPOINT",
                Some("no longer a key; set the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
            ),
            ("TOKOMETER_RELAY_KEEPALIVE", None),
        ] {
            assert_eq!(renamed_variable(old).as_deref(), expected, "{old}");
        }
    }
}
