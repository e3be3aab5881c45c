//! The variant for Grafana's import page and grafana.com: it declares its requirements and asks for the data source
//! once.

use std::collections::BTreeSet;

use serde_json::Value;
use serde_json::json;

/// The oldest Grafana version that supports every panel: the XY chart has had these options since then.
const GRAFANA: &str = "11.1.0";

/// The placeholder that the import page replaces everywhere.
const INPUT: &str = "DS_PROMETHEUS";

pub(super) fn copy(mut document: Value) -> Value {
    let mut requires = vec![
        json!({"type": "grafana", "id": "grafana", "name": "Grafana", "version": GRAFANA}),
        json!({"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}),
    ];
    requires.extend(
        kinds(&document)
            .into_iter()
            .map(|kind| json!({"type": "panel", "id": kind, "name": title(&kind), "version": ""})),
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
fn title(kind: &str) -> &str {
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
