//! Grafana dashboards, generated from their definitions (`definitions/`), the metric catalog and the objectives'
//! settings.
//!
//! The format is classic JSON, readable by Grafana 11.1 to 13, with one document per dashboard. Thresholds are the
//! objectives that tokometer exports as metrics, not constants in the dashboards.

mod expression;
mod layout;
mod panel;
mod schema;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::dashboards::panel::Context;
use crate::dashboards::schema::{Definition, Shared};
use tokometer_telemetry::slo::Settings;

/// A generated dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// The `uid` in Grafana, and the file name.
    pub name: &'static str,
    /// The title.
    pub title: String,
    /// The question that the dashboard answers.
    pub description: String,
    /// JSON for provisioning: the data source is a variable.
    pub json: String,
    /// JSON for Grafana's import page, which declares the data source (`__inputs`) and the required components
    /// (`__requires`).
    pub import: String,
    /// The Prometheus queries of the panels, in order.
    pub queries: Vec<Query>,
}

/// One query of a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Name of the dashboard.
    pub dashboard: &'static str,
    /// Title of the panel.
    pub panel: String,
    /// The query's reference letter.
    pub reference: String,
    /// PromQL, with the dashboard's variables.
    pub expr: String,
    /// Legend of the series.
    pub legend: String,
    /// True for an instant query at the end of the time range.
    pub instant: bool,
    /// Why the result may be empty although Prometheus scrapes a tokometer with traffic.
    pub may_be_empty: Option<String>,
}

impl Dashboard {
    /// Every Prometheus query: of panels, variables and annotations.
    pub(crate) fn expressions(&self) -> Vec<String> {
        let document: Value = serde_json::from_str(&self.json).expect("generated JSON");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let annotations = list(&document["annotations"]["list"]).into_iter().map(|one| one["expr"].clone());
        let variables = list(&document["templating"]["list"]).into_iter().map(|one| one["query"]["query"].clone());
        let others = annotations.chain(variables).filter_map(|expr| expr.as_str().map(str::to_owned));
        self.queries.iter().map(|query| query.expr.clone()).chain(others).collect()
    }
}

impl Query {
    /// One line of JSON: `dashboard`, `panel`, `ref`, `expr`, `legend`, `instant`, `may_be_empty` (or null).
    pub fn json(&self) -> String {
        json!({
            "dashboard": self.dashboard,
            "panel": self.panel,
            "ref": self.reference,
            "expr": self.expr,
            "legend": self.legend,
            "instant": self.instant,
            "may_be_empty": self.may_be_empty,
        })
        .to_string()
    }
}

/// Name of every dashboard, in order: from the whole fleet to one process.
pub const NAMES: [&str; 7] = [
    "tokometer-overview",
    "tokometer-slo",
    "tokometer-latency",
    "tokometer-queue",
    "tokometer-pod",
    "tokometer-sidecar",
    "tokometer-details",
];

/// The definitions, in the order of [`NAMES`].
const DEFINITIONS: [&str; 7] = [
    include_str!("definitions/overview.yaml"),
    include_str!("definitions/slo.yaml"),
    include_str!("definitions/latency.yaml"),
    include_str!("definitions/queue.yaml"),
    include_str!("definitions/pod.yaml"),
    include_str!("definitions/sidecar.yaml"),
    include_str!("definitions/details.yaml"),
];

const SHARED: &str = include_str!("definitions/shared.yaml");

/// Generates the dashboards, in the order of [`NAMES`]. They depend on the objectives' period and grouping labels.
pub fn dashboards(settings: &Settings) -> Vec<Dashboard> {
    let shared: Shared = read("shared", SHARED).expect("a committed file, which the tests read");
    let made = NAMES.into_iter().zip(DEFINITIONS).map(|(name, text)| dashboard(name, text, &shared, settings));
    made.collect::<Result<Vec<Dashboard>, String>>().expect("committed files, which the tests read")
}

fn read<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, String> {
    serde_yaml::from_str(text).map_err(|error| format!("{name}: {error}"))
}

fn dashboard(name: &'static str, text: &str, shared: &Shared, settings: &Settings) -> Result<Dashboard, String> {
    let definition: Definition = read(name, text)?;
    let context = Context {
        shared,
        rules: &settings.rules,
        reading: settings.reading,
        settings: &expression::of_settings(settings),
        expressions: &definition.expressions,
    };
    let document = layout::document(name, &definition, &context).map_err(|why| format!("{name}: {why}"))?;
    let pretty = |document: &Value| format!("{document:#}\n");
    let mut queries = Vec::new();
    for panel in &document.panels {
        queries.extend(panel.queries.iter().enumerate().map(|(at, query)| Query {
            dashboard: name,
            panel: panel.json["title"].as_str().unwrap_or_default().to_owned(),
            reference: panel::ref_id(at),
            expr: query.expr.clone(),
            legend: query.legend.clone(),
            instant: panel.instant,
            may_be_empty: query.may_be_empty.clone(),
        }));
    }
    Ok(Dashboard {
        name,
        json: pretty(&document.json),
        import: pretty(&layout::import(&document)),
        queries,
        title: definition.title,
        description: definition.description,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a dashboard whose only panel has this definition.
    fn fault(panel: &str) -> String {
        let text =
            format!("title: t\ndescription: d\nrows:\n  - title: r\n    size: [8, 8]\n    panels:\n      - {panel}");
        let shared = read("shared", SHARED).unwrap();
        dashboard("test", &text, &shared, &Settings::default()).unwrap_err()
    }

    #[test]
    fn wrong_definition_is_reported_with_its_place() {
        let panel = "{title: Speed, description: d, kind: graph, unit: s, queries: [{expr: up}]";
        assert!(fault(&format!("{panel}, colour: red}}")).contains("colour"));
        assert!(
            fault(&format!("{panel}, styles: [wide]}}")).contains("test: panel `Speed`: no style is called `wide`")
        );
        assert!(
            fault(&panel.replace("graph", "background").replace("expr: up}]", "expr: up}]}")).contains("not a kind")
        );
        for (key, why) in [
            ("thresholds: {high: red}", "`high` is not a threshold"),
            ("limit: {value: up, objective: speed}", "no limit is called `speed`"),
            ("overrides: [{color: red}]", "either `series` or `field`"),
            ("max: many", "`many` is not a number"),
        ] {
            assert!(fault(&format!("{panel}, {key}}}")).contains(why), "{key}");
        }
    }
}
