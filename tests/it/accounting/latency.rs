//! Latency histograms by tenant and priority class: attributes, caps, and the end of series.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokometer_observe::measure::{Outcome, Record, Targets};
use tokometer_telemetry::accounting::{Accounting, Settings};
use tokometer_telemetry::export::Exporters;

use super::{accounting, by, plain, response};
use crate::export::records;
use crate::export::text::{self, Form};

fn start(settings: Settings) -> (Arc<Exporters>, Accounting) {
    let (exporters, accounting) =
        (Exporters::start(&records::settings()).expect("no address is used"), accounting(settings));
    accounting.record_latencies_in(exporters.histograms());
    (exporters, accounting)
}

/// `record` with this tenant and priority class, started `later` seconds later.
fn classed(tenant: &str, class: &str, record: Record, later: u64) -> Record {
    let targets = Targets { tenant: Some(tenant.into()), priority_class: Some(class.into()), ..Targets::default() };
    let started = record.started + Duration::from_secs(later);
    record.with(|r| {
        r.request.targets = Some(Box::new(targets));
        r.started = started;
    })
}

/// The samples of a metric by tenant and priority class.
fn samples(exporters: &Exporters, metric: &str) -> BTreeMap<(String, String), f64> {
    let body = String::from_utf8(exporters.scrape(Some("application/openmetrics-text")).body).expect("text");
    let samples = text::parse(&body, Form::OpenMetrics).samples.into_iter();
    let own = samples.filter(|((name, _), _)| name == metric).map(|((_, labels), value)| {
        let label = |name| labels.get(name).cloned().unwrap_or_default();
        ((label("tenant"), label("priority_class")), value)
    });
    own.collect()
}

fn table(entries: &[(&str, &str, f64)]) -> BTreeMap<(String, String), f64> {
    entries.iter().map(|(tenant, class, value)| (((*tenant).to_owned(), (*class).to_owned()), *value)).collect()
}

#[test]
fn latencies_are_recorded_by_tenant_and_priority_class() {
    let (exporters, accounting) = start(plain(10));
    accounting.add(&classed("a", "batch", response("m"), 0));
    accounting.add(&by("a", response("m")));
    // Cancelled in mid-stream: the time to first token is recorded, the request duration is not.
    accounting.add(&by("b", Record { outcome: Outcome::ClientAbortMidStream, ..response("m") }));
    accounting.add(&response("m"));
    let of = |metric: &str| samples(&exporters, metric);
    let all = [("a", "batch", 1.0), ("a", "", 1.0), ("b", "", 1.0), ("", "", 1.0)];
    assert_eq!(of("tokometer_tenant_time_to_first_token_seconds_count"), table(&all));
    let ended = [("a", "batch", 1.0), ("a", "", 1.0), ("b", "", 0.0), ("", "", 1.0)];
    assert_eq!(of("tokometer_tenant_request_duration_seconds_count"), table(&ended));
    // The request is complete after 10 ms, its first token arrives after 210 ms, and its end after 1,220 ms; 100 tokens
    // follow the first.
    let key = ("a".to_owned(), "batch".to_owned());
    let sum = |metric: &str| of(&format!("tokometer_tenant_{metric}_seconds_sum"))[&key];
    assert!((sum("time_to_first_token") - 0.2).abs() < 1e-9, "{}", sum("time_to_first_token"));
    assert!((sum("request_duration") - 1.21).abs() < 1e-9, "{}", sum("request_duration"));
    assert!((sum("time_per_output_token") - 0.0101).abs() < 1e-9, "{}", sum("time_per_output_token"));
}

#[test]
fn no_latency_is_recorded_without_tenants() {
    let (exporters, accounting) = start(Settings { prices: Some(super::prices()), ..Settings::default() });
    accounting.add(&by("a", response("m")));
    assert_eq!(samples(&exporters, "tokometer_tenant_time_to_first_token_seconds_count"), table(&[]));
}

#[test]
fn priority_classes_over_the_limit_are_counted_as_other() {
    let (exporters, accounting) = start(plain(2));
    accounting.add(&classed(
        "a",
        "refused",
        response("m").with(|r| {
            r.response.status = Some(429);
            r.outcome = Outcome::RejectedBusy;
        }),
        0,
    ));
    for n in 0..50 {
        accounting.add(&classed("a", &format!("class-{n}"), response("m"), 0));
    }
    let counts = samples(&exporters, "tokometer_tenant_request_duration_seconds_count");
    // The tenant was unknown at the refused request, so that request is counted under the tenant `other`.
    let want = [("other", "other", 0.0), ("a", "class-0", 1.0), ("a", "class-1", 1.0), ("a", "other", 48.0)];
    assert_eq!(counts, table(&want));
    assert_eq!(accounting.sums().folded_classes, 49);
    // A class without a request for ten minutes is replaced by a new one.
    accounting.add(&classed("a", "class-1", response("m"), 300));
    accounting.add(&classed("a", "late", response("m"), 700));
    let counts = samples(&exporters, "tokometer_tenant_request_duration_seconds_count");
    let want = [("other", "other", 0.0), ("a", "late", 1.0), ("a", "class-1", 2.0), ("a", "other", 48.0)];
    assert_eq!(counts, table(&want));
}

#[test]
fn series_of_a_replaced_tenant_end() {
    let (exporters, accounting) = start(plain(1));
    accounting.add(&classed("a", "batch", response("m"), 0));
    accounting.add(&classed("b", "batch", response("m"), 1000));
    let counts = samples(&exporters, "tokometer_tenant_time_to_first_token_seconds_count");
    assert_eq!(counts, table(&[("b", "batch", 1.0)]));
    accounting.add(&classed("a", "batch", response("m"), 2000));
    let counts = samples(&exporters, "tokometer_tenant_time_to_first_token_seconds_count");
    assert_eq!(counts, table(&[("a", "batch", 1.0)]), "it begins at zero");
}
