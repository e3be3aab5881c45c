//! Generated rules: their format, their names, and a runbook for every alert.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tokometer_metrics::table::{Key, Kind, TABLE};
use tokometer_operator::profile;
use tokometer_operator::rules::{Format, rules, rules_at};
use tokometer_telemetry::slo::Settings;

use crate::config_documents::same_as_committed;

fn documents(settings: &Settings, format: Format) -> Vec<Value> {
    serde_yaml::from_multiple(&rules(settings, format)).expect("rules are YAML")
}

fn every_rule(settings: &Settings) -> Vec<Value> {
    let file = documents(settings, Format::Prometheus).remove(0);
    let groups = file["groups"].as_array().expect("groups").clone();
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

fn alerts(settings: &Settings) -> Vec<Value> {
    every_rule(settings).into_iter().filter(|rule| rule["alert"].is_string()).collect()
}

#[test]
fn committed_rules_match_the_default_configuration() {
    for (format, name) in [
        (Format::Prometheus, "prometheus.yaml"),
        (Format::PrometheusRule, "prometheusrule.yaml"),
        (Format::Sloth, "sloth.yaml"),
        (Format::Pyrra, "pyrra.yaml"),
        (Format::OpenSlo, "openslo.yaml"),
        (Format::Alertmanager, "alertmanager.yaml"),
    ] {
        same_as_committed(&format!("config/rules/{name}"), &rules(&Settings::default(), format));
    }
}

#[test]
fn committed_rules_and_dashboards_match_the_fleet_profile() {
    let profile = profile::profile(&Settings::default());
    assert!(profile.lines().count() > 50, "{profile}");
    same_as_committed("crates/telemetry/src/export/page/fleet.txt", &profile);
}

/// The sections of every runbook.
const SECTIONS: [&str; 8] =
    ["Meaning", "Impact", "First command", "Diagnosis", "Mitigation", "Rollback", "Escalation", "Links"];

#[test]
fn alerts_and_runbooks_match() {
    let made: BTreeSet<String> =
        alerts(&Settings::default()).iter().map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect();
    assert_eq!(made.len(), 23, "{made:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks");
    let pages: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().trim_end_matches(".md").to_owned())
        .collect();
    assert_eq!(pages, made);
    for name in &pages {
        let text = std::fs::read_to_string(folder.join(format!("{name}.md"))).unwrap();
        for part in SECTIONS.iter().map(|section| format!("\n## {section}\n")).chain([format!("# {name}\n")]) {
            assert!(text.contains(&part), "{name}: {part}");
        }
        assert!(text.contains("](../images/dashboards/"), "{name} shows no dashboard");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            assert!(link.is_empty() || folder.join(link).is_file(), "{name} links to {link}");
        }
    }
}

#[test]
fn every_alert_has_severity_texts_and_links() {
    let mut settings = Settings::default();
    settings.rules.runbook_url = Some("https://runbooks.example/".to_owned());
    settings.rules.dashboard_url = Some("https://grafana.example/".to_owned());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for alert in alerts(&settings) {
        let name = alert["alert"].as_str().unwrap();
        let annotation = |key: &str| {
            let text = alert["annotations"][key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
            assert!(!text.is_empty() && !text.contains("}}{{ $"), "{name}: values without a separator in {text}");
            text.to_owned()
        };
        let severity = alert["labels"]["severity"].as_str().unwrap();
        // Nobody has to act on a budget that is used up: other alerts report what uses it.
        let expected: &[&str] = if name.ends_with("Exhausted") { &["info"] } else { &["critical", "warning"] };
        assert!(expected.contains(&severity), "{name}");
        assert_eq!(alert["labels"]["service"], "llm", "{name}");
        assert_eq!(annotation("runbook_url"), format!("https://runbooks.example/{name}.md"));
        let dashboard = annotation("dashboard_url");
        let uid = dashboard.strip_prefix("https://grafana.example/d/").and_then(|rest| rest.split('?').next()).unwrap();
        assert!(root.join(format!("dashboards/{uid}.json")).is_file(), "{name}: {dashboard}");
        assert!(annotation("summary").starts_with("llm: "), "{name}");
        annotation("description");
        // The runbook contains the same command, with label names in capitals instead of templates.
        let page = std::fs::read_to_string(root.join(format!("docs/runbooks/{name}.md"))).unwrap();
        let command = as_written(&annotation("first_step"));
        assert!(page.contains(&command), "{name}: the runbook does not have the first step {command}");
        if name.ends_with("ErrorBudgetBurn") {
            assert!(alert["labels"]["slo"].is_string(), "{name}");
            assert!(annotation("summary").contains("{{ $value | humanize }} times too fast (target "), "{name}");
        }
    }
}

/// A command as written in a runbook, with label names in capitals instead of their templates. Of a command with a
/// variant for servers outside Kubernetes, the command for Kubernetes.
fn as_written(template: &str) -> String {
    let condition = template.strip_prefix("{{ if $labels.").and_then(|rest| rest.split_once(" }}"));
    let template = condition.map_or(template, |(_, rest)| rest.split_once("{{ else }}").expect("a variant").0);
    let mut parts = template.split("{{ $labels.");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (label, rest) = part.split_once(" }}").expect("the end of the template");
        text += &label.to_uppercase();
        text += rest;
    }
    text
}

#[test]
fn no_alert_depends_on_alerts_and_no_text_needs_kubernetes_labels() {
    let mut settings = Settings::default();
    settings.rules.group_by = vec!["model".to_owned(), "cluster".to_owned()];
    let mut variants = 0;
    for settings in [Settings::default(), settings] {
        for alert in alerts(&settings) {
            let name = alert["alert"].as_str().unwrap();
            assert!(!alert["expr"].as_str().unwrap().contains("ALERTS"), "{name}");
            let step = alert["annotations"]["first_step"].as_str().unwrap();
            let is_variant = step.starts_with("{{ if $labels.");
            variants += usize::from(is_variant);
            // Without pods of kube-state-metrics, `LLMSidecarMissing` cannot fire.
            assert!(is_variant || !step.contains("kubectl") || name == "LLMSidecarMissing", "{name}: {step}");
            let (_, elsewhere) = step.split_once("{{ else }}").unwrap_or_default();
            assert!(!elsewhere.contains("namespace") && !elsewhere.contains("kubectl"), "{name}: {elsewhere}");
        }
    }
    assert!(variants > 20, "{variants}");
}

#[test]
fn alert_on_an_exhausted_budget_prints_no_negative_share() {
    let alerts = alerts(&Settings::default());
    let texts: Vec<&str> = alerts.iter().filter_map(|alert| alert["annotations"]["description"].as_str()).collect();
    let printed: Vec<&&str> = texts.iter().filter(|text| text.contains("budget_remaining")).collect();
    assert!(printed.len() >= 10, "{printed:?}");
    assert!(printed.iter().all(|text| text.contains("{{ if lt . 0.0 }}")), "{printed:?}");
}

#[test]
fn without_urls_an_alert_has_no_links() {
    for alert in alerts(&Settings::default()) {
        let annotations = alert["annotations"].as_object().unwrap();
        let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(keys, ["description", "first_step", "summary"], "{}", alert["alert"]);
    }
}

/// Each objective has one alert that pages and one that opens a ticket. Few other alerts page.
#[test]
fn pages_are_few() {
    let mut pages: Vec<String> = alerts(&Settings::default())
        .iter()
        .filter(|alert| alert["labels"]["severity"] == "critical")
        .map(|alert| alert["alert"].as_str().unwrap().to_owned())
        .collect();
    pages.sort();
    let burns =
        ["Availability", "DecodeRate", "Goodput", "Stall", "TTFT"].map(|kind| format!("LLM{kind}ErrorBudgetBurn"));
    let others = ["LLMTokensStalled", "LLMUpstreamDown"].map(str::to_owned);
    let mut expected = [burns.to_vec(), others.to_vec()].concat();
    expected.sort();
    assert_eq!(pages, expected);
}

#[test]
fn inhibition_names_alerts_and_labels_that_exist() {
    let mut settings = Settings::default();
    settings.rules.group_by = vec!["namespace".to_owned(), "model".to_owned(), "pool".to_owned()];
    let names: BTreeSet<String> =
        alerts(&settings).iter().map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect();
    let file = documents(&settings, Format::Alertmanager).remove(0);
    let rules = file["inhibit_rules"].as_array().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        for matcher in ["source_matchers", "target_matchers"].iter().flat_map(|key| rule[*key].as_array().unwrap()) {
            let matcher = matcher.as_str().unwrap();
            let Some((_, value)) = matcher.split_once("alertname=") else { continue };
            for pattern in alternatives(value.trim_matches(['~', '"'])) {
                let (start, end) = pattern.split_once(".+").unwrap_or((&pattern, ""));
                let matches = |name: &String| {
                    if pattern.contains(".+") {
                        name.starts_with(start) && name.ends_with(end)
                    } else {
                        *name == pattern
                    }
                };
                assert!(names.iter().any(matches), "{pattern} matches no alert");
            }
        }
        let equal: Vec<&str> = rule["equal"].as_array().unwrap().iter().map(|label| label.as_str().unwrap()).collect();
        assert_eq!(equal.first(), Some(&"service"));
        let known = ["service", "alertname", "slo", "namespace", "model", "pool", "pod", "instance"];
        assert!(equal.iter().all(|label| known.contains(label)), "{equal:?}");
    }
}

/// The alternatives of a pattern such as `A|B` or `LLM(A|B)C`.
fn alternatives(pattern: &str) -> Vec<String> {
    let Some((start, rest)) = pattern.split_once('(') else { return pattern.split('|').map(str::to_owned).collect() };
    let (group, end) = rest.split_once(')').expect("the group is closed");
    assert!(![start, end].concat().contains(['|', '(']), "{pattern} has alternatives inside and outside a group");
    group.split('|').map(|part| format!("{start}{part}{end}")).collect()
}

/// Metrics of Prometheus itself and of other exporters that runbooks use.
const FOREIGN: [&str; 7] = [
    "up",
    "http_requests_total",
    "kube_pod_annotations",
    "kube_pod_labels",
    "kube_pod_init_container_status_restarts_total",
    "kube_pod_status_phase",
    "vllm:num_requests_running",
];

#[test]
fn every_queried_series_is_known() {
    let rules = every_rule(&Settings::default());
    let recorded: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    let mut ours = BTreeSet::new();
    for metric in &TABLE {
        let name = metric.prometheus().full();
        if metric.kind == Kind::Histogram {
            ours.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")));
        }
        ours.insert(name);
    }
    let labels: BTreeSet<&str> = Key::ALL.iter().map(|key| key.label()).collect();
    let mut asked = 0;
    for rule in &rules {
        let expr = rule["expr"].as_str().unwrap();
        for name in series(expr) {
            let known = ours.contains(&name) || recorded.contains(name.as_str()) || FOREIGN.contains(&name.as_str());
            assert!(known, "{name} in {expr}");
            asked += 1;
        }
        for label in matchers(expr) {
            let foreign = [
                "sloth_id",
                "annotation_tokometer_skipped",
                "label_tokometer_inject",
                "container",
                "day",
                "method",
                "handler",
            ];
            assert!(labels.contains(label.as_str()) || foreign.contains(&label.as_str()), "{label} in {expr}");
        }
    }
    assert!(asked > 200, "{asked}");
}

/// The series names in an expression: `up`, and words with `_` or `:` that are not in quotes, braces or grouping clauses.
fn series(expr: &str) -> Vec<String> {
    // Every other part is quoted.
    let expr: String = expr.split('"').step_by(2).collect();
    let (mut names, mut word, mut braces, mut grouping) = (Vec::new(), String::new(), 0, false);
    for (at, c) in expr.char_indices().chain([(expr.len(), ' ')]) {
        if c.is_ascii_alphanumeric() || "_:".contains(c) {
            word.push(c);
            continue;
        }
        let rest = expr.get(at..).unwrap_or("").trim_start();
        let keyword = ["by", "on", "without", "ignoring", "group_left"].contains(&word.as_str());
        let function = rest.starts_with('(') && !keyword;
        let duration = word.starts_with(|c: char| c.is_ascii_digit());
        if braces == 0 && !grouping && !keyword && !function && !duration && (word.contains(['_', ':']) || word == "up")
        {
            names.push(word.clone());
        }
        grouping |= keyword && rest.starts_with('(');
        match c {
            '{' => braces += 1,
            '}' => braces -= 1,
            ')' => grouping = false,
            _ => {}
        }
        word.clear();
    }
    names
}

fn matchers(expr: &str) -> Vec<String> {
    let insides = expr.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    insides
        .flat_map(|inside| inside.split(','))
        .map(|matcher| matcher.split(['=', '!']).next().unwrap_or("").to_owned())
        .collect()
}

#[test]
fn no_alert_threshold_exceeds_ninety_percent() {
    for percent in [50.0, 90.0, 93.0, 95.0, 99.0, 99.9, 99.99] {
        let mut settings = Settings::default();
        settings.objectives.iter_mut().for_each(|objective| objective.target = percent / 100.0);
        let mut checked = 0;
        for alert in alerts(&settings).iter().filter(|rule| rule["alert"].as_str().unwrap().ends_with("BudgetBurn")) {
            let expr = alert["expr"].as_str().unwrap();
            // The error ratio threshold is the burn rate times the error ratio that the objective allows.
            for (rate, allowed) in expr.lines().filter_map(|line| line.split_once(" / ")?.1.split_once(" > ")).map(swap)
            {
                let limit = rate * allowed;
                assert!(limit > 0.0 && limit <= 0.9 + 1e-6, "{percent} %: {limit} in {expr}");
                checked += 1;
            }
        }
        assert_eq!(checked, 5 * (5 + 4), "{percent} %");
    }
}

fn swap((allowed, rate): (&str, &str)) -> (f64, f64) {
    (rate.parse().expect("a number"), allowed.parse().expect("a number"))
}

#[test]
fn other_formats_contain_every_objective_and_its_counters() {
    let settings = Settings::default();
    let rule = documents(&settings, Format::PrometheusRule).remove(0);
    assert_eq!((&rule["apiVersion"], &rule["kind"]), (&"monitoring.coreos.com/v1".into(), &"PrometheusRule".into()));
    assert_eq!(rule["spec"]["groups"], documents(&settings, Format::Prometheus)[0]["groups"]);

    let sloth = documents(&settings, Format::Sloth).remove(0);
    assert_eq!((&sloth["version"], &sloth["service"]), (&"prometheus/v1".into(), &"llm".into()));
    let pyrra = documents(&settings, Format::Pyrra);
    let slos: Vec<Value> =
        documents(&settings, Format::OpenSlo).into_iter().filter(|document| document["kind"] == "SLO").collect();
    assert_eq!((sloth["slos"].as_array().unwrap().len(), pyrra.len(), slos.len()), (5, 5, 5));
    for (at, objective) in settings.objectives.iter().enumerate() {
        let all = format!("tokometer_slo_events_total{{slo=\"{}\"}}", objective.name);
        let bad = format!("tokometer_slo_events_total{{slo=\"{}\",verdict=\"bad\"}}", objective.name);
        let events = &sloth["slos"][at]["sli"]["events"];
        assert_eq!(events["error_query"], format!("sum by (namespace, model) (rate({bad}[{{{{.window}}}}]))"));
        assert_eq!(events["total_query"], format!("sum by (namespace, model) (rate({all}[{{{{.window}}}}]))"));
        let ratio = &pyrra[at]["spec"]["indicator"]["ratio"];
        assert_eq!((&ratio["errors"]["metric"], &ratio["total"]["metric"]), (&bad.clone().into(), &all.clone().into()));
        let ratio = &slos[at]["spec"]["indicator"]["spec"]["ratioMetric"];
        assert_eq!(ratio["bad"]["metricSource"]["spec"]["query"], format!("sum({bad})"));
        assert_eq!(slos[at]["spec"]["objectives"][0]["target"], objective.target);
        assert!(!pyrra[at]["metadata"]["name"].as_str().unwrap().contains('_'), "not a valid Kubernetes name");
    }
    assert_eq!(pyrra[0]["spec"]["target"], "99.5");
    assert_eq!(sloth["slos"][0]["objective"], 99.5);
}

/// Parses a duration with one unit, in milliseconds.
fn milliseconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).expect("a unit"));
    let of = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    number.parse::<u64>().expect("a number") * of.iter().find(|(name, _)| *name == unit).expect("a known unit").1
}

/// Every window, wait and interval of the rules, in order.
fn times(groups: &Value) -> Vec<u64> {
    let mut times = Vec::new();
    for group in groups.as_array().expect("a list") {
        times.push(milliseconds(group["interval"].as_str().expect("a text")));
        for rule in group["rules"].as_array().expect("a list") {
            let ranges = rule["expr"].as_str().expect("a text").split('[').skip(1);
            let inside = ranges.flat_map(|rest| rest.split(']').next().expect("its end").split(':'));
            times.extend(
                inside.chain(["for", "keep_firing_for"].iter().filter_map(|key| rule[*key].as_str())).map(milliseconds),
            );
        }
    }
    times
}

#[test]
fn time_scale_divides_only_windows_waits_and_intervals() {
    let (settings, scale) = (Settings::default(), 20);
    let text = rules_at(&settings, Format::Prometheus, scale);
    assert!(text.contains("# For trials: time runs 20 times faster."), "{}", text.get(..200).unwrap());
    let fast: Value = serde_yaml::from_str(&text).unwrap();
    let slow: Value = serde_yaml::from_str(&rules(&settings, Format::Prometheus)).unwrap();
    let expected: Vec<u64> = times(&slow["groups"]).iter().map(|ms| ms / u64::from(scale)).collect();
    assert!(expected.len() > 200, "{}", expected.len());
    assert_eq!(times(&fast["groups"]), expected);
    let stated = |groups: &Value| -> Vec<(Value, Value, Value, Value)> {
        let rules = groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        rules
            .map(|r| (r["record"].clone(), r["alert"].clone(), r["labels"].clone(), r["annotations"].clone()))
            .collect()
    };
    assert_eq!(stated(&fast["groups"]), stated(&slow["groups"]), "names, labels and texts keep the original windows");
    assert_eq!(rules_at(&settings, Format::PrometheusRule, 1), rules(&settings, Format::PrometheusRule));
}

#[test]
fn without_objectives_only_other_alerts_remain() {
    let names: BTreeSet<String> =
        alerts(&Settings::none()).iter().map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 16, "{names:?}");
    assert!(!names.iter().any(|name| name.contains("ErrorBudget")));
}
