//! Panels: Grafana's JSON from a panel's definition and its styles.

use serde_json::{Value, json};

use crate::alerting::{SLOW_SHARE, burn_factor, runbook_url};
use crate::dashboards::expression::expand;
use crate::dashboards::schema::{Column, Link, Named, Override, Panel, Query, Shared, Style, Thresholds};
use crate::promql::{Selector, read};
use tokometer_telemetry::slo::{ReadingSpeed, RuleSettings};

/// Minimum width, in columns, of a graph with the legend at the right.
const WIDE: u32 = 12;

/// The data source of everything except traces, as a variable.
pub(super) fn prometheus() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Input for generating panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) shared: &'a Shared,
    pub(super) rules: &'a RuleSettings,
    pub(super) reading: ReadingSpeed,
    /// Expressions of the settings and of the dashboard.
    pub(super) settings: &'a Named<String>,
    pub(super) expressions: &'a Named<String>,
}

/// A panel without its position.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) json: Value,
    /// Grafana's panel type, and Grafana's title of that type.
    pub(super) kind: (String, String),
    /// The Prometheus queries, with expanded expressions.
    pub(super) queries: Vec<Query>,
    pub(super) instant: bool,
}

impl Context<'_> {
    /// A panel of this width, in columns.
    ///
    /// # Errors
    /// The error in the definition.
    pub(super) fn panel(&self, panel: &Panel, width: u32) -> Result<Made, String> {
        let mut style = Style::default();
        for name in std::iter::once(&panel.kind).chain(&panel.styles) {
            self.add(name, &mut style)?;
        }
        let kind = style.panel.ok_or_else(|| format!("`{}` is a style, not a kind of panel", panel.kind))?;
        let limit = panel.limit.as_ref().map(|limit| {
            let of = self.shared.limits.get(&limit.objective);
            of.ok_or_else(|| format!("no limit is called `{}`", limit.objective)).map(|of| {
                let definitions =
                    [("value", &limit.value), ("limit", &of.value), ("violated", &of.violated)].into_iter();
                definitions.map(|(name, text)| (name.to_owned(), text.clone())).collect::<Named<String>>()
            })
        });
        let limit = limit.transpose()?.unwrap_or_default();
        let mut queries = panel.queries.clone();
        queries.extend(panel.columns.iter().map(|column| Query {
            legend: String::new(),
            expr: column.expr.clone(),
            exemplars: false,
            may_be_empty: column.may_be_empty.clone(),
        }));
        queries.extend(style.queries);
        for query in &mut queries {
            query.expr = self.expanded(&query.expr, &limit)?;
            query.legend = self.text(&query.legend);
            query.may_be_empty = panel.may_be_empty.clone().or(query.may_be_empty.take());
            query.exemplars |= kind == "heatmap" && panel.styles.iter().any(|style| style == "traces");
            if query.exemplars {
                query.expr = exemplars_of_all(&query.expr);
            }
        }

        let mut defaults = style.defaults;
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                defaults[key] = value;
            }
        };
        set("unit", Some(json!(panel.unit)));
        set("decimals", panel.decimals.map(Value::from));
        set("min", panel.min.clone());
        set("noValue", panel.no_value.clone().map(Value::from));
        set("max", panel.max.as_ref().map(|max| self.number(max)).transpose()?);
        let thresholds = panel.thresholds.as_ref().or(style.thresholds.as_ref());
        set("thresholds", thresholds.map(|of| self.thresholds(of)).transpose()?);
        let links = self.links(style.links.iter().chain(&panel.links));
        set("links", (!links.is_empty()).then(|| json!(links)));
        merge(&mut defaults, &panel.defaults);
        let mut options = style.options;
        if kind == "timeseries" && width >= WIDE {
            options["legend"]["placement"] = json!("right");
        }
        merge(&mut options, &panel.options);
        if kind == "heatmap" {
            options["yAxis"]["unit"] = json!(panel.unit);
        }

        let mut overrides = if kind == "timeseries" { self.colors(&queries) } else { Vec::new() };
        for column in &panel.columns {
            overrides.push(self.column(column)?);
        }
        for of in style.overrides.iter().chain(&panel.overrides) {
            overrides.push(self.fields(of)?);
        }
        let mut transformations = self.joined(panel);
        transformations.extend(panel.transformations.iter().cloned());
        let (format, instant) = (style.format.as_deref().unwrap_or("time_series"), style.instant.unwrap_or(false));
        let targets = match &panel.traceql {
            Some(query) => vec![traces_target(query)],
            None => queries.iter().enumerate().map(|(at, query)| target(at, query, format, instant)).collect(),
        };
        let json = json!({
            "type": kind,
            "title": panel.title,
            "description": self.text(&panel.description),
            "datasource": if panel.traceql.is_some() { tempo() } else { prometheus() },
            "fieldConfig": {"defaults": defaults, "overrides": overrides},
            "options": options,
            // A recent version, so that Grafana does not apply panel migrations to these options.
            "pluginVersion": "12.0.0",
            "transformations": transformations,
            "targets": targets,
        });
        let title = style.title.unwrap_or_default();
        Ok(Made { json, kind: (kind, title), queries, instant })
    }

    /// Adds a style to `to`. The base of the style is added first, so that the style overrides it.
    fn add(&self, name: &str, to: &mut Style) -> Result<(), String> {
        let style = self.shared.styles.get(name).ok_or_else(|| format!("no style is called `{name}`"))?;
        if let Some(base) = &style.base {
            self.add(base, to)?;
        }
        let Style { panel, title, instant, format, thresholds, .. } = style;
        to.panel = panel.clone().or(to.panel.take());
        to.title = title.clone().or(to.title.take());
        to.instant = instant.or(to.instant);
        to.format = format.clone().or(to.format.take());
        to.thresholds = thresholds.clone().or(to.thresholds.take());
        merge(&mut to.defaults, &style.defaults);
        merge(&mut to.options, &style.options);
        to.overrides.extend(style.overrides.iter().cloned());
        to.links.extend(style.links.iter().cloned());
        to.queries.extend(style.queries.iter().cloned());
        Ok(())
    }

    fn expanded(&self, expr: &str, limit: &Named<String>) -> Result<String, String> {
        expand(expr, &[limit, self.expressions, &self.shared.expressions, self.settings])
    }

    /// Replaces placeholders in a legend: the labels of objectives and the decode rates of `slo.reading`. Other braces
    /// are Grafana's.
    fn text(&self, text: &str) -> String {
        let ours = self.settings.iter().filter(|(name, _)| *name == "group_legend" || name.starts_with("reading_"));
        ours.fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    fn links<'a>(&self, links: impl Iterator<Item = &'a Link>) -> Vec<Value> {
        links.filter_map(|one| link(one, self.rules)).collect()
    }

    /// Overrides with the shared colors, for the series of these queries.
    fn colors(&self, queries: &[Query]) -> Vec<Value> {
        let mut found = Vec::new();
        for (labels, colors) in &self.shared.colors {
            let every: Vec<String> = labels.split('|').map(|label| format!("{{{{{label}}}}}")).collect();
            let named =
                |name: &String| queries.iter().any(|query| query.legend == *name || every.contains(&query.legend));
            for (name, color) in colors.iter().filter(|(name, _)| named(name)) {
                let color = ("color".to_owned(), json!({"mode": "fixed", "fixedColor": color}));
                found.push(overriding("byName", name, [color].into()));
            }
        }
        found
    }

    fn number(&self, value: &Value) -> Result<Value, String> {
        let Value::String(expr) = value else { return Ok(value.clone()) };
        let text = self.expanded(expr, &Named::new())?;
        text.parse::<serde_json::Number>().map(Value::from).map_err(|_| format!("`{text}` is not a number"))
    }

    /// Threshold steps, lowest first.
    fn thresholds(&self, of: &Thresholds) -> Result<Value, String> {
        let mut steps: Vec<(Option<f64>, &String)> = Vec::new();
        for (bound, color) in of {
            let value = match bound.strip_prefix("burn_") {
                _ if bound == "base" => None,
                Some(window) => burn_factor(window, self.rules.period_days),
                None => match bound.as_str() {
                    "reading_slow" => Some(self.reading.slow),
                    "reading_comfortable" => Some(self.reading.comfortable),
                    "reading_fast" => Some(self.reading.fast),
                    "slow_share" => Some(SLOW_SHARE),
                    _ => bound.parse().ok(),
                },
            };
            if value.is_none() && bound != "base" {
                return Err(format!(
                    "`{bound}` is not a threshold: a number, `base`, burn_ and a window, or reading_ and a speed"
                ));
            }
            steps.push((value, color));
        }
        steps.sort_by(|one, other| one.0.partial_cmp(&other.0).unwrap_or(std::cmp::Ordering::Equal));
        let steps: Vec<Value> =
            steps.into_iter().map(|(value, color)| json!({"color": color, "value": value})).collect();
        Ok(json!({"mode": "absolute", "steps": steps}))
    }

    fn fields(&self, of: &Override) -> Result<Value, String> {
        let mut properties = of.properties.clone();
        if let Some(color) = &of.color {
            properties.insert("color".to_owned(), json!({"mode": "fixed", "fixedColor": color}));
        }
        if let Some(thresholds) = &of.thresholds {
            properties.insert("thresholds".to_owned(), self.thresholds(thresholds)?);
        }
        if !of.links.is_empty() {
            properties.insert("links".to_owned(), json!(self.links(of.links.iter())));
        }
        match (&of.field, &of.series) {
            (Some(name), None) => Ok(overriding("byName", name, properties)),
            (None, Some(names)) => Ok(overriding("byRegexp", &format!("/{names}/"), properties)),
            _ => Err("an override has either `series` or `field`".to_owned()),
        }
    }

    fn column(&self, column: &Column) -> Result<Value, String> {
        let mut properties = column.properties.clone();
        let mut style = Style::default();
        for name in &column.styles {
            self.add(name, &mut style)?;
        }
        properties.extend(style.defaults.as_object().cloned().unwrap_or_default());
        // A column is as wide as its heading, so that the labels get the remaining width.
        let width = column.width.unwrap_or(34 + 7 * column.title.chars().count().max(8));
        properties.extend([("unit".to_owned(), json!(column.unit)), ("custom.width".to_owned(), json!(width))]);
        properties.extend(column.decimals.map(|decimals| ("decimals".to_owned(), json!(decimals))));
        if let Some(thresholds) = &column.thresholds {
            properties.insert("thresholds".to_owned(), self.thresholds(thresholds)?);
            properties.insert("custom.cellOptions".to_owned(), json!({"type": "color-text"}));
        }
        Ok(overriding("byName", &column.title, properties))
    }

    /// The transformations of a table: joins the results of the queries by their labels, orders and names the columns,
    /// and sorts the rows.
    fn joined(&self, panel: &Panel) -> Vec<Value> {
        let mut names: Vec<(String, String)> = Vec::new();
        for label in &panel.labels {
            let group_by =
                if label == "group_by" { self.rules.group_by.as_slice() } else { std::slice::from_ref(label) };
            names.extend(group_by.iter().map(|label| (label.clone(), self.heading(label))));
        }
        let many = panel.columns.len() > 1;
        names.extend(panel.columns.iter().enumerate().map(|(at, column)| {
            (if many { format!("Value #{}", ref_id(at)) } else { "Value".to_owned() }, column.title.clone())
        }));
        if panel.columns.is_empty() {
            return Vec::new();
        }
        let order: Value = names.iter().enumerate().map(|(at, (field, _))| (field.clone(), json!(at))).collect();
        let names: Value = names.into_iter().map(|(field, heading)| (field, json!(heading))).collect();
        let organize = json!({"excludeByName": {"Time": true}, "indexByName": order, "renameByName": names});
        let merge = many.then(|| json!({"id": "merge", "options": {}}));
        let sort = panel.sort.as_ref().map(|sort| {
            let column = sort.strip_prefix('-');
            let sort = json!([{"field": column.unwrap_or(sort), "desc": column.is_some()}]);
            json!({"id": "sortBy", "options": {"sort": sort}})
        });
        merge.into_iter().chain([json!({"id": "organize", "options": organize})]).chain(sort).collect()
    }

    fn heading(&self, label: &str) -> String {
        self.shared.headings.get(label).cloned().unwrap_or_else(|| {
            let (first, rest) = label.split_at(label.chars().next().map_or(0, char::len_utf8));
            first.to_uppercase() + rest
        })
    }
}

/// Merges like RFC 7396: maps are merged by key, other values are replaced, and null removes a key.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Object(_) => merge(&mut target[key], value),
            Value::Null => drop(target.as_object_mut().and_then(|target| target.remove(key))),
            _ => target[key] = value.clone(),
        }
    }
}

fn overriding(matcher: &str, name: &str, properties: Named<Value>) -> Value {
    let properties: Vec<Value> = properties.into_iter().map(|(id, value)| json!({"id": id, "value": value})).collect();
    json!({"matcher": {"id": matcher, "options": name}, "properties": properties})
}

fn target(at: usize, query: &Query, format: &str, instant: bool) -> Value {
    json!({
        "refId": ref_id(at),
        "datasource": prometheus(),
        "expr": query.expr,
        "legendFormat": query.legend,
        "editorMode": "code",
        "instant": instant,
        "range": !instant,
        "exemplar": query.exemplars,
        "format": format,
    })
}

/// Adds the histograms of all processes at the time 0: Grafana requests the exemplars of every series in an expression,
/// but Prometheus reads no sample there.
fn exemplars_of_all(expr: &str) -> String {
    let (selectors, _) = read(expr).expect("a generated expression, which the tests read");
    let raw = selectors.iter().filter(|selector| selector.inside.last().is_some_and(|name| name == "rate"));
    let all = raw.map(|Selector { name, matchers, .. }| {
        let matchers = matchers.iter().filter(|(_, operator, value)| operator != "!~" || !value.contains('$'));
        let matchers: Vec<String> =
            matchers.map(|(label, operator, value)| format!("{label}{operator}\"{value}\"")).collect();
        format!("\nor on ()\nsum (rate({name}{{{}}}[$__rate_interval] @ 0))", matchers.join(","))
    });
    format!("{expr}{}", all.collect::<String>())
}

fn tempo() -> Value {
    json!({"type": "tempo", "uid": "${traces}"})
}

fn traces_target(query: &str) -> Value {
    json!({
        "refId": ref_id(0),
        "datasource": tempo(),
        "query": query,
        "queryType": "traceql",
        "limit": 20,
        "spss": 1,
        "tableType": "traces",
    })
}

/// The reference letter of a panel's query: `A`, `B`, ...
pub(super) fn ref_id(at: usize) -> String {
    char::from(b'A' + u8::try_from(at % 26).unwrap_or(0)).to_string()
}

fn link(link: &Link, rules: &RuleSettings) -> Option<Value> {
    let url = match (&link.dashboard, &link.runbook) {
        (Some(uid), _) if link.set.is_empty() => format!("/d/{uid}?${{__url_time_range}}&${{__all_variables}}"),
        (Some(uid), _) => {
            let kept = ["datasource", "traces", "job", "namespace"].map(|name| format!("&${{{name}:queryparam}}"));
            let set: String = link.set.iter().map(|(name, value)| format!("&var-{name}=${{{value}}}")).collect();
            format!("/d/{uid}?${{__url_time_range}}{}{set}", kept.concat())
        }
        (None, Some(alert)) => runbook_url(rules, &format!("${{{alert}}}"))?,
        (None, None) => explore(&link.traces),
    };
    Some(json!({"title": link.title, "url": url, "targetBlank": link.new_tab}))
}

/// The URL of Grafana Explore with this query, on the selected traces data source and in the dashboard's time range.
fn explore(query: &str) -> String {
    let query = json!({"refId": "A", "datasource": tempo(), "queryType": "traceql", "query": query, "limit": 20});
    let panes = json!({"t": {
        "datasource": "${traces}",
        "queries": [query],
        "range": {"from": "${__from}", "to": "${__to}"},
    }});
    format!("/explore?schemaVersion=1&panes={}", encode(&panes.to_string()))
}

/// Percent-encodes characters that a URL's query cannot contain. Grafana's variables are not changed.
fn encode(text: &str) -> String {
    let special = [('"', "%22"), (' ', "%20"), ('&', "%26"), ('=', "%3D"), ('\\', "%5C"), ('#', "%23"), ('|', "%7C")];
    special.into_iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
