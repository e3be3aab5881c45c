//! A panel and its queries.

use std::fmt::Display;

use serde_json::Value;
use serde_json::json;

/// Layout of a query's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Series,
    Table,
    Heatmap,
}

/// A query.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) expr: String,
    pub(super) legend: String,
    /// Only the value at the end of the time range.
    pub(super) instant: bool,
    layout: Layout,
    exemplar: bool,
    /// Why it may have no result on a Prometheus that scrapes a tokometer with traffic.
    pub(super) may_be_empty: Option<&'static str>,
}

/// Data source of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Prometheus,
    /// Traces, queried with TraceQL.
    Traces,
}

impl Source {
    /// Every part of a dashboard names its data source by a variable.
    pub(super) fn reference(self) -> Value {
        match self {
            Source::Prometheus => json!({"type": "prometheus", "uid": "${datasource}"}),
            Source::Traces => json!({"type": "tempo", "uid": "${traces}"}),
        }
    }
}

/// A panel.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) kind: &'static str,
    pub(super) title: String,
    description: String,
    /// Columns of 24, and rows of about 30 pixels; `None`: the size of its row's panels.
    pub(super) size: Option<(u32, u32)>,
    pub(super) source: Source,
    pub(super) targets: Vec<Target>,
    /// `fieldConfig.defaults`.
    defaults: Value,
    options: Value,
    overrides: Vec<Value>,
    transformations: Vec<Value>,
}

impl Panel {
    /// A panel with these `fieldConfig.defaults` and `options`.
    pub(super) fn new(kind: &'static str, title: &str, unit: &str, mut defaults: Value, options: Value) -> Panel {
        defaults["unit"] = json!(unit);
        Panel {
            kind,
            title: title.to_owned(),
            description: String::new(),
            size: None,
            source: Source::Prometheus,
            targets: Vec::new(),
            defaults,
            options,
            overrides: Vec::new(),
            transformations: Vec::new(),
        }
    }

    /// Sets the description.
    pub(super) fn about(mut self, description: &str) -> Panel {
        self.description = description.to_owned();
        self
    }

    pub(super) fn size(mut self, width: u32, height: u32) -> Panel {
        self.size = Some((width, height));
        self
    }

    /// Queries the time range.
    pub(super) fn range(mut self, legend: &str, expr: impl Display) -> Panel {
        let (expr, legend) = (expr.to_string(), legend.to_owned());
        let layout = if self.kind == "heatmap" { Layout::Heatmap } else { Layout::Series };
        self.targets.push(Target { expr, legend, instant: false, layout, exemplar: false, may_be_empty: None });
        self
    }

    /// Queries the end of the time range.
    pub(super) fn now(self, legend: &str, expr: impl Display) -> Panel {
        self.range(legend, expr).last(|target| target.instant = true)
    }

    /// An instant query formatted as table rows.
    pub(super) fn rows(self, expr: impl Display) -> Panel {
        self.now("", expr).last(|target| target.layout = Layout::Table)
    }

    /// Queries the time range, as rows of a table.
    pub(super) fn range_rows(self, expr: impl Display) -> Panel {
        self.range("", expr).last(|target| target.layout = Layout::Table)
    }

    /// Queries traces, in TraceQL.
    pub(super) fn traces(mut self, query: &str) -> Panel {
        self.source = Source::Traces;
        self.range("", query)
    }

    /// As [`Panel::range`], with a reason why it may have no result.
    pub(super) fn range_or(self, legend: &str, expr: impl Display, reason: &'static str) -> Panel {
        self.range(legend, expr).optional(reason)
    }

    /// As [`Panel::now`], with a reason why it may have no result.
    pub(super) fn now_or(self, legend: &str, expr: impl Display, reason: &'static str) -> Panel {
        self.now(legend, expr).optional(reason)
    }

    /// As [`Panel::rows`], with a reason why it may have no result.
    pub(super) fn rows_or(self, expr: impl Display, reason: &'static str) -> Panel {
        self.rows(expr).optional(reason)
    }

    /// Shows exemplars of the last query.
    pub(super) fn exemplars(self) -> Panel {
        self.last(|target| target.exemplar = true)
    }

    /// Why the last query may have no result.
    pub(super) fn optional(self, reason: &'static str) -> Panel {
        self.last(|target| target.may_be_empty = Some(reason))
    }

    /// Why none of its queries need have a result.
    pub(super) fn may_be_empty(mut self, reason: &'static str) -> Panel {
        self.targets.iter_mut().for_each(|target| target.may_be_empty = Some(reason));
        self
    }

    fn last(mut self, change: impl FnOnce(&mut Target)) -> Panel {
        self.targets.last_mut().map(change);
        self
    }

    /// Sets a key of `fieldConfig.defaults`.
    pub(super) fn field(mut self, key: &str, value: impl Into<Value>) -> Panel {
        self.defaults[key] = value.into();
        self
    }

    /// Sets a key of `fieldConfig.defaults.custom`.
    pub(super) fn custom(mut self, key: &str, value: impl Into<Value>) -> Panel {
        self.defaults["custom"][key] = value.into();
        self
    }

    /// Sets a key of `options`.
    pub(super) fn option(mut self, key: &str, value: impl Into<Value>) -> Panel {
        self.options[key] = value.into();
        self
    }

    pub(super) fn decimals(self, decimals: u32) -> Panel {
        self.field("decimals", decimals)
    }

    /// The largest value of the scale.
    pub(super) fn max(self, value: u64) -> Panel {
        self.field("max", value)
    }

    /// Text without data.
    pub(super) fn no_value(self, text: &str) -> Panel {
        self.field("noValue", text)
    }

    /// Sets colours by thresholds: the first colour applies below the first threshold.
    pub(super) fn thresholds(self, first: &str, others: &[(f64, &str)]) -> Panel {
        self.field("thresholds", thresholds(first, others))
    }

    /// A dashed line, red above.
    pub(super) fn dashed_limit(self, limit: f64) -> Panel {
        self.custom("thresholdsStyle", json!({"mode": "dashed"})).thresholds("transparent", &[(limit, "red")])
    }

    /// A scale that doubles with each step, without 0.
    pub(super) fn doubling(mut self) -> Panel {
        if let Value::Object(defaults) = &mut self.defaults {
            defaults.remove("min");
        }
        self.custom("scaleDistribution", json!({"type": "log", "log": 2}))
    }

    /// Adds a link to every value.
    pub(super) fn link(mut self, title: &str, url: &str) -> Panel {
        let link = json!({"title": title, "url": url, "targetBlank": false});
        match &mut self.defaults["links"] {
            Value::Array(links) => links.push(link),
            none => *none = json!([link]),
        }
        self
    }

    fn overrides(mut self, matcher: Value, properties: &[(&str, Value)]) -> Panel {
        let properties: Vec<Value> = properties.iter().map(|(id, value)| json!({"id": id, "value": value})).collect();
        self.overrides.push(json!({"matcher": matcher, "properties": properties}));
        self
    }

    /// Properties of the fields whose name matches this regular expression.
    pub(super) fn fields_like(self, name: &str, properties: &[(&str, Value)]) -> Panel {
        self.overrides(json!({"id": "byRegexp", "options": format!("/{name}/")}), properties)
    }

    /// Properties of the field with this name.
    pub(super) fn named(self, name: &str, properties: &[(&str, Value)]) -> Panel {
        self.overrides(json!({"id": "byName", "options": name}), properties)
    }

    /// Sets the colour of the series whose name matches.
    pub(super) fn color(self, name: &str, color: &str) -> Panel {
        self.fields_like(name, &[("color", fixed(color))])
    }

    pub(super) fn transform(mut self, id: &str, options: Value) -> Panel {
        self.transformations.push(json!({"id": id, "options": options}));
        self
    }

    /// The panel as Grafana's JSON, at this position.
    pub(super) fn json(&self, id: u32, (x, y): (u32, u32), (w, h): (u32, u32)) -> Value {
        json!({
            "id": id,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": self.source.reference(),
            "gridPos": {"x": x, "y": y, "w": w, "h": h},
            "fieldConfig": {"defaults": self.defaults, "overrides": self.overrides},
            "options": self.options,
            // A recent version, so that Grafana does not apply panel migrations to these options.
            "pluginVersion": "12.0.0",
            "transformations": self.transformations,
            "targets": self.targets.iter().enumerate().map(|(at, target)| self.query(at, target)).collect::<Vec<_>>(),
        })
    }

    fn query(&self, at: usize, target: &Target) -> Value {
        let (ref_id, source) = (ref_id(at), self.source.reference());
        match self.source {
            Source::Prometheus => json!({
                "refId": ref_id,
                "datasource": source,
                "expr": target.expr,
                "legendFormat": target.legend,
                "editorMode": "code",
                "instant": target.instant,
                "range": !target.instant,
                "exemplar": target.exemplar,
                "format": match target.layout {
                    Layout::Series => "time_series",
                    Layout::Table => "table",
                    Layout::Heatmap => "heatmap",
                },
            }),
            Source::Traces => json!({
                "refId": ref_id,
                "datasource": source,
                "query": target.expr,
                "queryType": "traceql",
                "limit": 20,
                "spss": 1,
                "tableType": "traces",
            }),
        }
    }
}

/// Threshold steps; the first colour is that of everything below the second's limit.
pub(super) fn thresholds(first: &str, others: &[(f64, &str)]) -> Value {
    let mut steps = vec![json!({"color": first, "value": null})];
    steps.extend(others.iter().map(|(value, color)| json!({"color": color, "value": value})));
    json!({"mode": "absolute", "steps": steps})
}

/// One colour for all values.
pub(super) fn fixed(color: &str) -> Value {
    json!({"mode": "fixed", "fixedColor": color})
}

/// The reference letter of a panel's query: `A`, `B`, ...
pub(super) fn ref_id(at: usize) -> String {
    char::from(b'A' + u8::try_from(at % 26).unwrap_or(0)).to_string()
}
