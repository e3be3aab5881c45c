//! Conversion of OpenTelemetry names to Prometheus names.

use crate::export::table::Kind;

/// A metric's name in Prometheus, split into the parts that the exposition formats need separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusName {
    /// The name without its unit and `_total`.
    pub stem: String,
    /// The unit as a suffix, without its underscore; empty for none.
    pub unit: String,
    /// Whether `_total` follows.
    pub total: bool,
}

impl PrometheusName {
    /// The name of the metric family in OpenMetrics: without `_total`.
    pub fn family(&self) -> String {
        if self.unit.is_empty() { self.stem.clone() } else { format!("{}_{}", self.stem, self.unit) }
    }

    /// The name as queried: with `_total` for a counter. Histograms additionally get `_bucket`, `_sum` or `_count`.
    pub fn full(&self) -> String {
        if self.total { format!("{}_total", self.family()) } else { self.family() }
    }
}

/// The Prometheus name of an OpenTelemetry metric by the strategy `UnderscoreEscapingWithSuffixes` of the OpenTelemetry
/// specification (compatibility/prometheus_and_openmetrics.md): the name that Prometheus gives to a metric received
/// over OTLP.
pub fn prometheus_name(name: &str, unit: &str, kind: Kind) -> PrometheusName {
    let escaped = escape(name);
    let unit = unit_suffix(unit, kind);
    let total = kind == Kind::Counter;
    // A suffix that the name already has is not repeated.
    let stem = if total { escaped.strip_suffix("_total").unwrap_or(&escaped) } else { &escaped };
    let stem = if unit.is_empty() {
        stem
    } else {
        stem.strip_suffix(unit.as_str()).and_then(|s| s.strip_suffix('_')).unwrap_or(stem)
    };
    PrometheusName { stem: stem.to_owned(), unit, total }
}

/// Replaces every run of characters that Prometheus discourages by one `_`, and prefixes a leading digit with one.
fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 1);
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        out.push('_');
    }
    for c in name.chars() {
        if c.is_ascii_alphanumeric() || c == ':' {
            out.push(c);
        } else if !out.ends_with('_') {
            out.push('_');
        }
    }
    out.trim_end_matches('_').to_owned()
}

/// The Prometheus suffix of a UCUM unit: annotations in braces are dropped, `x/y` becomes `x_per_y`.
fn unit_suffix(unit: &str, kind: Kind) -> String {
    // "1" on a gauge means a ratio; on other types it has no suffix.
    if unit == "1" {
        return if kind == Kind::Gauge { "ratio".to_owned() } else { String::new() };
    }
    let (main, per) = unit.split_once('/').map_or((unit, None), |(main, per)| (main, Some(per)));
    let main = escape(word(main));
    match per.map(|per| escape(singular(per))).filter(|per| !per.is_empty()) {
        Some(per) if main.is_empty() => format!("per_{per}"),
        Some(per) => format!("{main}_per_{per}"),
        None => main,
    }
}

fn word(unit: &str) -> &str {
    let unit = unit.trim();
    match unit {
        _ if unit.contains('{') => "",
        "d" => "days",
        "h" => "hours",
        "min" => "minutes",
        "s" => "seconds",
        "ms" => "milliseconds",
        "us" => "microseconds",
        "ns" => "nanoseconds",
        "By" => "bytes",
        "KiBy" => "kibibytes",
        "MiBy" => "mebibytes",
        "GiBy" => "gibibytes",
        "%" => "percent",
        other => other,
    }
}

fn singular(unit: &str) -> &str {
    let unit = unit.trim();
    match unit {
        _ if unit.contains('{') => "",
        "s" => "second",
        "min" => "minute",
        "m" => "minute",
        "h" => "hour",
        "d" => "day",
        other => other,
    }
}
