//! Consistency of the table, and the naming rules.

use std::collections::HashSet;

use super::*;

#[test]
fn prometheus_names_follow_the_compatibility_rules() {
    let cases = [
        ("gen_ai.server.request.duration", "s", Kind::Histogram, "gen_ai_server_request_duration_seconds"),
        ("gen_ai.server.time_to_first_token", "s", Kind::Histogram, "gen_ai_server_time_to_first_token_seconds"),
        ("gen_ai.client.token.usage", "{token}", Kind::Histogram, "gen_ai_client_token_usage"),
        (
            "gen_ai.client.inference.usage.input_tokens",
            "{token}",
            Kind::Counter,
            "gen_ai_client_inference_usage_input_tokens_total",
        ),
        ("tokometer.decode.tokens", "{token}/s", Kind::Histogram, "tokometer_decode_tokens_per_second"),
        ("tokometer.request.body", "By", Kind::Counter, "tokometer_request_body_bytes_total"),
        ("process.cpu", "s", Kind::Counter, "process_cpu_seconds_total"),
        ("process.resident_memory", "By", Kind::Gauge, "process_resident_memory_bytes"),
        ("hits", "1", Kind::Counter, "hits_total"),
        ("share", "1", Kind::Gauge, "share_ratio"),
        ("already.seconds", "s", Kind::Gauge, "already_seconds"),
        ("hit_ratio", "1", Kind::Gauge, "hit_ratio"),
        ("wait", "", Kind::UpDownCounter, "wait"),
    ];
    for (name, unit, kind, want) in cases {
        assert_eq!(prometheus_name(name, unit, kind).full(), want, "{name} {unit}");
    }
}

#[test]
fn names_and_units_are_those_that_the_conversion_covers() {
    let annotation =
        |unit: &str| unit.starts_with('{') && unit.split_once('}').is_some_and(|(_, rest)| matches!(rest, "" | "/s"));
    for entry in &TABLE {
        assert!(entry.name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_' | '.')), "{}", entry.name);
        assert!(matches!(entry.unit, "" | "1" | "s" | "By") || annotation(entry.unit), "{} {}", entry.name, entry.unit);
        let prometheus = entry.prometheus();
        assert!(!prometheus.stem.ends_with("_total") && !prometheus.stem.contains("__"), "{}", entry.name);
    }
}

#[test]
fn otel_and_prometheus_names_are_unique() {
    let mut otel = HashSet::new();
    let mut prometheus = HashSet::new();
    for entry in &TABLE {
        assert!(otel.insert(entry.name), "duplicate name {}", entry.name);
        assert!(prometheus.insert(entry.prometheus().family()), "{} collides in Prometheus", entry.name);
    }
}

#[test]
fn only_histograms_have_buckets_in_rising_order() {
    for entry in &TABLE {
        assert_eq!(entry.kind == Kind::Histogram, !entry.buckets.is_empty(), "{}", entry.name);
        assert!(entry.buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", entry.name);
        assert!(!entry.exemplar || entry.kind == Kind::Histogram, "{}", entry.name);
    }
}

#[test]
fn help_is_one_line_and_attributes_are_unique() {
    for entry in &TABLE {
        assert!(!entry.help.is_empty() && !entry.help.contains('\n') && !entry.help.ends_with('.'), "{}", entry.name);
        let mut keys = HashSet::new();
        assert!(entry.keys().chain(entry.optional.iter().copied()).all(|key| keys.insert(key)), "{}", entry.name);
    }
}

#[test]
fn labels_are_attribute_names_with_underscores() {
    for key in Key::ALL {
        assert_eq!(key.label(), key.as_str().replace('.', "_"));
    }
}
