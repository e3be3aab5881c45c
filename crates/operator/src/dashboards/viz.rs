//! Panel types with this project's default options.

use serde_json::Value;
use serde_json::json;

use crate::dashboards::panel::Layout;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::or_idle;

/// Colour for idle: neither good nor bad.
pub(super) const IDLE: &str = "#8e8e9a";
pub(super) const GOOD: &str = "green";
pub(super) const BAD: &str = "red";

/// Legend of an objective's limit.
const OBJECTIVE: &str = "objective";
/// Legend of the values that violate the limit.
const BROKEN: &str = "breaks the objective";

/// On which side of its limit a value is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Values above it are bad.
    Ceiling,
    /// Values below it are bad.
    Floor,
}

impl Limit {
    fn broken_by(self) -> &'static str {
        match self {
            Limit::Ceiling => ">",
            Limit::Floor => "<",
        }
    }
}

/// Tokens per second of one stream.
pub(super) const TOKENS_PER_SECOND: &str = "suffix: tok/s";
/// Tokens per second of many streams: with `k` and `M`.
pub(super) const MANY_TOKENS_PER_SECOND: &str = "si:tok/s";

/// A time series graph with lines.
pub(super) fn graph(title: &str, description: &str, unit: &str) -> Panel {
    Panel::new("timeseries", title, description, unit)
        .field("color", json!({"mode": "palette-classic"}))
        .field("min", json!(0))
        .custom("drawStyle", json!("line"))
        .custom("lineInterpolation", json!("linear"))
        .custom("lineWidth", json!(1))
        .custom("fillOpacity", json!(8))
        .custom("gradientMode", json!("none"))
        .custom("showPoints", json!("never"))
        .custom("pointSize", json!(4))
        .custom("spanNulls", json!(false))
        .custom("stacking", json!({"mode": "none", "group": "A"}))
        .custom("thresholdsStyle", json!({"mode": "off"}))
        .custom("axisPlacement", json!("auto"))
        .custom("scaleDistribution", json!({"type": "linear"}))
        .option("legend", json!({"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []}))
        .option("tooltip", json!({"mode": "multi", "sort": "desc"}))
}

/// For small graphs of many processes: series are identified by the tooltip.
pub(super) fn without_legend(panel: Panel) -> Panel {
    panel.option("legend", json!({"displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": []}))
}

/// A stacked time series graph.
pub(super) fn stacked(title: &str, description: &str, unit: &str) -> Panel {
    graph(title, description, unit)
        .custom("fillOpacity", json!(40))
        .custom("stacking", json!({"mode": "normal", "group": "A"}))
}

/// Adds an objective's limit as a line, and draws values on its wrong side in red.
pub(super) fn with_limit(panel: Panel, value: &str, limit: &str, side: Limit) -> Panel {
    const NONE: &str = "only with such an objective";
    let wrong = format!("({value})\n{} on ()\n({limit})", side.broken_by());
    panel
        .target(Target::range(OBJECTIVE, limit).may_be_empty(NONE))
        .target(Target::range(BROKEN, wrong).may_be_empty("only while the objective is broken"))
        .named(
            OBJECTIVE,
            &[
                ("color", json!({"mode": "fixed", "fixedColor": BAD})),
                ("custom.lineStyle", json!({"fill": "dash", "dash": [8, 6]})),
                ("custom.fillOpacity", json!(0)),
            ],
        )
        .named(
            BROKEN,
            &[
                ("color", json!({"mode": "fixed", "fixedColor": BAD})),
                ("custom.lineWidth", json!(3)),
                ("custom.fillOpacity", json!(12)),
                ("custom.showPoints", json!("always")),
            ],
        )
}

/// A single number with a sparkline.
pub(super) fn stat(title: &str, description: &str, unit: &str) -> Panel {
    Panel::new("stat", title, description, unit)
        .field("color", json!({"mode": "thresholds"}))
        .thresholds("blue", &[])
        .option("reduceOptions", json!({"calcs": ["last"], "fields": "", "values": false}))
        .option("colorMode", json!("value"))
        .option("graphMode", json!("area"))
        .option("justifyMode", json!("auto"))
        .option("orientation", json!("auto"))
        .option("textMode", json!("value"))
        .option("wideLayout", json!(true))
        .size(6, 4)
}

/// A current value that is red while an objective is violated, and grey without traffic.
///
/// It uses two queries of which only one returns a result, because not every supported Grafana version can read a
/// threshold from another query.
pub(super) fn judged(title: &str, description: &str, unit: &str, value: &str, limit: &str, side: Limit) -> Panel {
    let wrong = format!("({value})\n{} on ()\n({limit})", side.broken_by());
    idle_is_grey(stat(title, description, unit))
        .option("graphMode", json!("none"))
        .target(
            Target::now("good", format!("({})\nunless on ()\n({wrong})", or_idle(value)))
                .may_be_empty("while the objective is broken"),
        )
        .target(Target::now("broken", wrong).may_be_empty("only while the objective is broken"))
        .color("^good$", GOOD)
        .color("^broken$", BAD)
}

/// Shows NaN as idle: it is a share or quantile of nothing, from series that exist but have no traffic.
pub(super) fn idle_is_grey(panel: Panel) -> Panel {
    panel.field("mappings", no_traffic())
}

fn no_traffic() -> Value {
    json!([{"type": "special", "options": {"match": "null+nan", "result": {"text": "no traffic", "color": IDLE, "index": 0}}}])
}

/// Bars of current values.
pub(super) fn bars(title: &str, description: &str, unit: &str) -> Panel {
    Panel::new("bargauge", title, description, unit)
        .field("color", json!({"mode": "thresholds"}))
        .option("reduceOptions", json!({"calcs": ["lastNotNull"], "fields": "", "values": false}))
        .option("displayMode", json!("basic"))
        .option("orientation", json!("horizontal"))
        .option("showUnfilled", json!(true))
        .option("valueMode", json!("color"))
        .option("namePlacement", json!("auto"))
        .option("sizing", json!("auto"))
        .option("minVizHeight", json!(16))
        .option("minVizWidth", json!(8))
}

/// A distribution over time.
pub(super) fn heatmap(title: &str, description: &str, unit: &str, expr: String) -> Panel {
    let mut target = Target::range("{{le}}", expr);
    target.layout = Layout::Heatmap;
    Panel::new("heatmap", title, description, unit)
        .custom("scaleDistribution", json!({"type": "linear"}))
        .option("calculate", json!(false))
        .option("cellGap", json!(1))
        .option("cellValues", json!({"unit": "short"}))
        .option("color", json!({"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": false, "scale": "exponential"}))
        .option("exemplars", json!({"color": "rgba(255,0,255,0.7)"}))
        .option("filterValues", json!({"le": 1e-9}))
        .option("legend", json!({"show": true}))
        .option("rowsFrame", json!({"layout": "auto"}))
        .option("tooltip", json!({"mode": "single", "showColorScale": false, "yHistogram": true}))
        .option("yAxis", json!({"axisPlacement": "left", "reverse": false, "unit": unit}))
        .target(target)
}

/// A table.
pub(super) fn table(title: &str, description: &str) -> Panel {
    Panel::new("table", title, description, "short")
        .field("color", json!({"mode": "thresholds"}))
        .thresholds("text", &[])
        .custom("align", json!("auto"))
        .custom("minWidth", json!(60))
        .custom("cellOptions", json!({"type": "auto"}))
        .option("cellHeight", json!("sm"))
        .option("showHeader", json!(true))
}

/// A table column: the letter of its query, its heading, and its format.
pub(super) struct Column {
    pub(super) of: char,
    pub(super) heading: &'static str,
    pub(super) properties: Vec<(&'static str, Value)>,
}

impl Column {
    pub(super) fn new(of: char, heading: &'static str, unit: &'static str) -> Column {
        // As wide as its heading, so that the labels get the remaining width.
        let width = 34 + 7 * heading.chars().count().max(8);
        Column { of, heading, properties: vec![("unit", json!(unit)), ("custom.width", json!(width))] }
    }

    pub(super) fn with(mut self, property: &'static str, value: Value) -> Column {
        self.properties.push((property, value));
        self
    }

    /// Shows NaN, a share or quantile of nothing, as idle.
    pub(super) fn idle(self) -> Column {
        self.with("mappings", no_traffic())
    }

    /// Colours cells by value; the first colour applies below all limits.
    pub(super) fn colored(self, first: &str, others: &[(f64, &str)]) -> Column {
        let mut steps = vec![json!({"color": first, "value": null})];
        steps.extend(others.iter().map(|(value, color)| json!({"color": color, "value": value})));
        self.with("thresholds", json!({"mode": "absolute", "steps": steps}))
            .with("custom.cellOptions", json!({"type": "color-text"}))
    }
}

/// Joins the results of a table's queries by their common labels, one row each, in the order of the columns.
pub(super) fn joined(mut panel: Panel, labels: &[(&str, &str)], columns: Vec<Column>) -> Panel {
    let mut order = serde_json::Map::new();
    let mut names = serde_json::Map::new();
    for (label, heading) in labels {
        order.insert((*label).to_owned(), json!(order.len()));
        names.insert((*label).to_owned(), json!(heading));
    }
    for column in columns {
        let field = if panel.targets.len() == 1 { "Value".to_owned() } else { format!("Value #{}", column.of) };
        order.insert(field.clone(), json!(order.len()));
        names.insert(field, json!(column.heading));
        panel = panel.named(column.heading, &column.properties);
    }
    if panel.targets.len() > 1 {
        panel = panel.transform("merge", json!({}));
    }
    panel.transform("organize", json!({"excludeByName": {"Time": true}, "indexByName": order, "renameByName": names}))
}

/// A state timeline, one line per series.
pub(super) fn states(title: &str, description: &str, states: &[(u32, &str, &str)]) -> Panel {
    Panel::new("state-timeline", title, description, "none")
        .field("color", json!({"mode": "fixed", "fixedColor": IDLE}))
        .field("mappings", state_mappings(states))
        .custom("fillOpacity", json!(80))
        .custom("lineWidth", json!(0))
        .option("alignValue", json!("left"))
        .option("mergeValues", json!(true))
        .option("rowHeight", json!(0.85))
        .option("showValue", json!("auto"))
        .option("legend", json!({"displayMode": "list", "placement": "bottom", "showLegend": true}))
        .option("tooltip", json!({"mode": "single", "sort": "none"}))
        .option("perPage", json!(20))
}

/// Value mappings from numbers to texts and colours.
pub(super) fn state_mappings(states: &[(u32, &str, &str)]) -> Value {
    let mut options = serde_json::Map::new();
    for (at, (value, text, color)) in states.iter().enumerate() {
        options.insert(value.to_string(), json!({"text": text, "color": color, "index": at}));
    }
    json!([{"type": "value", "options": options}])
}

/// A logarithmic scale (base 2) for values that differ by orders of magnitude. It cannot show 0.
pub(super) fn doubling(panel: Panel) -> Panel {
    panel.without("min").custom("scaleDistribution", json!({"type": "log", "log": 2}))
}

/// A scatter plot of two columns of one joined table.
pub(super) fn scatter(title: &str, description: &str, x: &str, y: &str) -> Panel {
    Panel::new("xychart", title, description, "short")
        .field("color", json!({"mode": "palette-classic"}))
        .custom("show", json!("points"))
        .custom("pointSize", json!({"fixed": 5}))
        .custom("pointShape", json!("circle"))
        .custom("fillOpacity", json!(50))
        .custom("axisPlacement", json!("auto"))
        .custom("scaleDistribution", json!({"type": "linear"}))
        .option("mapping", json!("manual"))
        .option(
            "series",
            json!([{
                "frame": {"matcher": {"id": "byIndex", "options": 0}},
                "x": {"matcher": {"id": "byName", "options": x}},
                "y": {"matcher": {"id": "byName", "options": y}},
            }]),
        )
        .option("legend", json!({"displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": []}))
        .option("tooltip", json!({"mode": "single", "sort": "none"}))
        .named(x, &[("custom.axisLabel", json!(x)), ("min", json!(0))])
        .named(
            y,
            // With a logarithmic scale, one fast pod does not hide differences between many slow ones.
            &[("custom.axisLabel", json!(y)), ("custom.scaleDistribution", json!({"type": "log", "log": 2}))],
        )
}

/// Links values named `trace_id` (from exemplars) to their traces.
pub(super) fn to_traces(mut panel: Panel) -> Panel {
    if panel.kind == "heatmap" {
        panel.targets.iter_mut().for_each(|target| target.exemplar = true);
    }
    panel
        .named(
            "trace_id",
            &[("links", json!([{"title": "Trace", "url": explore("${__value.raw}"), "targetBlank": true}]))],
        )
        .link("Traces of this time", &explore(SLOW))
}

/// TraceQL for requests in order of arrival, within the dashboard's time range.
const SLOW: &str = r#"{ kind = server && span.tokometer.outcome != nil }"#;

/// URL of Explore with the selected traces data source.
fn explore(query: &str) -> String {
    let panes = json!({"t": {
        "datasource": "${traces}",
        "queries": [{"refId": "A", "datasource": {"type": "tempo", "uid": "${traces}"}, "queryType": "traceql", "query": query, "limit": 20}],
        "range": {"from": "${__from}", "to": "${__to}"},
    }});
    format!("/explore?schemaVersion=1&panes={}", encode(&panes.to_string()))
}

/// Percent-encodes characters that are not allowed in a URL query; Grafana variables are kept.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        match c {
            '"' => out += "%22",
            ' ' => out += "%20",
            '&' => out += "%26",
            '=' => out += "%3D",
            '\\' => out += "%5C",
            '#' => out += "%23",
            '|' => out += "%7C",
            _ => out.push(c),
        }
    }
    out
}

/// URL of another dashboard, with this one's time range and variables.
pub(super) fn board(uid: &str) -> String {
    format!("/d/{uid}?${{__url_time_range}}&${{__all_variables}}")
}

/// URL of another dashboard, with one variable set from the row or series.
pub(super) fn board_of(uid: &str, variable: &str, value: &str) -> String {
    format!(
        "/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{traces:queryparam}}&${{job:queryparam}}&${{namespace:queryparam}}&var-{variable}=${{{value}}}"
    )
}
