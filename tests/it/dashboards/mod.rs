//! Generated dashboards: their format, their names, and the lint rules.

mod broken;
mod command;
mod lint;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokometer_observe::measure::Outcome;
use tokometer_operator::dashboards::{Dashboard, NAMES, dashboards};
use tokometer_telemetry::slo::Settings;

use crate::config_documents::same_as_committed;

fn generated() -> Vec<Dashboard> {
    dashboards(&Settings::default())
}

fn document(dashboard: &Dashboard) -> Value {
    serde_json::from_str(&dashboard.json).expect("a dashboard is JSON")
}

#[test]
fn committed_dashboards_match_the_default_configuration() {
    for dashboard in generated() {
        same_as_committed(&format!("dashboards/{}.json", dashboard.name), &dashboard.json);
        same_as_committed(&format!("dashboards/import/{}.json", dashboard.name), &dashboard.import);
    }
}

#[test]
fn no_other_dashboard_is_committed() {
    for folder in ["dashboards", "dashboards/import"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let found: BTreeSet<String> = files
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(found, NAMES.iter().map(|name| (*name).to_owned()).collect());
    }
}

#[test]
fn dashboards_have_their_uid_and_link_to_each_other() {
    let made = generated();
    assert_eq!(made.iter().map(|dashboard| dashboard.name).collect::<Vec<_>>(), NAMES);
    for dashboard in &made {
        assert_eq!(document(dashboard)["uid"], dashboard.name);
        assert_eq!(document(dashboard)["title"], dashboard.title);
    }
    let overview = &made[0].json;
    for name in NAMES.iter().skip(1).filter(|name| !["tokometer-sidecar", "tokometer-details"].contains(name)) {
        assert!(overview.contains(&format!("/d/{name}?")), "the overview does not link to {name}");
    }
    assert!(made[5].json.contains("/d/tokometer-details?"), "the health of sidecars does not link to their details");
}

#[test]
fn drill_down_is_about_one_pod() {
    for dashboard in generated() {
        for variable in document(&dashboard)["templating"]["list"].as_array().unwrap() {
            let one =
                dashboard.name == "tokometer-pod" && ["pod", "instance"].contains(&variable["name"].as_str().unwrap());
            let many = variable["type"] == "query" && !one;
            assert_eq!(variable["includeAll"] == true, many, "{}: {}", dashboard.name, variable["name"]);
            assert_eq!(variable["multi"] == true, many, "{}: {}", dashboard.name, variable["name"]);
        }
    }
}

/// A series has the same color on all dashboards, and no two outcomes share a color.
#[test]
fn series_have_one_color_on_all_dashboards() {
    let mut colors: BTreeMap<String, String> = BTreeMap::new();
    for dashboard in generated() {
        for panel in lint::panels(&document(&dashboard)) {
            for of in panel["fieldConfig"]["overrides"].as_array().unwrap() {
                let name = of["matcher"]["options"].as_str().unwrap().to_owned();
                let found = of["properties"].as_array().unwrap().iter().find(|property| property["id"] == "color");
                let Some(color) = found.and_then(|property| property["value"]["fixedColor"].as_str()) else { continue };
                let before = colors.entry(name.clone()).or_insert_with(|| color.to_owned());
                assert_eq!(before, color, "{}: {}: {name}", dashboard.name, panel["title"]);
            }
        }
    }
    let outcomes: Vec<&String> = Outcome::ALL.iter().map(|outcome| &colors[outcome.as_str()]).collect();
    assert_eq!(outcomes.iter().collect::<BTreeSet<_>>().len(), Outcome::ALL.len(), "{outcomes:?}");
}

#[test]
fn runbooks_are_linked_where_the_settings_have_their_url() {
    let mut settings = Settings::default();
    assert!(dashboards(&settings).iter().all(|dashboard| !dashboard.json.contains("unbook\"")));
    settings.rules.runbook_url = Some("https://runbooks.example/".to_owned());
    for dashboard in dashboards(&settings) {
        assert_eq!(document(&dashboard)["links"][1]["url"], "https://runbooks.example/", "{}", dashboard.name);
    }
    let overview = &dashboards(&settings)[0].json;
    assert!(overview.contains("\"url\": \"https://runbooks.example/${__value.raw}.md\""));
}

#[test]
fn bands_of_decode_rates_are_those_of_the_settings() {
    let mut settings = Settings::default();
    settings.reading.comfortable = 17.5;
    for name in ["tokometer-overview", "tokometer-latency", "tokometer-pod"] {
        let made = dashboards(&settings).into_iter().find(|dashboard| dashboard.name == name).unwrap();
        assert!(made.json.contains("\"value\": 17.5") && made.json.contains("below 17.5"), "{name}");
        assert!(!made.json.contains("{reading_"), "{name}");
    }
}

#[test]
fn import_variant_declares_data_source_and_requirements() {
    for dashboard in generated() {
        let import: Value = serde_json::from_str(&dashboard.import).unwrap();
        assert_eq!(import["__inputs"][0]["name"], "DS_PROMETHEUS", "{}", dashboard.name);
        let source =
            import["templating"]["list"].as_array().unwrap().iter().find(|one| one["name"] == "datasource").unwrap();
        assert_eq!(source["current"]["value"], "${DS_PROMETHEUS}", "{}", dashboard.name);
        let required: BTreeSet<&str> =
            import["__requires"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert!(required.contains("grafana") && required.contains("prometheus"), "{}", dashboard.name);
        for panel in lint::panels(&import) {
            assert!(required.contains(panel["type"].as_str().unwrap()), "{}: {}", dashboard.name, panel["type"]);
        }
        // Without its import-only parts, the import file equals the dashboard.
        let mut plain = import.clone();
        for key in ["__inputs", "__requires", "__elements", "id"] {
            plain.as_object_mut().unwrap().remove(key);
        }
        let mut own = document(&dashboard);
        for dashboard in [&mut plain, &mut own] {
            let list = dashboard["templating"]["list"].as_array_mut().unwrap();
            list.iter_mut().find(|one| one["name"] == "datasource").unwrap()["current"] = Value::Null;
        }
        assert_eq!(plain, own, "{}", dashboard.name);
    }
}

/// The lint rule `target-fleet-buckets` checks these selectors.
#[test]
fn buckets_of_every_process_are_not_read() {
    let all: Vec<_> = generated().iter().flat_map(|dashboard| lint::scraped_histograms(&document(dashboard))).collect();
    assert!(all.len() > 50, "{}", all.len());
    let recorded = generated().iter().flat_map(|dashboard| lint::selectors(&document(dashboard))).collect::<Vec<_>>();
    let recorded = recorded.iter().filter(|(_, selector)| selector.name.starts_with("fleet:"));
    assert!(recorded.count() > 50);
}

#[test]
fn latency_panels_have_exemplars_linked_to_traces() {
    let mut seen = 0;
    for dashboard in generated() {
        for panel in lint::panels(&document(&dashboard)) {
            let exemplars = panel["targets"].as_array().unwrap().iter().any(|target| target["exemplar"] == true);
            let links = panel["fieldConfig"].to_string();
            if exemplars {
                seen += 1;
                assert!(
                    links.contains("trace_id") && links.contains("${traces}"),
                    "{}: {}",
                    dashboard.name,
                    panel["title"]
                );
            }
        }
    }
    assert!(seen >= 12, "{seen}");
}

#[test]
fn dashboards_use_the_rules_period_and_groups() {
    let mut settings = Settings::default();
    settings.rules.period_days = 7;
    settings.rules.group_by = vec!["team".to_owned()];
    let slo = dashboards(&settings).into_iter().find(|dashboard| dashboard.name == "tokometer-slo").unwrap();
    let all: String = slo.queries.iter().map(|query| query.expr.clone()).collect();
    assert!(all.contains("slo:sli_bad:step5m{slo=~\"$slo\"}[7d]") && !all.contains("[30d]"));
    assert!(all.contains("max by (slo, team)") && !all.contains("slo, namespace"));
    // The burn rate of the first paging threshold is 14.4 for a period of 30 days, 3.36 for 7 days.
    assert!(slo.json.contains("3.36") && !slo.json.contains("14.4"));
}
