//! A whole dashboard: the shared frame, variables and annotations, and the grid of panels.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::dashboards::expression::expand;
use crate::dashboards::panel::{Context, Made, prometheus};
use crate::dashboards::schema::{Annotation, Definition, Variable};

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

/// A dashboard in Grafana's JSON, and its panels.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) json: Value,
    pub(super) panels: Vec<Made>,
}

/// # Errors
/// The location of the error in the definition, and its cause.
pub(super) fn document(uid: &str, definition: &Definition, context: &Context<'_>) -> Result<Document, String> {
    let (mut panels, mut grid, mut id, mut y) = (Vec::new(), Vec::new(), 0, 0);
    for row in &definition.rows {
        id += 1;
        let mut heading = json!({
            "id": id,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            "panels": [],
        });
        y += 1;
        // Panels are placed from left to right. A panel that does not fit starts a new line.
        let (mut x, mut line, mut tallest, mut placed) = (0, y, 0, Vec::new());
        for panel in &row.panels {
            let (width, height) = panel.size.unwrap_or(row.size);
            let mut made = context.panel(panel, width).map_err(|why| format!("panel `{}`: {why}", panel.title))?;
            if x + width > COLUMNS {
                (x, line, tallest) = (0, line + tallest, 0);
            }
            id += 1;
            made.json["id"] = json!(id);
            made.json["gridPos"] = json!({"x": x, "y": line, "w": width, "h": height});
            placed.push(made.json.clone());
            panels.push(made);
            x += width;
            tallest = tallest.max(height);
        }
        // The heading of a collapsed row contains its panels, which take no space.
        if row.collapsed {
            heading["panels"] = json!(placed);
            placed.clear();
        } else {
            y = line + tallest;
        }
        grid.push(heading);
        grid.append(&mut placed);
    }
    let shared = context.shared;
    let chosen = |variable: &&Variable| !variable.optional || definition.variables.contains(&variable.name);
    let variables = shared.variables.iter().filter(chosen);
    let variables = variables.map(|of| variable(of, definition.one_value.contains(&of.name)));
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    let mut annotations = vec![json!({
        "name": "Annotations & Alerts",
        "builtIn": 1,
        "type": "dashboard",
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": true,
        "hide": true,
        "iconColor": "rgba(0, 211, 255, 1)",
    })];
    for of in &shared.annotations {
        annotations.push(annotation(of)?);
    }
    let made_by = format!("(Made by `tokometer dashboards` {}.)", env!("CARGO_PKG_VERSION"));
    let mut json = Value::Object(shared.frame.clone());
    if let (Some(runbooks), Value::Array(links)) = (&context.rules.runbook_url, &mut json["links"]) {
        links.push(runbooks_link(runbooks));
    }
    json["uid"] = json!(uid);
    json["title"] = json!(definition.title);
    json["description"] = json!(format!("{} {made_by}", definition.description));
    json["annotations"] = json!({"list": annotations});
    json["templating"] = json!({"list": variables});
    json["panels"] = json!(grid);
    Ok(Document { json, panels })
}

fn runbooks_link(url: &str) -> Value {
    json!({
        "type": "link",
        "title": "Runbooks",
        "url": url,
        "tags": [],
        "asDropdown": false,
        "keepTime": false,
        "includeVars": false,
        "targetBlank": true,
        "icon": "doc",
        "tooltip": "A page for each alert",
    })
}

fn variable(of: &Variable, one_value: bool) -> Result<Value, String> {
    let label = of.label.as_ref().unwrap_or(&of.name);
    let mut json = json!({
        "name": of.name,
        "label": label,
        "description": of.description,
        "regex": "",
        "options": [],
        "hide": 0,
        "skipUrlSync": false,
    });
    let own = match &of.source {
        Some(source) => json!({
            "type": "datasource",
            "query": source,
            "refresh": 1,
            "multi": false,
            "includeAll": false,
        }),
        None => {
            let query = expand(&of.query, &[])?;
            json!({
                "type": "query",
                "datasource": prometheus(),
                "definition": query,
                "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
                // On every change of the time range, because pods come and go.
                "refresh": 2,
                "sort": 1,
                "multi": !one_value,
                "includeAll": !one_value,
            })
        }
    };
    let all = json!({
        "allValue": of.all,
        "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
    });
    let all = if of.source.is_some() || one_value { json!({}) } else { all };
    if let Value::Object(json) = &mut json {
        json.extend([own, all].into_iter().filter_map(|part| part.as_object().cloned()).flatten());
    }
    Ok(json)
}

fn annotation(of: &Annotation) -> Result<Value, String> {
    Ok(json!({
        "name": of.name,
        "datasource": prometheus(),
        "enable": true,
        "hide": false,
        "expr": expand(&of.expr, &[])?,
        "iconColor": of.color,
        "step": "30s",
        "tagKeys": of.labels,
        "titleFormat": of.name,
        "textFormat": of.text,
        "useValueForTime": false,
    }))
}

/// The oldest Grafana version that supports every panel: older versions lack XY chart options that the panels use.
const GRAFANA: &str = "11.1.0";

/// The placeholder for the data source, which the import page replaces everywhere.
const INPUT: &str = "DS_PROMETHEUS";

/// The variant for Grafana's import page and grafana.com. It declares its requirements and the data source, which the
/// user selects on import.
pub(super) fn import(document: &Document) -> Value {
    let kinds: BTreeSet<&(String, String)> = document.panels.iter().map(|panel| &panel.kind).collect();
    let mut requires = vec![
        json!({"type": "grafana", "id": "grafana", "name": "Grafana", "version": GRAFANA}),
        json!({"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}),
    ];
    let panels = kinds.into_iter().map(|(id, name)| json!({"type": "panel", "id": id, "name": name, "version": ""}));
    requires.extend(panels);
    let mut json = document.json.clone();
    json["__inputs"] = json!([{
        "name": INPUT,
        "label": "Prometheus",
        "description": "The Prometheus that scrapes tokometer",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }]);
    json["__requires"] = json!(requires);
    json["__elements"] = json!({});
    json["id"] = Value::Null;
    let chosen = format!("${{{INPUT}}}");
    for variable in json["templating"]["list"].as_array_mut().into_iter().flatten() {
        if variable["name"] == "datasource" {
            variable["current"] = json!({"selected": true, "text": chosen, "value": chosen});
        }
    }
    json
}
