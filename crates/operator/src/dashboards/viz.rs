//! Kinds of panels with their common options, and options that several dashboards use.

use std::fmt::Display;

use serde_json::Value;
use serde_json::json;

use crate::dashboards::boards;
use crate::dashboards::objectives::Limit;
use crate::dashboards::panel::Panel;
pub(super) use crate::dashboards::panel::fixed;
use crate::dashboards::panel::ref_id;
pub(super) use crate::dashboards::panel::thresholds;
use crate::dashboards::promql::or_idle;
use crate::dashboards::promql::quantile;
use tokometer_telemetry::export::table::Id;

/// Read as "nothing happens": neither good nor bad.
pub(super) const IDLE: &str = "#8e8e9a";
pub(super) const GOOD: &str = "green";
pub(super) const BAD: &str = "red";

/// Colours of burn rates: the limits of the pairs of windows.
pub(super) const BURN_LIMITS: [(f64, &str); 3] = [(1.0, "dark-yellow"), (6.0, "dark-orange"), (14.4, BAD)];

/// The columns that name a pod.
pub(super) const POD_COLUMNS: [(&str, &str); 3] =
    [("namespace", "Namespace"), ("pod", "Pod"), ("instance", "Instance")];

/// Legend of an objective's limit.
const OBJECTIVE: &str = "objective";
/// Legend of the values that violate the limit.
const BROKEN: &str = "breaks the objective";
/// Why a query has no result.
const WHILE_BROKEN: &str = "only while the objective is broken";

/// Tokens per second of one stream.
pub(super) const TOKENS_PER_SECOND: &str = "suffix: tok/s";
/// Tokens per second of many streams: with `k` and `M`.
pub(super) const MANY_TOKENS_PER_SECOND: &str = "si:tok/s";
/// A multiple.
pub(super) const TIMES: &str = "suffix: ×";

fn legend(shown: bool) -> Value {
    json!({"displayMode": "list", "placement": "bottom", "showLegend": shown, "calcs": []})
}

/// A time series graph with lines.
pub(super) fn graph(title: &str, unit: &str) -> Panel {
    let defaults = json!({
        "color": {"mode": "palette-classic"},
        "min": 0,
        "custom": {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1,
            "fillOpacity": 8,
            "gradientMode": "none",
            "showPoints": "never",
            "pointSize": 4,
            "spanNulls": false,
            "stacking": {"mode": "none", "group": "A"},
            "thresholdsStyle": {"mode": "off"},
            "axisPlacement": "auto",
            "scaleDistribution": {"type": "linear"},
        },
    });
    let options = json!({"legend": legend(true), "tooltip": {"mode": "multi", "sort": "desc"}});
    Panel::new("timeseries", title, unit, defaults, options)
}

/// A stacked time series graph.
pub(super) fn stacked(title: &str, unit: &str) -> Panel {
    graph(title, unit).custom("fillOpacity", 40).custom("stacking", json!({"mode": "normal", "group": "A"}))
}

/// One number and its history.
pub(super) fn stat(title: &str, unit: &str) -> Panel {
    let options = json!({
        "reduceOptions": {"calcs": ["last"], "fields": "", "values": false},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value",
        "wideLayout": true,
    });
    Panel::new("stat", title, unit, json!({"color": {"mode": "thresholds"}}), options).thresholds("blue", &[])
}

/// Counts that are red above 0.
pub(super) fn alarm(title: &str) -> Panel {
    stat(title, "none").thresholds(GOOD, &[(1.0, BAD)]).background().no_graph()
}

/// A current value that is red while an objective is violated, and grey without traffic.
///
/// Two queries of which one has a result: Grafana cannot take a threshold from another query in all its versions.
pub(super) fn judged(title: &str, unit: &str, value: impl Display, limit: Limit) -> Panel {
    let value = value.to_string();
    let wrong = limit.broken_by(&value);
    stat(title, unit)
        .idle_is_grey()
        .no_graph()
        .now("good", format!("({})\nunless on ()\n({wrong})", or_idle(value)))
        .optional("while the objective is broken")
        .now("broken", wrong)
        .optional(WHILE_BROKEN)
        .color("^good$", GOOD)
        .color("^broken$", BAD)
}

/// Bars next to each other, one current value each.
pub(super) fn bars(title: &str, unit: &str) -> Panel {
    let options = json!({
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": true,
        "valueMode": "color",
        "namePlacement": "auto",
        "sizing": "auto",
        "minVizHeight": 16,
        "minVizWidth": 8,
    });
    Panel::new("bargauge", title, unit, json!({"color": {"mode": "thresholds"}}), options)
}

/// A distribution over time.
pub(super) fn heatmap(title: &str, unit: &str, expr: impl Display) -> Panel {
    let options = json!({
        "calculate": false,
        "cellGap": 1,
        "cellValues": {"unit": "short"},
        "color": {
            "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
            "reverse": false, "scale": "exponential",
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": true},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": false, "yHistogram": true},
        "yAxis": {"axisPlacement": "left", "reverse": false, "unit": unit},
    });
    let defaults = json!({"custom": {"scaleDistribution": {"type": "linear"}}});
    Panel::new("heatmap", title, unit, defaults, options).range("{{le}}", expr)
}

/// A state timeline, one line per series.
pub(super) fn states(title: &str, states: &[(u32, &str, &str)]) -> Panel {
    let defaults = json!({"color": fixed(IDLE), "custom": {"fillOpacity": 80, "lineWidth": 0}});
    let options = json!({
        "alignValue": "left",
        "mergeValues": true,
        "rowHeight": 0.85,
        "showValue": "auto",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
        "tooltip": {"mode": "single", "sort": "none"},
        "perPage": 20,
    });
    Panel::new("state-timeline", title, "none", defaults, options).states(states)
}

/// A scatter plot of two columns of one joined table.
pub(super) fn scatter(title: &str, x: &str, y: &str) -> Panel {
    let defaults = json!({
        "color": {"mode": "palette-classic"},
        "custom": {
            "show": "points",
            "pointSize": {"fixed": 5},
            "pointShape": "circle",
            "fillOpacity": 50,
            "axisPlacement": "auto",
            "scaleDistribution": {"type": "linear"},
        },
    });
    let column = |name: &str| json!({"matcher": {"id": "byName", "options": name}});
    let options = json!({
        "mapping": "manual",
        "series": [{"frame": {"matcher": {"id": "byIndex", "options": 0}}, "x": column(x), "y": column(y)}],
        "legend": legend(false),
        "tooltip": {"mode": "single", "sort": "none"},
    });
    let log = json!({"type": "log", "log": 2});
    Panel::new("xychart", title, "short", defaults, options)
        .named(x, &[("custom.axisLabel", json!(x)), ("min", json!(0))])
        // One fast pod and many slow ones are all visible.
        .named(y, &[("custom.axisLabel", json!(y)), ("custom.scaleDistribution", log)])
}

/// A table.
pub(super) fn table(title: &str) -> Panel {
    let defaults = json!({
        "color": {"mode": "thresholds"},
        "custom": {"align": "auto", "minWidth": 60, "cellOptions": {"type": "auto"}},
    });
    Panel::new("table", title, "short", defaults, json!({"cellHeight": "sm", "showHeader": true}))
        .thresholds("text", &[])
}

/// A column of a table: its heading, and how its values look.
pub(super) struct Column {
    heading: &'static str,
    properties: Vec<(&'static str, Value)>,
}

impl Column {
    pub(super) fn new(heading: &'static str, unit: &str, decimals: u32) -> Column {
        Column::text(heading, unit).with("decimals", decimals)
    }

    /// Without a number of decimals.
    pub(super) fn text(heading: &'static str, unit: &str) -> Column {
        // As wide as its heading, so that the labels get the remaining width.
        let width = 34 + 7 * heading.chars().count().max(8);
        Column { heading, properties: vec![("unit", json!(unit)), ("custom.width", json!(width))] }
    }

    pub(super) fn with(mut self, property: &'static str, value: impl Into<Value>) -> Column {
        self.properties.push((property, value.into()));
        self
    }

    /// A ratio or quantile: of nothing it is no number.
    pub(super) fn idle(self) -> Column {
        self.with("mappings", no_traffic())
    }

    /// Colours cells by value; the first colour applies below all limits.
    pub(super) fn colored(self, first: &str, others: &[(f64, &str)]) -> Column {
        self.with("thresholds", thresholds(first, others)).with("custom.cellOptions", json!({"type": "color-text"}))
    }
}

/// NaN is a ratio of nothing, or a quantile of nothing: the series exist, and nothing happens.
fn no_traffic() -> Value {
    special("null+nan", "no traffic")
}

/// A grey text for special values.
pub(super) fn special(values: &str, text: &str) -> Value {
    json!([{"type": "special", "options": {"match": values, "result": {"text": text, "color": IDLE, "index": 0}}}])
}

impl Panel {
    /// Adds an objective's limit as a line, and draws values on its wrong side in red.
    pub(super) fn limit(self, value: impl Display, limit: Limit) -> Panel {
        let red = || ("color", fixed(BAD));
        self.range(OBJECTIVE, &limit.value)
            .optional("only with such an objective")
            .range(BROKEN, limit.broken_by(value))
            .optional(WHILE_BROKEN)
            .named(OBJECTIVE, &[red(), ("custom.lineStyle", dashes()), ("custom.fillOpacity", json!(0))])
            .named(
                BROKEN,
                &[
                    red(),
                    ("custom.lineWidth", json!(3)),
                    ("custom.fillOpacity", json!(12)),
                    ("custom.showPoints", json!("always")),
                ],
            )
    }

    /// Queries quantiles of a histogram: `p50`, `p99`.
    pub(super) fn quantiles(self, quantiles: &[f64], id: Id) -> Panel {
        quantiles.iter().fold(self, |panel, q| panel.range(&format!("p{:.0}", q * 100.0), quantile(*q, id)))
    }

    /// A coloured background.
    pub(super) fn background(self) -> Panel {
        self.option("colorMode", "background")
    }

    /// A number without its history.
    pub(super) fn no_graph(self) -> Panel {
        self.option("graphMode", "none")
    }

    /// Numbers with their names.
    pub(super) fn with_names(self) -> Panel {
        self.option("textMode", "value_and_name")
    }

    pub(super) fn idle_is_grey(self) -> Panel {
        self.field("mappings", no_traffic())
    }

    /// For a small graph of many processes: the tooltip names them.
    pub(super) fn without_legend(self) -> Panel {
        self.option("legend", legend(false))
    }

    /// Value mappings from numbers to texts and colours.
    pub(super) fn states(self, states: &[(u32, &str, &str)]) -> Panel {
        let mut options = json!({});
        for (at, (value, text, color)) in states.iter().enumerate() {
            options[value.to_string()] = json!({"text": text, "color": color, "index": at});
        }
        self.field("mappings", json!([{"type": "value", "options": options}]))
    }

    /// Joins the results of a table's queries by the labels that they share, one row each, in the order of the columns:
    /// one for each query.
    pub(super) fn joined(mut self, labels: &[(&str, &str)], columns: Vec<Column>) -> Panel {
        let queries = self.targets.len();
        let (mut order, mut names) = (json!({}), json!({}));
        for (at, (label, heading)) in labels.iter().enumerate() {
            order[*label] = json!(at);
            names[*label] = json!(heading);
        }
        for (at, column) in columns.into_iter().enumerate() {
            let field = if queries == 1 { "Value".to_owned() } else { format!("Value #{}", ref_id(at)) };
            order[&field] = json!(labels.len() + at);
            names[&field] = json!(column.heading);
            self = self.named(column.heading, &column.properties);
        }
        if queries > 1 {
            self = self.transform("merge", json!({}));
        }
        self.organized(order, names)
    }

    /// Orders and names the columns of a table.
    pub(super) fn organized(self, order: Value, names: Value) -> Panel {
        let options = json!({"excludeByName": {"Time": true}, "indexByName": order, "renameByName": names});
        self.transform("organize", options)
    }

    /// Sorts a table by a column.
    pub(super) fn sorted(self, column: &str, descending: bool) -> Panel {
        self.transform("sortBy", json!({"sort": [{"field": column, "desc": descending}]}))
    }

    /// A table's column `Instance` leads to its pod.
    pub(super) fn instances_lead_to_pods(self) -> Panel {
        let url = board_of(boards::POD, "instance", "__value.raw:percentencode");
        self.named("Instance", &[("links", json!([{"title": "This pod", "url": url}]))])
    }

    /// Each series leads to its pod.
    pub(super) fn series_lead_to_pods(self) -> Panel {
        self.link("This pod", &board_of(boards::POD, "instance", "__field.labels.instance"))
    }

    /// Leads to another dashboard, with the time range and every variable of this one.
    pub(super) fn leads_to(self, title: &str, uid: &str) -> Panel {
        self.link(title, &format!("/d/{uid}?${{__url_time_range}}&${{__all_variables}}"))
    }

    /// A logarithmic scale of burn rates: the fastest alert fires at fourteen times the allowed rate. 0 is drawn at the
    /// lower edge.
    pub(super) fn burn_scale(self, limits: &[(f64, &str)]) -> Panel {
        self.custom("scaleDistribution", json!({"type": "log", "log": 2}))
            .custom("thresholdsStyle", json!({"mode": "dashed"}))
            .custom("fillOpacity", 0)
            .custom("lineWidth", 2)
            .field("min", 0.125)
            .decimals(1)
            .thresholds("transparent", limits)
    }

    /// Colours of the phases of requests in flight.
    pub(super) fn phase_colors(self) -> Panel {
        self.color("^waiting_first_token$", "orange").color("^streaming$", GOOD)
    }

    /// Colours of outcomes: warm for server failures, grey for client behaviour.
    pub(super) fn outcome_colors(self) -> Panel {
        const COLORS: [(&str, &str); 14] = [
            ("^ok", GOOD),
            ("^client_abort_before", IDLE),
            ("^client_abort_mid", "#c7c7d1"),
            ("^drained", "#b0c4de"),
            ("^unobserved", "#8a8a99"),
            ("^http_4xx", "light-yellow"),
            ("^rejected_busy", "orange"),
            ("^http_5xx", BAD),
            ("^upstream_refused", "dark-red"),
            ("^upstream_reset", "semi-dark-red"),
            ("^upstream_timeout", "light-red"),
            ("^truncated", "purple"),
            ("^error_in_stream", "dark-orange"),
            ("^no_output", "light-purple"),
        ];
        COLORS.iter().fold(self, |panel, (name, color)| panel.color(name, color))
    }

    /// Links to traces: a value named `trace_id` (an exemplar's) leads to its trace.
    pub(super) fn trace_links(mut self) -> Panel {
        if self.kind == "heatmap" {
            self = self.exemplars();
        }
        let trace = json!([{"title": "Trace", "url": explore("${__value.raw}"), "targetBlank": true}]);
        self.named("trace_id", &[("links", trace)]).link("Traces of this time", &explore(SERVED))
    }
}

/// A dashed line.
pub(super) fn dashes() -> Value {
    json!({"fill": "dash", "dash": [8, 6]})
}

/// Requests in the order of their arrival; the time range is the dashboard's.
const SERVED: &str = r#"{ kind = server && span.tokometer.outcome != nil }"#;

/// Explore on the selected traces data source.
fn explore(query: &str) -> String {
    let panes = json!({"t": {
        "datasource": "${traces}",
        "queries": [{"refId": "A", "datasource": {"type": "tempo", "uid": "${traces}"}, "queryType": "traceql", "query": query, "limit": 20}],
        "range": {"from": "${__from}", "to": "${__to}"},
    }});
    format!("/explore?schemaVersion=1&panes={}", encode(&panes.to_string()))
}

/// Percent-encodes what a URL's query cannot contain; Grafana's variables are left unchanged.
fn encode(text: &str) -> String {
    let special = [('"', "%22"), (' ', "%20"), ('&', "%26"), ('=', "%3D"), ('\\', "%5C"), ('#', "%23"), ('|', "%7C")];
    special.into_iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The address of another dashboard, with one variable taken from the row or series.
pub(super) fn board_of(uid: &str, variable: &str, value: &str) -> String {
    format!(
        "/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}&${{traces:queryparam}}&${{job:queryparam}}&${{namespace:queryparam}}&var-{variable}=${{{value}}}"
    )
}
