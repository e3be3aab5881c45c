//! Generates `docs/reference/metrics.md` from the metric table. `UPDATE=1` rewrites the file.

use std::fmt::Write;
use std::path::Path;

use tokometer_metrics::table::{Generation, Key, Kind, Metric, Scope, TABLE};
use tokometer_observe::measure::Outcome;
use tokometer_telemetry::export::outcome_class;

const HEAD: &str = "# Metrics

<!-- Generated from the table in crates/metrics/src/table: `tests/generated.sh write` rewrites it. -->

Every metric has an OpenTelemetry name, used over OTLP, and a Prometheus name. The Prometheus name is the one that
Prometheus derives from the OpenTelemetry name when it receives the metric over OTLP. Scraping and OTLP export give
Prometheus the same counts and sums in each series.

An attribute whose value is unknown is omitted over OTLP and is an empty label on `/metrics`. To Prometheus, an empty
label and a missing label are the same. Durations are measured with a monotonic clock. Tokometer reads this clock when a
socket read returns.

`telemetry.semconv` (`v1.41`, `latest`, `both`) selects the version of the GenAI semantic conventions. The tables mark
metrics that exist only in some versions. Counters whose label values are known in advance start at zero, so `rate()`
includes their first increase.

Attributes in parentheses are prompt classes. If `telemetry.prompt_classes` enables them, every series of the metric has
them. `telemetry.max_label_sets` limits the number of label sets, and separately the number of combinations of label set
and prompt class.

`/metrics` is available as OpenMetrics 1.0.0 (with exemplars), text format 0.0.4, and delimited protobuf (with
exemplars, and native histograms in addition to classic ones). The `Accept` header selects the format. `target_info` has
the resource attributes.
";

fn markdown() -> String {
    let mut out = String::from(HEAD);
    let sections = [
        ("GenAI conventions", Scope::GenAi),
        ("Requests", Scope::Request),
        ("Servers", Scope::Server),
        ("Listeners", Scope::Listener),
        ("Latency by tenant", Scope::Tenant),
        ("The process", Scope::Process),
    ];
    for (title, scope) in sections {
        let shared: Vec<String> = scope.keys().iter().map(|key| format!("`{}`", key.as_str())).collect();
        line(&mut out, &format!("\n## {title}\n"));
        if !shared.is_empty() {
            line(&mut out, &format!("Common attributes: {}.\n", shared.join(", ")));
        }
        line(&mut out, "| OpenTelemetry | Prometheus | Kind | Unit | Further attributes | Meaning |");
        line(&mut out, "|---|---|---|---|---|---|");
        for metric in TABLE.iter().filter(|metric| metric.scope == scope) {
            line(&mut out, &row(metric));
        }
    }
    line(&mut out, "\n## Histograms\n");
    line(&mut out, "| Prometheus | Exemplars | Explicit buckets |\n|---|---|---|");
    for metric in TABLE.iter().filter(|metric| metric.kind == Kind::Histogram) {
        let bounds: Vec<String> = metric.buckets.iter().map(f64::to_string).collect();
        let exemplars = if metric.exemplar { "yes" } else { "no" };
        line(&mut out, &format!("| `{}` | {exemplars} | {} |", metric.prometheus().full(), bounds.join(", ")));
    }
    line(&mut out, "\n## Outcomes\n");
    line(
        &mut out,
        "Every request has exactly one outcome.\n\n| `outcome` | `outcome_class` | Meaning |\n|---|---|---|",
    );
    for outcome in Outcome::ALL {
        line(&mut out, &format!("| `{}` | `{}` | {} |", outcome.as_str(), outcome_class(outcome), outcome.meaning()));
    }
    line(&mut out, "\n## Attributes\n");
    line(&mut out, "| OpenTelemetry | Prometheus | Meaning |\n|---|---|---|");
    for key in Key::ALL {
        line(&mut out, &format!("| `{}` | `{}` | {} |", key.as_str(), key.label(), key.meaning()));
    }
    out
}

fn row(metric: &Metric) -> String {
    let optional = metric.optional.iter().map(|key| format!("(`{}`)", key.as_str()));
    let extra: Vec<String> = metric.extra.iter().map(|key| format!("`{}`", key.as_str())).chain(optional).collect();
    let unit = if metric.unit.is_empty() { String::new() } else { format!("`{}`", metric.unit) };
    let generation = match metric.generation {
        Generation::Every => "",
        Generation::V1_41 => " Only if `telemetry.semconv` is `v1.41` or `both`.",
        Generation::Latest => " Only if `telemetry.semconv` is `latest` or `both`.",
    };
    format!(
        "| `{}` | `{}` | {} | {unit} | {} | {}.{generation} |",
        metric.name,
        metric.prometheus().full(),
        metric.kind.as_str(),
        extra.join(", "),
        metric.help,
    )
}

fn line(out: &mut String, text: &str) {
    // Writing to a string cannot fail.
    writeln!(out, "{text}").ok();
}

#[test]
fn metrics_page_matches_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/metrics.md");
    let want = markdown();
    if std::env::vars().any(|(name, value)| name == "UPDATE" && value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &want).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == want, "docs/reference/metrics.md is out of date: run this test with UPDATE=1");
}
