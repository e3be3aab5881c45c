//! Grafana dashboards, generated from the metric table and the settings of the objectives.
//!
//! The format is classic JSON, readable by Grafana 10.4 to 13, with one document per dashboard. Thresholds come from
//! the objectives that tokometer exports as metrics, not from constants in the dashboards.

mod board;
mod boards;
mod objectives;
mod panel;
mod promql;
mod viz;

use std::collections::BTreeSet;

use serde_json::Value;
use serde_json::json;

use crate::dashboards::panel::Source;
use tokometer_telemetry::slo::Settings;

/// A generated dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its `uid` in Grafana, and the name of its file.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The question it answers.
    pub description: &'static str,
    /// JSON for provisioning: its data source is a variable.
    pub json: String,
    /// JSON for Grafana's import page: it declares the data source (`__inputs`) and the required components
    /// (`__requires`).
    pub import: String,
    /// The Prometheus queries of its panels, in order.
    pub queries: Vec<Query>,
}

/// One query of a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Name of the dashboard.
    pub board: &'static str,
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
    /// Why the result may be empty although a tokometer with traffic is scraped.
    pub may_be_empty: Option<&'static str>,
}

impl Query {
    /// One line of JSON: `board`, `panel`, `ref`, `expr`, `legend`, `instant`, `may_be_empty` (or null).
    pub fn json(&self) -> String {
        json!({
            "board": self.board,
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

/// Name of every dashboard, in order.
pub const NAMES: [&str; 6] =
    [boards::OVERVIEW, boards::SLO, boards::LATENCY, boards::QUEUE, boards::POD, boards::SIDECAR];

/// Generates the dashboards, in the order of [`NAMES`]. They depend on the objectives' period and grouping labels.
pub fn dashboards(settings: &Settings) -> Vec<Dashboard> {
    boards::all(settings)
        .iter()
        .map(|board| {
            let document = board.json();
            Dashboard {
                name: board.uid,
                title: board.title,
                description: board.description,
                import: text(&import_copy(document.clone())),
                json: text(&document),
                queries: queries(board),
            }
        })
        .collect()
}

fn text(document: &Value) -> String {
    format!("{document:#}\n")
}

/// The oldest Grafana version that supports every panel: the XY chart has had these options since then.
const GRAFANA: &str = "11.1.0";

/// The placeholder that the import page replaces everywhere.
const INPUT: &str = "DS_PROMETHEUS";

/// The copy for Grafana's import page and grafana.com: it names what it requires, and asks once for the data source.
fn import_copy(mut document: Value) -> Value {
    let mut requires = vec![
        json!({"type": "grafana", "id": "grafana", "name": "Grafana", "version": GRAFANA}),
        json!({"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}),
    ];
    requires.extend(
        kinds(&document)
            .into_iter()
            .map(|kind| json!({"type": "panel", "id": kind, "name": kind_title(&kind), "version": ""})),
    );
    document["__inputs"] = json!([{
        "name": INPUT,
        "label": "Prometheus",
        "description": "The Prometheus that scrapes tokometer",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }]);
    document["__requires"] = json!(requires);
    document["__elements"] = json!({});
    document["id"] = Value::Null;
    let chosen = format!("${{{INPUT}}}");
    for variable in document["templating"]["list"].as_array_mut().into_iter().flatten() {
        if variable["name"] == "datasource" {
            variable["current"] = json!({"selected": true, "text": chosen, "value": chosen});
        }
    }
    document
}

fn kinds(document: &Value) -> BTreeSet<String> {
    let open = document["panels"].as_array().into_iter().flatten();
    open.flat_map(|panel| std::iter::once(panel).chain(panel["panels"].as_array().into_iter().flatten()))
        .filter_map(|panel| panel["type"].as_str())
        .filter(|kind| *kind != "row")
        .map(str::to_owned)
        .collect()
}

/// Grafana's name of a panel type.
fn kind_title(kind: &str) -> &str {
    match kind {
        "timeseries" => "Time series",
        "stat" => "Stat",
        "bargauge" => "Bar gauge",
        "table" => "Table",
        "heatmap" => "Heatmap",
        "state-timeline" => "State timeline",
        "xychart" => "XY Chart",
        other => other,
    }
}

fn queries(board: &board::Board) -> Vec<Query> {
    let of_prometheus = board.panels().filter(|panel| panel.source == Source::Prometheus);
    of_prometheus
        .flat_map(|panel| {
            panel.targets.iter().enumerate().map(|(at, target)| Query {
                board: board.uid,
                panel: panel.title.clone(),
                reference: panel::ref_id(at),
                expr: target.expr.clone(),
                legend: target.legend.clone(),
                instant: target.instant,
                may_be_empty: target.may_be_empty,
            })
        })
        .collect()
}
