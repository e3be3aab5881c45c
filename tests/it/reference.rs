//! Generates docs/reference/cli.md and docs/reference/alerts.md from the command line and the rules. `UPDATE=1`
//! rewrites the files.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::CommandFactory;
use serde_json::Value;
use tokometer::cli::Cli;
use tokometer_operator::rules::{Format, rules};
use tokometer_telemetry::slo::Settings;

use crate::config_documents::same_as_committed;

const COMMANDS: &str = "# Commands

<!-- Generated from the command line definitions: `tests/generated.sh write` rewrites it. -->

This page contains the output of `tokometer COMMAND --help` for every command. Exit codes: 0 success, 1 failure, 2 wrong
usage or an invalid configuration.
";

#[test]
fn page_of_commands_matches_the_help() {
    let mut made = COMMANDS.to_owned();
    let mut section = |title: &str, command: &mut clap::Command| {
        let help = command.render_long_help().to_string();
        writeln!(made, "\n## {title}\n\n```text\n{}\n```", help.trim_end()).unwrap();
    };
    let mut cli = Cli::command();
    cli.build();
    section("tokometer", &mut cli);
    let names: Vec<String> = cli.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names.iter().filter(|name| *name != "help") {
        section(&format!("tokometer {name}"), cli.find_subcommand_mut(name).unwrap());
    }
    same_as_committed("docs/reference/cli.md", &made);
}

const ALERTS: &str = "# Alerts

<!-- Generated from the alerting rules: `tests/generated.sh write` rewrites it. -->

The table lists the alerts that `tokometer rules` generates for the default objectives. An alert with the severity
`critical` is a page, and an alert with the severity `warning` is a ticket. An alert with the severity `info` needs no
action. If a row lists two severities, the values in the columns `For` and `Dashboard` have the same order; a single
value applies to both severities.

The column `For` shows how long the condition must hold before the alert fires; `-` means that the alert fires
immediately. Each alert name links to its runbook. The last column contains the dashboard to which the alert links.

If you configure other objectives, each of them has its own error budget alerts and its own `LLMSLOMetricAbsent`.
[Objectives](../concepts/objectives.md#rules) explains burn rates, windows, and which alerts inhibit other alerts.

| Alert | Severity | For | Meaning | Dashboard |
|---|---|---|---|---|
";

/// The first paragraph of an alert's runbook, on one line.
fn meaning(alert: &str) -> String {
    let path = format!("{}/docs/runbooks/{alert}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).expect("every alert has a runbook");
    let (_, rest) = page.split_once("## Meaning\n\n").expect("a runbook begins with the meaning");
    let paragraph = rest.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    paragraph.replace("](LLM", "](../runbooks/LLM").replace('|', "\\|")
}

#[test]
fn page_of_alerts_matches_the_rules() {
    let mut settings = Settings::default();
    settings.rules.dashboard_url = Some("https://grafana.example/".to_owned());
    let file: Value = serde_yaml::from_str(&rules(&settings, Format::Prometheus)).unwrap();
    // Severities, waits and dashboards by alert name. For an objective, the rule that pages precedes the one that opens
    // a ticket.
    let mut alerts: BTreeMap<&str, [Vec<&str>; 3]> = BTreeMap::new();
    let groups = file["groups"].as_array().unwrap();
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        let Some(name) = rule["alert"].as_str() else { continue };
        let dashboard =
            rule["annotations"]["dashboard_url"].as_str().unwrap().trim_start_matches("https://grafana.example/d/");
        let values = [
            rule["labels"]["severity"].as_str().unwrap(),
            rule["for"].as_str().unwrap_or("-"),
            dashboard.split('?').next().unwrap(),
        ];
        for (known, value) in alerts.entry(name).or_default().iter_mut().zip(values) {
            if !known.contains(&value) {
                known.push(value);
            }
        }
    }
    let rows = alerts.iter().map(|(name, values)| {
        let [severity, lasting, dashboards] = values.each_ref().map(|values| values.join(", "));
        format!("| [{name}](../runbooks/{name}.md) | {severity} | {lasting} | {} | {dashboards} |\n", meaning(name))
    });
    let rows: Vec<String> = rows.collect();
    assert!(rows.len() > 20, "{}", rows.len());
    same_as_committed("docs/reference/alerts.md", &(ALERTS.to_owned() + &rows.concat()));
}
