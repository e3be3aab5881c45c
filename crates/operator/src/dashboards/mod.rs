//! Dashboards for Grafana, made from the metric table and the settings of the objectives.
//!
//! Classic JSON, which Grafana 10.4 to 13 read, one document for each board. What is drawn as breached is measured by what
//! tokometers export of their objectives, not by a figure in the board.

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

/// A dashboard, ready to be written.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its address in Grafana (`uid`), and the name of its file.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// The question it answers.
    pub description: &'static str,
    /// For provisioning: its data source is a variable.
    pub json: String,
    /// For Grafana's import page, which asks for the data source (`__inputs`) and what must be installed (`__requires`).
    pub import: String,
    /// What its panels ask a Prometheus, in their order.
    pub queries: Vec<Query>,
}

/// One query of a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Name of the board.
    pub board: &'static str,
    /// Heading of the panel.
    pub panel: String,
    /// The query's letter.
    pub reference: String,
    /// PromQL, with the board's variables in it.
    pub expr: String,
    /// How a series is called.
    pub legend: String,
    /// True when it asks for the end of the time range alone.
    pub instant: bool,
    /// Why it may have no answer where a tokometer with traffic is scraped.
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

/// Name of every board, in order.
pub const NAMES: [&str; 6] =
    [boards::OVERVIEW, boards::SLO, boards::LATENCY, boards::QUEUE, boards::POD, boards::SIDECAR];

/// The boards, in the order of [`NAMES`]. Of the settings they need the period of the objectives, and what they are told by.
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
