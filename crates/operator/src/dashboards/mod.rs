//! Grafana dashboards, generated from the metric table and the settings of the objectives.
//!
//! The format is classic JSON, readable by Grafana 10.4 to 13, with one document per dashboard. Thresholds come from
//! the objectives that tokometer exports as metrics, not from constants in the dashboards.

mod board;
mod boards;
mod frame;
mod import;
mod objectives;
mod panel;
mod promql;
mod viz;

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
                import: text(&import::copy(document.clone())),
                json: text(&document),
                queries: queries(board),
            }
        })
        .collect()
}

fn text(document: &Value) -> String {
    format!("{document:#}\n")
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
