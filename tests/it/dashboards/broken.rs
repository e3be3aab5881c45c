//! Each lint rule detects a dashboard that violates it.

use serde_json::{Value, json};

use super::lint::{RULES, broken};
use super::{document, generated};

/// A change that makes a dashboard violate a rule.
type Violation = fn(&mut Value);

/// Each rule, and a change that violates it.
const VIOLATIONS: [(&str, Violation); 28] = [
    ("template-datasource", |dashboard| variable(dashboard, "datasource")["label"] = json!("Prometheus")),
    ("template-job", |dashboard| variable(dashboard, "job")["multi"] = json!(false)),
    ("template-instance", |dashboard| variable(dashboard, "instance")["allValue"] = json!(".*")),
    ("template-label-promql", |dashboard| {
        variable(dashboard, "pod")["query"]["query"] = json!("label_values(up{a=~\"$b\"}, pod)")
    }),
    ("template-label-promql", |dashboard| variable(dashboard, "job")["query"]["query"] = json!("label_values(job)")),
    ("template-on-time-change-reload", |dashboard| variable(dashboard, "model")["refresh"] = json!(1)),
    ("panel-datasource", |dashboard| first_panel(dashboard)["datasource"]["uid"] = json!("abc")),
    ("panel-datasource", |dashboard| first_panel(dashboard)["targets"][0]["datasource"]["uid"] = json!("abc")),
    ("panel-title-description", |dashboard| first_panel(dashboard)["description"] = json!(" ")),
    ("panel-title-description", |dashboard| dashboard["description"] = json!("")),
    ("panel-units", |dashboard| first_panel(dashboard)["fieldConfig"]["defaults"]["unit"] = json!("tokens")),
    ("panel-no-targets", |dashboard| first_panel(dashboard)["targets"] = json!([])),
    ("target-promql", |dashboard| ask(dashboard, "sum(rate(x[5m])")),
    ("target-promql", |dashboard| ask(dashboard, "1 + 1")),
    ("target-rate-interval", |dashboard| ask(dashboard, "sum(rate(tokometer_requests_total[5m]))")),
    ("target-job", |dashboard| ask(dashboard, "tokometer_build_info{instance=~\"$instance\"}")),
    ("target-instance", |dashboard| {
        ask(
            dashboard,
            "tokometer_build_info{job=~\"$job\"} or tokometer_build_info{job=~\"$job\",instance=~\"$instance\"}",
        )
    }),
    ("target-counter-agg", |dashboard| ask(dashboard, "rate(tokometer_requests_total[$__rate_interval])")),
    ("target-counter-agg", |dashboard| ask(dashboard, "sum(tokometer_requests_total)")),
    ("target-both-histograms", |dashboard| {
        ask(
            dashboard,
            "histogram_quantile(0.9, sum by (le) (rate(tokometer_chunk_gap_seconds_bucket[$__rate_interval])))",
        )
    }),
    ("target-fleet-buckets", |dashboard| {
        ask(
            dashboard,
            "sum(rate(tokometer_chunk_gap_seconds_bucket[$__rate_interval])) or sum(rate(tokometer_chunk_gap_seconds[$__rate_interval]))",
        )
    }),
    ("target-fleet-buckets", |dashboard| {
        ask(
            dashboard,
            "sum(rate(tokometer_chunk_gap_seconds_bucket{instance!~\"($pod~)..$instance..\"}[6h])) or sum(rate(tokometer_chunk_gap_seconds[$__rate_interval] @ 0))",
        )
    }),
    ("uneditable", |dashboard| dashboard["editable"] = json!(true)),
    ("frame", |dashboard| dashboard["graphTooltip"] = json!(0)),
    ("annotations", |dashboard| dashboard["annotations"]["list"][1]["expr"] = json!("changes(x[2m)")),
    ("unique-ids", |dashboard| dashboard["panels"][1]["id"] = json!(1)),
    ("links", |dashboard| {
        first_panel(dashboard)["fieldConfig"]["defaults"]["links"] = json!([{"url": "/d/elsewhere"}])
    }),
    ("size", |dashboard| dashboard["description"] = json!("x".repeat(1 << 20))),
];

fn variable<'a>(dashboard: &'a mut Value, name: &str) -> &'a mut Value {
    let all = dashboard["templating"]["list"].as_array_mut().expect("the dashboard has variables");
    all.iter_mut().find(|variable| variable["name"] == name).expect("the variable exists")
}

/// The first panel that is not a heading.
fn first_panel(dashboard: &mut Value) -> &mut Value {
    &mut dashboard["panels"][1]
}

fn ask(dashboard: &mut Value, expr: &str) {
    first_panel(dashboard)["targets"][0]["expr"] = json!(expr);
}

#[test]
fn dashboards_satisfy_all_rules() {
    for dashboard in generated() {
        let found = broken(&document(&dashboard));
        assert!(found.is_empty(), "{}: {} violations:\n{found:#?}", dashboard.name, found.len());
    }
}

#[test]
fn every_rule_detects_its_violation() {
    let good = document(&generated()[0]);
    for (rule, violate) in VIOLATIONS {
        let mut dashboard = good.clone();
        violate(&mut dashboard);
        assert_ne!(dashboard, good, "{rule}: the change had no effect");
        let found = broken(&dashboard);
        assert!(found.iter().any(|(name, _)| *name == rule), "{rule} found nothing: {found:?}");
    }
    for (rule, _) in RULES {
        assert!(rule == "grid" || VIOLATIONS.iter().any(|(name, _)| *name == rule), "no change violates {rule}");
    }
}

#[test]
fn misplaced_panels_are_found_also_in_collapsed_rows() {
    let queue = generated().into_iter().find(|dashboard| dashboard.name == "tokometer-queue").unwrap();
    let is_found = |violate: &dyn Fn(&mut Value), reported: &str| {
        let mut dashboard = document(&queue);
        violate(&mut dashboard);
        let found = broken(&dashboard);
        assert!(found.iter().any(|(rule, what)| *rule == "grid" && what.contains(reported)), "{reported}: {found:?}");
    };
    is_found(&|dashboard| first_panel(dashboard)["gridPos"]["w"] = json!(25), "not within the grid");
    is_found(&|dashboard| dashboard["panels"][2]["gridPos"] = first_panel(dashboard)["gridPos"].clone(), " lies on ");
    let folded = |dashboard: &mut Value| {
        let rows = dashboard["panels"].as_array_mut().unwrap();
        let row = rows.iter_mut().find(|row| row["collapsed"] == true).expect("a collapsed row");
        row["panels"][1]["gridPos"] = row["panels"][0]["gridPos"].clone();
    };
    is_found(&folded, " lies on ");
}
