//! `dashboards`: prints or writes the dashboards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::cli::arguments::ConfigArgs;
use crate::cli::{fail, print};
use tokometer_operator::dashboards;
use tokometer_operator::dashboards::Dashboard;
use tokometer_telemetry::slo::Settings;

/// Arguments of `dashboards`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer dashboards                                  list the dashboards
  tokometer dashboards --out /var/lib/grafana/dashboards
  tokometer dashboards --board tokometer-slo --import > slo.json
  tokometer dashboards --queries | jq -r .expr

docs/DASHBOARDS.md describes each dashboard and the Grafana requirements.")]
pub struct DashboardsArgs {
    /// Write every dashboard into this directory, one file each
    #[arg(long, value_name = "DIR", conflicts_with_all = ["board", "queries"])]
    pub out: Option<PathBuf>,
    /// Print only this dashboard
    #[arg(long, value_name = "NAME", value_parser = dashboards::NAMES, conflicts_with = "queries")]
    pub board: Option<String>,
    /// Use the format of Grafana's import page, which asks for the data source
    #[arg(long, conflicts_with = "queries")]
    pub import: bool,
    /// Print the queries of every panel, one JSON object per line
    #[arg(long)]
    pub queries: bool,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Prints or writes the dashboards.
pub(super) fn run(arguments: &DashboardsArgs, settings: &Settings) -> ExitCode {
    let generated = dashboards::dashboards(settings);
    let text = |dashboard: &Dashboard| if arguments.import { dashboard.import.clone() } else { dashboard.json.clone() };
    if let Some(folder) = &arguments.out {
        return write(folder, &generated, &text);
    }
    if arguments.queries {
        let lines = generated.iter().flat_map(|dashboard| &dashboard.queries).map(|query| query.json() + "\n");
        return print(&lines.collect::<String>());
    }
    match &arguments.board {
        Some(name) => print(&generated.iter().filter(|dashboard| dashboard.name == name).map(text).collect::<String>()),
        None => print(&generated.iter().map(summary).collect::<String>()),
    }
}

fn summary(dashboard: &Dashboard) -> String {
    format!("{:20} {}\n{:20} {}\n", dashboard.name, dashboard.title, "", dashboard.description)
}

/// Writes one file per dashboard; creates the directory if it is missing.
fn write(folder: &Path, generated: &[Dashboard], text: &dyn Fn(&Dashboard) -> String) -> ExitCode {
    if let Err(error) = fs::create_dir_all(folder) {
        return fail(&format!("--out {}: cannot create this directory: {error}", folder.display()));
    }
    for dashboard in generated {
        let path = folder.join(format!("{}.json", dashboard.name));
        if let Err(error) = fs::write(&path, text(dashboard)) {
            return fail(&format!("{}: cannot write the file: {error}", path.display()));
        }
    }
    print(
        &generated
            .iter()
            .map(|dashboard| format!("{}\n", folder.join(format!("{}.json", dashboard.name)).display()))
            .collect::<String>(),
    )
}
