//! Parts of the chart that are generated from the repository. `UPDATE=1` regenerates the schema.

use serde_json::Value;
use tokometer::config;

use crate::chart::{place, text};
use crate::config_documents::same_as_committed;

const SCHEMA: &str = "charts/tokometer/values.schema.json";

/// Configuration blocks that the chart sets, so users cannot set them in the values.
const SET_BY_THE_CHART: [&str; 2] = ["listeners", "admin"];

#[test]
fn chart_rules_and_dashboards_link_to_the_repository() {
    for (name, target) in [("rules.yaml", "config/rules/prometheusrule.yaml"), ("dashboards", "dashboards")] {
        let link = place(&format!("charts/tokometer/files/{name}"));
        let leads = std::fs::canonicalize(&link).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(link.is_symlink(), "{name} is a copy, which would become outdated");
        assert_eq!(leads, std::fs::canonicalize(place(target)).expect(target));
    }
}

#[test]
fn values_schema_has_every_configuration_key() {
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
fn chart_has_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = text("charts/tokometer/Chart.yaml");
    for line in [format!("version: {version}"), format!("appVersion: {version}")] {
        assert!(chart.lines().any(|found| found == line), "Chart.yaml lacks `{line}`");
    }
}
