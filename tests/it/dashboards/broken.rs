//! Each lint rule detects a dashboard that violates it.

use serde_json::Value;
use serde_json::json;

use super::boards;
use super::document;
use super::lint::RULES;
use super::lint::broken;

/// A change that makes a dashboard violate a rule.
type Damage = fn(&mut Value);

/// Each rule, and a change that violates it.
const DAMAGES: [(&str, Damage); 26] = [
    ("template-datasource", |board| variable(board, "datasource")["label"] = json!("Prometheus")),
    ("template-job", |board| variable(board, "job")["multi"] = json!(false)),
    ("template-instance", |board| variable(board, "instance")["allValue"] = json!(".*")),
    ("template-label-promql", |board| {
        variable(board, "pod")["query"]["query"] = json!("label_values(up{a=~\"$b\"}, pod)")
    }),
    ("template-label-promql", |board| variable(board, "job")["query"]["query"] = json!("label_values(job)")),
    ("template-on-time-change-reload", |board| variable(board, "model")["refresh"] = json!(1)),
    ("panel-datasource", |board| first_panel(board)["datasource"]["uid"] = json!("abc")),
    ("panel-datasource", |board| first_panel(board)["targets"][0]["datasource"]["uid"] = json!("abc")),
    ("panel-title-description", |board| first_panel(board)["description"] = json!(" ")),
    ("panel-title-description", |board| board["description"] = json!("")),
    ("panel-units", |board| first_panel(board)["fieldConfig"]["defaults"]["unit"] = json!("tokens")),
    ("panel-no-targets", |board| first_panel(board)["targets"] = json!([])),
    ("target-promql", |board| ask(board, "sum(rate(x[5m])")),
    ("target-promql", |board| ask(board, "1 + 1")),
    ("target-rate-interval", |board| ask(board, "sum(rate(tokometer_requests_total[5m]))")),
    ("target-job", |board| ask(board, "tokometer_build_info{instance=~\"$instance\"}")),
    ("target-instance", |board| {
        ask(board, "tokometer_build_info{job=~\"$job\"} or tokometer_build_info{job=~\"$job\",instance=~\"$instance\"}")
    }),
    ("target-counter-agg", |board| ask(board, "rate(tokometer_requests_total[$__rate_interval])")),
    ("target-counter-agg", |board| ask(board, "sum(tokometer_requests_total)")),
    ("target-both-histograms", |board| {
        ask(board, "histogram_quantile(0.9, sum by (le) (rate(tokometer_chunk_gap_seconds_bucket[$__rate_interval])))")
    }),
    ("uneditable", |board| board["editable"] = json!(true)),
    ("frame", |board| board["graphTooltip"] = json!(0)),
    ("annotations", |board| board["annotations"]["list"][1]["expr"] = json!("changes(x[2m)")),
    ("unique-ids", |board| board["panels"][1]["id"] = json!(1)),
    ("links", |board| first_panel(board)["fieldConfig"]["defaults"]["links"] = json!([{"url": "/d/elsewhere"}])),
    ("size", |board| board["description"] = json!("x".repeat(1 << 20))),
];

fn variable<'a>(board: &'a mut Value, name: &str) -> &'a mut Value {
    let all = board["templating"]["list"].as_array_mut().expect("the dashboard has variables");
    all.iter_mut().find(|variable| variable["name"] == name).expect("the variable exists")
}

/// The first panel that is not a heading.
fn first_panel(board: &mut Value) -> &mut Value {
    &mut board["panels"][1]
}

fn ask(board: &mut Value, expr: &str) {
    first_panel(board)["targets"][0]["expr"] = json!(expr);
}

#[test]
fn dashboards_satisfy_all_rules() {
    for board in boards() {
        let found = broken(&document(&board));
        assert!(found.is_empty(), "{}: {} violations:\n{found:#?}", board.name, found.len());
    }
}

#[test]
fn every_rule_detects_its_violation() {
    let good = document(&boards()[0]);
    for (rule, damage) in DAMAGES {
        let mut board = good.clone();
        damage(&mut board);
        assert_ne!(board, good, "{rule}: the change had no effect");
        let found = broken(&board);
        assert!(found.iter().any(|(name, _)| *name == rule), "{rule} found nothing: {found:?}");
    }
    for (rule, _) in RULES {
        assert!(rule == "grid" || DAMAGES.iter().any(|(name, _)| *name == rule), "no change violates {rule}");
    }
}

#[test]
fn misplaced_panels_are_found_also_in_collapsed_rows() {
    let queue = boards().into_iter().find(|board| board.name == "tokometer-queue").unwrap();
    let is_found = |damage: &dyn Fn(&mut Value), reported: &str| {
        let mut board = document(&queue);
        damage(&mut board);
        let found = broken(&board);
        assert!(found.iter().any(|(rule, what)| *rule == "grid" && what.contains(reported)), "{reported}: {found:?}");
    };
    is_found(&|board| first_panel(board)["gridPos"]["w"] = json!(25), "not within the grid");
    is_found(&|board| board["panels"][2]["gridPos"] = first_panel(board)["gridPos"].clone(), " lies on ");
    let folded = |board: &mut Value| {
        let rows = board["panels"].as_array_mut().unwrap();
        let row = rows.iter_mut().find(|row| row["collapsed"] == true).expect("a collapsed row");
        row["panels"][1]["gridPos"] = row["panels"][0]["gridPos"].clone();
    };
    is_found(&folded, " lies on ");
}
