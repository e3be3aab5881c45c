//! A dashboard: its rows of panels, and the variables, annotations and links that all dashboards share.

use serde_json::Value;
use serde_json::json;

use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Source;
use crate::dashboards::promql::CHOSEN;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;

/// Schema version of classic dashboards, readable by Grafana 10.4 to 13 (grafana/grafana,
/// kinds/dashboard/dashboard_kind.cue).
const SCHEMA_VERSION: u32 = 39;

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

/// A heading and its panels.
#[derive(Clone, Debug)]
pub(super) struct Row {
    title: &'static str,
    /// Folded until a user opens it: its panels query nothing before.
    collapsed: bool,
    /// Size of the panels that do not set their own.
    size: (u32, u32),
    panels: Vec<Panel>,
}

impl Row {
    pub(super) fn open(title: &'static str, size: (u32, u32), panels: Vec<Panel>) -> Row {
        Row { title, collapsed: false, size, panels }
    }

    pub(super) fn folded(title: &'static str, size: (u32, u32), panels: Vec<Panel>) -> Row {
        Row { title, collapsed: true, size, panels }
    }
}

/// A dashboard.
#[derive(Clone, Debug)]
pub(super) struct Board {
    /// Its uid and file name, used in links.
    pub(super) uid: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    /// Whether it has the variable for objectives.
    pub(super) by_objective: bool,
    pub(super) rows: Vec<Row>,
}

impl Board {
    /// All panels, in order.
    pub(super) fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|row| &row.panels)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "uid": self.uid,
            "title": self.title,
            "description": format!("{} (Made by `tokometer dashboards` {}.)", self.description, env!("CARGO_PKG_VERSION")),
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": false,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {},
            "timezone": "browser",
            "weekStart": "",
            "fiscalYearStartMonth": 0,
            "liveNow": false,
            "links": links(),
            "annotations": {"list": annotations()},
            "templating": {"list": variables(self.by_objective)},
            "panels": self.grid(),
        })
    }

    /// Lays out panels from left to right, with a new line when the next one does not fit, and each row below the
    /// previous one.
    fn grid(&self) -> Vec<Value> {
        let (mut ids, mut y, mut grid) = (1.., 0, Vec::new());
        let mut id = || ids.next().unwrap_or(0);
        for row in &self.rows {
            let heading = (id(), y);
            y += 1;
            let (mut x, mut tallest, mut panels) = (0, 0, Vec::new());
            for panel in &row.panels {
                let (width, height) = panel.size.unwrap_or(row.size);
                if x + width > COLUMNS {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                panels.push(panel.json(id(), (x, y), (width, height)));
                x += width;
                tallest = tallest.max(height);
            }
            y += tallest;
            let (folded, open) = if row.collapsed { (panels, Vec::new()) } else { (Vec::new(), panels) };
            grid.push(json!({
                "id": heading.0,
                "type": "row",
                "title": row.title,
                "collapsed": row.collapsed,
                "gridPos": {"x": 0, "y": heading.1, "w": COLUMNS, "h": 1},
                "panels": folded,
            }));
            grid.extend(open);
            if row.collapsed {
                y = heading.1 + 1;
            }
        }
        grid
    }
}

/// The tag by which the dashboards link to each other.
const TAG: &str = "tokometer";

fn name(id: Id) -> String {
    metric(id).prometheus().full()
}

/// A variable with the values of a label.
fn choice(variable: &str, label: &str, of: &str, all: &str, description: &str) -> Value {
    let query = format!("label_values({of}, {label})");
    json!({
        "name": variable,
        "label": variable,
        "description": description,
        "type": "query",
        "datasource": Source::Prometheus.reference(),
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        // Refresh on every change of the time range, because pods come and go.
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "multi": true,
        "includeAll": true,
        "allValue": all,
        "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
        "skipUrlSync": false,
    })
}

fn source(variable: &str, label: &str, kind: &str, description: &str) -> Value {
    json!({
        "name": variable,
        "label": label,
        "description": description,
        "type": "datasource",
        "query": kind,
        "regex": "",
        "refresh": 1,
        "multi": false,
        "includeAll": false,
        "options": [],
        "hide": 0,
        "skipUrlSync": false,
    })
}

/// The variables. "All" is `.*` for labels that may be absent: there is no namespace outside a cluster, and no model
/// before the first response.
fn variables(by_objective: bool) -> Vec<Value> {
    let info = name(Id::BuildInfo);
    let requests = name(Id::Requests);
    let of_jobs = r#"job=~"$job",namespace=~"$namespace""#;
    let mut all = vec![
        source("datasource", "Data Source", "prometheus", "The Prometheus that scrapes tokometer."),
        choice("job", "job", &info, ".+", "Scrape jobs with a tokometer in them."),
        choice("namespace", "namespace", &format!("{info}{{job=~\"$job\"}}"), ".*", "Kubernetes namespaces."),
        choice(
            "model",
            Key::ResponseModel.label(),
            &format!("{requests}{{{of_jobs}}}"),
            ".*",
            "Models that answered. With one chosen, requests that nobody answered are left out of what is told by model.",
        ),
        choice("pod", "pod", &format!("{info}{{{of_jobs}}}"), ".*", "Pods; none outside of a cluster."),
        choice(
            "instance",
            "instance",
            &format!("{info}{{{of_jobs},pod=~\"$pod\"}}"),
            ".+",
            "Scraped addresses, one of each tokometer.",
        ),
    ];
    if by_objective {
        let objectives = format!("{}{{{CHOSEN}}}", name(Id::SloObjective));
        all.push(choice("slo", Key::Slo.label(), &objectives, ".+", "Objectives."));
    }
    all.push(source("traces", "Traces", "tempo", "Where tokometer's traces are; needed for links to traces alone."));
    all
}

fn annotation(title: &str, expr: &str, color: &str, tags: &str, text: &str) -> Value {
    json!({
        "name": title,
        "datasource": Source::Prometheus.reference(),
        "enable": true,
        "hide": false,
        "expr": expr,
        "iconColor": color,
        "step": "30s",
        "tagKeys": tags,
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": false,
    })
}

/// Annotations for events that may explain a change in a graph.
fn annotations() -> Vec<Value> {
    let objective = format!("{}{{{CHOSEN}}}", name(Id::SloObjective));
    let threshold = format!("{}{{{CHOSEN}}}", name(Id::SloThreshold));
    let started = format!("{}{{{CHOSEN}}}", name(Id::StartTime));
    let info = format!("{}{{{CHOSEN}}}", name(Id::BuildInfo));
    let version = Key::Version.label();
    vec![
        json!({
            "name": "Annotations & Alerts",
            "builtIn": 1,
            "type": "dashboard",
            "datasource": {"type": "grafana", "uid": "-- Grafana --"},
            "enable": true,
            "hide": true,
            "iconColor": "rgba(0, 211, 255, 1)",
        }),
        annotation(
            "Alert",
            r#"max by (alertname, severity, slo, namespace, model) (ALERTS{alertname=~"LLM.+",alertstate="firing"})"#,
            "red",
            "severity,slo,namespace",
            "{{alertname}} {{slo}} {{namespace}} {{model}}",
        ),
        annotation(
            "Deployment changed",
            r#"changes(kube_deployment_status_observed_generation{namespace=~"$namespace"}[2m]) > 0"#,
            "blue",
            "namespace",
            "{{deployment}}",
        ),
        annotation(
            "Version of tokometer",
            // A gap in the scrapes does not count as a new version.
            &format!(
                "count by ({version}) ({info}) unless on ({version}) count by ({version}) (last_over_time({info}[1h] offset 2m))"
            ),
            "purple",
            version,
            "{{version}}",
        ),
        annotation(
            "Tokometer restarted",
            &format!("changes({started}[2m]) > 0"),
            "orange",
            "namespace",
            "{{pod}} {{instance}}",
        ),
        annotation(
            "Objectives changed",
            &format!("sum by (slo) (changes({objective}[2m])) > 0 or sum by (slo) (changes({threshold}[2m])) > 0"),
            "yellow",
            "slo",
            "{{slo}}: a new configuration is in force",
        ),
    ]
}

/// Links to the other dashboards, keeping time range and variables.
fn links() -> Value {
    json!([{
        "type": "dashboards",
        "title": "Tokometer",
        "tags": [TAG],
        "asDropdown": true,
        "keepTime": true,
        "includeVars": true,
        "targetBlank": false,
        "icon": "external link",
        "tooltip": "The other boards of tokometer",
        "url": "",
    }])
}
