//! A panel and its queries.

use serde_json::Map;
use serde_json::Value;
use serde_json::json;

/// Format of a query result.
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
    pub(super) layout: Layout,
    pub(super) exemplar: bool,
    /// Why the result may be empty although a tokometer with traffic is scraped.
    pub(super) may_be_empty: Option<&'static str>,
}

impl Target {
    /// A range query.
    pub(super) fn range(legend: &str, expr: impl Into<String>) -> Target {
        Target {
            expr: expr.into(),
            legend: legend.to_owned(),
            instant: false,
            layout: Layout::Series,
            exemplar: false,
            may_be_empty: None,
        }
    }

    /// An instant query at the end of the time range.
    pub(super) fn now(legend: &str, expr: impl Into<String>) -> Target {
        Target { instant: true, ..Target::range(legend, expr) }
    }

    /// An instant query formatted as table rows.
    pub(super) fn rows(expr: impl Into<String>) -> Target {
        Target { layout: Layout::Table, ..Target::now("", expr) }
    }

    pub(super) fn table(mut self) -> Target {
        self.layout = Layout::Table;
        self
    }

    /// Includes exemplars of the queried histograms.
    pub(super) fn exemplars(mut self) -> Target {
        self.exemplar = true;
        self
    }

    pub(super) fn may_be_empty(mut self, reason: &'static str) -> Target {
        self.may_be_empty = Some(reason);
        self
    }
}

/// Data source of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Prometheus,
    /// Traces, queried with TraceQL.
    Traces,
}

impl Source {
    /// Reference to the data source by its variable.
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
    pub(super) description: String,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) source: Source,
    pub(super) targets: Vec<Target>,
    defaults: Map<String, Value>,
    custom: Map<String, Value>,
    options: Map<String, Value>,
    overrides: Vec<Value>,
    transformations: Vec<Value>,
}

impl Panel {
    pub(super) fn new(kind: &'static str, title: &str, description: &str, unit: &str) -> Panel {
        let mut defaults = Map::new();
        defaults.insert("unit".to_owned(), json!(unit));
        Panel {
            kind,
            title: title.to_owned(),
            description: description.to_owned(),
            width: 12,
            height: 8,
            source: Source::Prometheus,
            targets: Vec::new(),
            defaults,
            custom: Map::new(),
            options: Map::new(),
            overrides: Vec::new(),
            transformations: Vec::new(),
        }
    }

    /// Width in columns (of 24), height in units of about 30 pixels.
    pub(super) fn size(mut self, width: u32, height: u32) -> Panel {
        (self.width, self.height) = (width, height);
        self
    }

    pub(super) fn target(mut self, target: Target) -> Panel {
        self.targets.push(target);
        self
    }

    /// Marks all of its queries as possibly empty, with the reason.
    pub(super) fn may_be_empty(mut self, reason: &'static str) -> Panel {
        for target in &mut self.targets {
            target.may_be_empty = Some(reason);
        }
        self
    }

    /// Sets a key of `fieldConfig.defaults`.
    pub(super) fn field(mut self, key: &str, value: Value) -> Panel {
        self.defaults.insert(key.to_owned(), value);
        self
    }

    /// Removes a default key of `fieldConfig.defaults`.
    pub(super) fn without(mut self, key: &str) -> Panel {
        self.defaults.remove(key);
        self
    }

    /// Sets a key of `fieldConfig.defaults.custom`.
    pub(super) fn custom(mut self, key: &str, value: Value) -> Panel {
        self.custom.insert(key.to_owned(), value);
        self
    }

    /// Sets a key of `options`.
    pub(super) fn option(mut self, key: &str, value: Value) -> Panel {
        self.options.insert(key.to_owned(), value);
        self
    }

    /// Sets colours by thresholds: the first colour applies below the first threshold.
    pub(super) fn thresholds(self, first: &str, others: &[(f64, &str)]) -> Panel {
        let mut steps = vec![json!({"color": first, "value": null})];
        steps.extend(others.iter().map(|(value, color)| json!({"color": color, "value": value})));
        self.field("thresholds", json!({"mode": "absolute", "steps": steps}))
    }

    /// Adds a link to every value.
    pub(super) fn link(mut self, title: &str, url: &str) -> Panel {
        let links = self.defaults.entry("links").or_insert_with(|| json!([]));
        if let Value::Array(links) = links {
            links.push(json!({"title": title, "url": url, "targetBlank": false}));
        }
        self
    }

    /// Overrides properties of the fields whose name matches this regular expression.
    pub(super) fn fields_like(mut self, name: &str, properties: &[(&str, Value)]) -> Panel {
        self.overrides.push(json!({
            "matcher": {"id": "byRegexp", "options": format!("/{name}/")},
            "properties": properties.iter().map(|(id, value)| json!({"id": id, "value": value})).collect::<Vec<_>>(),
        }));
        self
    }

    /// Overrides properties of the field with exactly this name.
    pub(super) fn named(mut self, name: &str, properties: &[(&str, Value)]) -> Panel {
        self.overrides.push(json!({
            "matcher": {"id": "byName", "options": name},
            "properties": properties.iter().map(|(id, value)| json!({"id": id, "value": value})).collect::<Vec<_>>(),
        }));
        self
    }

    /// Sets the colour of the series whose name matches.
    pub(super) fn color(self, name: &str, color: &str) -> Panel {
        self.fields_like(name, &[("color", json!({"mode": "fixed", "fixedColor": color}))])
    }

    pub(super) fn transform(mut self, id: &str, options: Value) -> Panel {
        self.transformations.push(json!({"id": id, "options": options}));
        self
    }

    /// The panel as Grafana's JSON, at this position.
    pub(super) fn json(&self, id: u32, x: u32, y: u32) -> Value {
        let mut defaults = self.defaults.clone();
        if !self.custom.is_empty() {
            defaults.insert("custom".to_owned(), Value::Object(self.custom.clone()));
        }
        json!({
            "id": id,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": self.source.reference(),
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": defaults, "overrides": self.overrides},
            "options": self.options,
            // A recent version, so that Grafana does not apply panel migrations to these options.
            "pluginVersion": "12.0.0",
            "transformations": self.transformations,
            "targets": self.targets.iter().enumerate().map(|(at, target)| self.query(at, target)).collect::<Vec<_>>(),
        })
    }

    fn query(&self, at: usize, target: &Target) -> Value {
        let mut query = json!({"refId": ref_id(at), "datasource": self.source.reference()});
        let more = match self.source {
            Source::Prometheus => json!({
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
                "query": target.expr,
                "queryType": "traceql",
                "limit": 20,
                "spss": 1,
                "tableType": "traces",
            }),
        };
        if let (Value::Object(query), Value::Object(more)) = (&mut query, more) {
            query.extend(more);
        }
        query
    }
}

/// The reference letter of a panel's query: `A`, `B`, ...
pub(super) fn ref_id(at: usize) -> String {
    char::from(b'A' + u8::try_from(at % 26).unwrap_or(0)).to_string()
}
