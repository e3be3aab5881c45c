//! What of the chart is made from elsewhere. `UPDATE=1` writes the schema anew.

use serde_json::Value;
use tokometer::config;

use crate::chart::place;
use crate::chart::text;
use crate::config_documents::same_as_committed;

const SCHEMA: &str = "charts/tokometer/values.schema.json";

/// Blocks of the configuration that the chart itself sets.
const SET_BY_THE_CHART: [&str; 2] = ["pairs", "admin"];

#[test]
fn rules_and_dashboards_of_the_chart_are_those_of_the_repository() {
    for (name, target) in [("rules.yaml", "config/rules/prometheusrule.yaml"), ("dashboards", "dashboards")] {
        let link = place(&format!("charts/tokometer/files/{name}"));
        let leads = std::fs::canonicalize(&link).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(link.is_symlink(), "{name} is a copy: it would grow old");
        assert_eq!(leads, std::fs::canonicalize(place(target)).expect(target));
    }
}

#[test]
fn the_schema_of_the_values_knows_every_key_of_the_configuration() {
    let mut schema: Value = serde_json::from_str(&text(SCHEMA)).expect("the schema is JSON");
    let mut configuration = config::schema();
    let blocks = configuration.as_object_mut().expect("a schema is an object");
    for head in ["$schema", "title"] {
        blocks.remove(head);
    }
    for block in SET_BY_THE_CHART {
        blocks["properties"].as_object_mut().expect("properties are an object").remove(block).expect(block);
    }
    schema["$defs"]["config"] = configuration;
    same_as_committed(SCHEMA, &format!("{schema:#}\n"));
}

#[test]
fn the_chart_is_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = text("charts/tokometer/Chart.yaml");
    for line in [format!("version: {version}"), format!("appVersion: {version}")] {
        assert!(chart.lines().any(|found| found == line), "Chart.yaml lacks `{line}`");
    }
}
