//! The rules for dashboards: those of Grafana's dashboard-linter (grafana/dashboard-linter, docs/rules), and additional
//! ones. Each rule returns its findings.

use std::collections::BTreeSet;

use serde_json::Value;
use tokometer_metrics::table::{Kind, TABLE};
use tokometer_operator::promql::{Selector, read};

/// A rule: its name, and a function that returns a dashboard's violations.
pub(crate) type Rule = (&'static str, fn(&Value) -> Vec<String>);

pub(crate) const RULES: [Rule; 23] = [
    ("template-datasource", template_datasource),
    ("template-job", |dashboard| template_choice(dashboard, "job")),
    ("template-instance", |dashboard| template_choice(dashboard, "instance")),
    ("template-label-promql", template_label_promql),
    ("template-on-time-change-reload", template_reload),
    ("panel-datasource", panel_datasource),
    ("panel-title-description", panel_title_description),
    ("panel-units", panel_units),
    ("panel-no-targets", panel_no_targets),
    ("target-promql", target_promql),
    ("target-rate-interval", target_rate_interval),
    ("target-job", |dashboard| target_matcher(dashboard, "job")),
    ("target-instance", |dashboard| target_matcher(dashboard, "instance")),
    ("target-counter-agg", target_counter_agg),
    ("target-both-histograms", target_both_histograms),
    ("target-fleet-buckets", target_fleet_buckets),
    ("uneditable", uneditable),
    ("frame", frame),
    ("annotations", annotations),
    ("unique-ids", unique_ids),
    ("grid", grid),
    ("links", links),
    ("size", size),
];

/// Exceptions: rule, part of its finding, and the reason.
const EXCEPTIONS: [(&str, &str, &str); 5] = [
    ("target-rate-interval", "tokometer_slo_events_total over 1h", "a burn rate is defined over its window"),
    (
        "target-rate-interval",
        "tokens_per_second_bucket over 5m",
        "the capacity is computed from samples of five minutes",
    ),
    ("target-rate-interval", "tokens_per_second over 5m", "the same, of native histograms"),
    ("target-instance", "Decode rate relative to other pods", "the peers are all the others"),
    ("target-instance", "all pods", "the peers are all the others"),
];

pub(crate) fn broken(dashboard: &Value) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for (name, rule) in RULES {
        let excepted =
            |reported: &String| EXCEPTIONS.iter().any(|(of, part, _)| *of == name && reported.contains(part));
        found.extend(
            rule(dashboard).into_iter().filter(|reported| !excepted(reported)).map(|reported| (name, reported)),
        );
    }
    found
}

fn list<'a>(value: &'a Value) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.as_array().into_iter().flatten()
}

/// Every panel that is not a heading, including those in collapsed rows.
pub(crate) fn panels(dashboard: &Value) -> Vec<&Value> {
    list(&dashboard["panels"])
        .flat_map(|panel| std::iter::once(panel).chain(list(&panel["panels"])))
        .filter(|panel| panel["type"] != "row")
        .collect()
}

fn title(panel: &Value) -> &str {
    panel["title"].as_str().unwrap_or("(a panel without a title)")
}

fn variable<'a>(dashboard: &'a Value, name: &str) -> Option<&'a Value> {
    list(&dashboard["templating"]["list"]).find(|variable| variable["name"] == name)
}

/// Each panel's Prometheus queries, with their location.
fn targets(dashboard: &Value) -> Vec<(String, &str)> {
    let mut all = Vec::new();
    for panel in panels(dashboard) {
        for target in list(&panel["targets"]) {
            let place = format!("{} {} {}", title(panel), target["refId"], target["legendFormat"]);
            all.extend(target["expr"].as_str().map(|expr| (place, expr)));
        }
    }
    all
}

/// Selectors of every query; expressions that cannot be parsed are reported by `target-promql`.
pub(crate) fn selectors(dashboard: &Value) -> Vec<(String, Selector)> {
    let read = |(place, expr): (String, &str)| {
        let found = read(expr).map(|(selectors, _)| selectors).unwrap_or_default();
        found.into_iter().map(move |selector| (place.clone(), selector))
    };
    targets(dashboard).into_iter().flat_map(read).collect()
}

/// True for a series from tokometer's own metrics page, which has the labels of a scrape.
fn is_scraped(selector: &Selector) -> bool {
    ["tokometer_", "gen_ai_", "process_"].iter().any(|begin| selector.name.starts_with(begin)) || selector.name == "up"
}

fn template_datasource(dashboard: &Value) -> Vec<String> {
    match variable(dashboard, "datasource") {
        Some(found)
            if found["type"] == "datasource" && found["query"] == "prometheus" && found["label"] == "Data Source" =>
        {
            Vec::new()
        }
        _ => vec!["no variable `datasource` for a Prometheus, with the label `Data Source`".to_owned()],
    }
}

fn template_choice(dashboard: &Value, name: &str) -> Vec<String> {
    let Some(found) = variable(dashboard, name) else { return vec![format!("no variable `{name}`")] };
    // The dashboard of one pod has a single-value `instance` variable.
    let many = dashboard["uid"] != "tokometer-pod" || name != "instance";
    let wanted = found["type"] == "query"
        && found["multi"] == many
        && found["includeAll"] == many
        && (found["allValue"] == ".+") == many
        && found["label"] == name
        && found["datasource"]["uid"] == "${datasource}";
    if wanted {
        Vec::new()
    } else {
        vec![format!("`{name}` must query ${{datasource}}, be multi, and have `.+` for all")]
    }
}

fn template_label_promql(dashboard: &Value) -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for variable in list(&dashboard["templating"]["list"]) {
        let name = variable["name"].as_str().unwrap_or_default();
        if let Some(query) = variable["query"]["query"].as_str() {
            let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            match inside.and_then(|inside| inside.rsplit_once(", ")).map(|(of, _)| read(of)) {
                Some(Ok((selectors, _))) if selectors.len() == 1 => {
                    for (label, _, value) in selectors.iter().flat_map(|selector| &selector.matchers) {
                        let of = value.trim_start_matches('$');
                        if !known.contains(of) {
                            found.push(format!("{name} queries {label} by ${of}, which is not defined before it"));
                        }
                    }
                }
                _ => found.push(format!("{name}: {query} is not label_values(selector, label)")),
            }
        }
        known.insert(name);
    }
    found
}

fn template_reload(dashboard: &Value) -> Vec<String> {
    let queries = list(&dashboard["templating"]["list"]).filter(|variable| variable["type"] == "query");
    queries
        .filter(|variable| variable["refresh"] != 2)
        .map(|variable| format!("{} is not refreshed when the time range changes", variable["name"]))
        .collect()
}

fn panel_datasource(dashboard: &Value) -> Vec<String> {
    let by_variable = |of: &Value| ["${datasource}", "${traces}"].iter().any(|uid| of["datasource"]["uid"] == *uid);
    panels(dashboard)
        .into_iter()
        .filter(|panel| !by_variable(panel) || !list(&panel["targets"]).all(by_variable))
        .map(|panel| format!("{} has a fixed data source", title(panel)))
        .collect()
}

fn panel_title_description(dashboard: &Value) -> Vec<String> {
    let has = |panel: &Value, key: &str| panel[key].as_str().is_some_and(|text| !text.trim().is_empty());
    let bare = panels(dashboard).into_iter().filter(|panel| !has(panel, "title") || !has(panel, "description"));
    let mut found: Vec<String> = bare.map(|panel| format!("{} has no title or no description", title(panel))).collect();
    if !has(dashboard, "title") || !has(dashboard, "description") {
        found.push("the dashboard has no title or no description".to_owned());
    }
    found
}

/// Grafana's units that the dashboards use, and custom ones (grafana/grafana, packages/grafana-data/src/valueFormats).
fn panel_units(dashboard: &Value) -> Vec<String> {
    const KNOWN: [&str; 10] =
        ["s", "short", "none", "locale", "percent", "percentunit", "bytes", "reqps", "ops", "Bps"];
    let known = |unit: &str| KNOWN.contains(&unit) || unit.starts_with("suffix:") || unit.starts_with("si:");
    panels(dashboard)
        .into_iter()
        .filter(|panel| !panel["fieldConfig"]["defaults"]["unit"].as_str().is_some_and(known))
        .map(|panel| format!("{} has no valid Grafana unit", title(panel)))
        .collect()
}

fn panel_no_targets(dashboard: &Value) -> Vec<String> {
    let idle = panels(dashboard).into_iter().filter(|panel| list(&panel["targets"]).next().is_none());
    idle.map(|panel| format!("{} has no query", title(panel))).collect()
}

fn target_promql(dashboard: &Value) -> Vec<String> {
    let unread = |(place, expr): (String, &str)| match read(expr) {
        Err(why) => Some(format!("{place}: {why}")),
        Ok((selectors, _)) if selectors.is_empty() => Some(format!("{place}: queries no series")),
        Ok(_) => None,
    };
    targets(dashboard).into_iter().filter_map(unread).collect()
}

fn target_rate_interval(dashboard: &Value) -> Vec<String> {
    let rates = selectors(dashboard).into_iter().filter(|(_, selector)| {
        selector.inside.last().is_some_and(|name| ["rate", "irate", "increase"].contains(&name.as_str()))
    });
    rates
        .filter(|(_, selector)| {
            !["$__rate_interval", "$__range"].iter().any(|window| selector.window.as_deref() == Some(window))
        })
        .map(|(place, selector)| {
            format!("{place}: {} over {}, not $__rate_interval", selector.name, selector.window.unwrap_or_default())
        })
        .collect()
}

fn target_matcher(dashboard: &Value, label: &str) -> Vec<String> {
    selectors(dashboard)
        .into_iter()
        .filter(|(_, selector)| is_scraped(selector) && !selector.has(label, &format!("${label}")))
        .map(|(place, selector)| format!("{place}: {} is not limited to ${label}", selector.name))
        .collect()
}

fn target_counter_agg(dashboard: &Value) -> Vec<String> {
    const AGGREGATIONS: [&str; 8] = ["sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile"];
    let is_counter = |selector: &Selector| selector.name.ends_with("_total") || selector.name.ends_with("_bucket");
    let raw = |selector: &Selector| {
        let is_rate = |name: &String| ["rate", "increase", "changes"].contains(&name.as_str());
        let gathered = |name: &String| AGGREGATIONS.contains(&name.as_str());
        !(selector.inside.iter().any(is_rate) && selector.inside.iter().any(gathered))
    };
    // This counter may be raw without a range: it is used with `and on`, where only its existence matters.
    let needs_rate =
        |selector: &Selector| selector.name != "tokometer_slo_good_output_tokens_total" || selector.window.is_some();
    selectors(dashboard)
        .into_iter()
        .filter(|(_, selector)| is_counter(selector) && needs_rate(selector) && raw(selector))
        .map(|(place, selector)| format!("{place}: the counter {} is shown raw, or not summed", selector.name))
        .collect()
}

/// A quantile of classic buckets needs the native form too, or the panel is empty where Prometheus stores no classic
/// buckets.
fn target_both_histograms(dashboard: &Value) -> Vec<String> {
    let all = selectors(dashboard);
    all.iter()
        .filter_map(|(place, selector)| {
            let native = selector.name.strip_suffix("_bucket")?;
            let is_native = |(at, other): &(String, Selector)| at == place && other.name == native;
            (!all.iter().any(is_native)).then(|| format!("{place}: {native} only in its classic form"))
        })
        .collect()
}

/// Selectors of histograms as scraped, of the metrics in the table.
pub(crate) fn scraped_histograms(dashboard: &Value) -> Vec<(String, Selector)> {
    let histograms: BTreeSet<String> = TABLE
        .iter()
        .filter(|metric| metric.kind == Kind::Histogram)
        .flat_map(|metric| ["", "_bucket"].map(|end| format!("{}{end}", metric.prometheus().full())))
        .collect();
    selectors(dashboard).into_iter().filter(|(_, selector)| histograms.contains(&selector.name)).collect()
}

/// Hundreds of processes have too many buckets to read: only selected processes are read as scraped, over windows of at
/// most an hour. At the time 0, where there is no sample, all of them can be named.
fn target_fleet_buckets(dashboard: &Value) -> Vec<String> {
    let chosen = ("instance", "!~", "($pod~)..$instance..");
    let is_chosen = |selector: &Selector| {
        selector
            .matchers
            .iter()
            .any(|(label, operator, value)| (label.as_str(), operator.as_str(), value.as_str()) == chosen)
    };
    let is_short =
        |selector: &Selector| ["$__rate_interval", "5m", "1h"].contains(&selector.window.as_deref().unwrap_or(""));
    scraped_histograms(dashboard)
        .into_iter()
        .filter(|(_, selector)| !(is_short(selector) && (is_chosen(selector) || selector.at.as_deref() == Some("0"))))
        .map(|(place, selector)| format!("{place}: reads {} of every process", selector.name))
        .collect()
}

fn uneditable(dashboard: &Value) -> Vec<String> {
    if dashboard["editable"] == false {
        Vec::new()
    } else {
        vec!["is editable in Grafana, but manual changes would be lost".to_owned()]
    }
}

fn frame(dashboard: &Value) -> Vec<String> {
    let version = dashboard["schemaVersion"].as_u64().unwrap_or(0);
    let link = &dashboard["links"][0];
    let wanted = [
        ((39..=41).contains(&version), "a schemaVersion from 39 to 41"),
        (dashboard["graphTooltip"] == 1, "a shared crosshair"),
        (dashboard["refresh"] == "30s", "a refresh of 30 s"),
        (dashboard["time"]["from"] == "now-1h" && dashboard["time"]["to"] == "now", "the last hour"),
        (dashboard["tags"][0] == "tokometer", "the tag"),
        (dashboard["uid"].as_str().is_some_and(|uid| uid.starts_with("tokometer-")), "a uid with the prefix"),
        (
            link["asDropdown"] == true
                && link["keepTime"] == true
                && link["includeVars"] == true
                && link["tags"][0] == "tokometer",
            "links to the other dashboards",
        ),
    ];
    wanted.into_iter().filter(|(kept, _)| !kept).map(|(_, what)| format!("without {what}")).collect()
}

fn annotations(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let made: Vec<&Value> =
        list(&dashboard["annotations"]["list"]).filter(|annotation| annotation["builtIn"] != 1).collect();
    if made.len() < 4 {
        found.push(format!("{} annotations", made.len()));
    }
    for annotation in made {
        match annotation["expr"].as_str().map(read) {
            Some(Ok((selectors, _))) if !selectors.is_empty() && annotation["datasource"]["uid"] == "${datasource}" => {
            }
            _ => found.push(format!("{} cannot be parsed", annotation["name"])),
        }
    }
    found
}

fn unique_ids(dashboard: &Value) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = list(&dashboard["panels"]).flat_map(|panel| std::iter::once(panel).chain(list(&panel["panels"])));
    all.filter(|panel| !panel["id"].as_u64().is_some_and(|id| id > 0 && seen.insert(id)))
        .map(|panel| format!("{} has a duplicate id", title(panel)))
        .collect()
}

/// Panels must be within 24 columns and must not overlap. Panels of a collapsed row are checked separately.
fn grid(dashboard: &Value) -> Vec<String> {
    let mut found = overlaps(list(&dashboard["panels"]).collect());
    for row in list(&dashboard["panels"]) {
        found.extend(overlaps(list(&row["panels"]).collect()));
    }
    found
}

fn overlaps(panels: Vec<&Value>) -> Vec<String> {
    let edges = |panel: &Value| {
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap_or(u64::MAX / 4);
        (at("x"), at("y"), at("x") + at("w"), at("y") + at("h"))
    };
    let mut found = Vec::new();
    for (at, panel) in panels.iter().enumerate() {
        let (left, top, right, bottom) = edges(panel);
        if right > 24 || right <= left || bottom <= top {
            found.push(format!("{} is not within the grid", title(panel)));
        }
        for other in panels.iter().skip(at + 1) {
            let (x, y, x_end, y_end) = edges(other);
            if left < x_end && x < right && top < y_end && y < bottom {
                found.push(format!("{} lies on {}", title(panel), title(other)));
            }
        }
    }
    found
}

/// Links must lead to existing dashboards and keep the time range. Explore links must contain a pane in JSON.
fn links(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for panel in panels(dashboard) {
        let defaults = list(&panel["fieldConfig"]["defaults"]["links"]);
        let properties = list(&panel["fieldConfig"]["overrides"]).flat_map(|of| list(&of["properties"]));
        let overrides =
            properties.filter(|property| property["id"] == "links").flat_map(|property| list(&property["value"]));
        for url in defaults.chain(overrides).filter_map(|link| link["url"].as_str()) {
            let known = |name: &&str| url.starts_with(&format!("/d/{name}?${{__url_time_range}}&"));
            let leads = tokometer_operator::dashboards::NAMES.iter().any(known);
            let pane = url.strip_prefix("/explore?schemaVersion=1&panes=");
            let explores = pane.is_some_and(|pane| {
                let text = pane
                    .replace("%22", "\"")
                    .replace("%20", " ")
                    .replace("%5C", "\\")
                    .replace("%3D", "=")
                    .replace("%26", "&");
                serde_json::from_str::<Value>(&text).is_ok_and(|pane| pane["t"]["datasource"] == "${traces}")
            });
            if !leads && !explores {
                found.push(format!("{} leads to {url}", title(panel)));
            }
        }
    }
    found
}

fn size(dashboard: &Value) -> Vec<String> {
    let bytes = dashboard.to_string().len();
    if bytes < 1 << 20 { Vec::new() } else { vec![format!("{bytes} bytes: a ConfigMap is limited to 1 MiB")] }
}
