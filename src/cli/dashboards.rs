//! `dashboards`: prints or writes the dashboards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::cli::shared::{fail, print};
use crate::config::Flags;
use tokometer_operator::dashboards::{self, Dashboard};
use tokometer_telemetry::slo::Settings;

/// Arguments of `dashboards`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  tokometer dashboards                                  list the dashboards
  tokometer dashboards --out /var/lib/grafana/dashboards
  tokometer dashboards --dashboard tokometer-slo --import > slo.json
  tokometer dashboards --queries | jq -r .expr

docs/how-to/dashboards.md describes each dashboard and the Grafana requirements.")]
pub struct DashboardsArgs {
    /// Write all dashboards to this directory, one file per dashboard
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dashboard", "queries"])]
    pub out: Option<PathBuf>,
    /// Print only this dashboard
    #[arg(long, value_name = "NAME", value_parser = dashboards::NAMES, conflicts_with = "queries")]
    pub dashboard: Option<String>,
    /// Use the format of Grafana's import page, which prompts for the data source
    #[arg(long, conflicts_with = "queries")]
    pub import: bool,
    /// Print the queries of every panel, one JSON object per line
    #[arg(long)]
    pub queries: bool,
    /// The configuration.
    #[command(flatten)]
    pub config: Flags,
}

/// Prints or writes the dashboards.
pub(super) fn run(arguments: &DashboardsArgs, settings: &Settings) -> ExitCode {
    let all = dashboards::dashboards(settings);
    let text = |one: &Dashboard| if arguments.import { one.import.clone() } else { one.json.clone() };
    if let Some(folder) = &arguments.out {
        return write(folder, &all, &text);
    }
    let lines: String = match &arguments.dashboard {
        _ if arguments.queries => all.iter().flat_map(|one| &one.queries).map(|query| query.json() + "\n").collect(),
        Some(name) => all.iter().filter(|one| one.name == name).map(text).collect(),
        None => {
            all.iter().map(|one| format!("{:20} {}\n{:20} {}\n", one.name, one.title, "", one.description)).collect()
        }
    };
    print(&lines)
}

/// Writes one file per dashboard; creates the directory if it is missing.
fn write(folder: &Path, all: &[Dashboard], text: &dyn Fn(&Dashboard) -> String) -> ExitCode {
    if let Err(error) = fs::create_dir_all(folder) {
        return fail(&format!("--out {}: cannot create this directory: {error}", folder.display()));
    }
    let mut written = String::new();
    for one in all {
        let path = folder.join(format!("{}.json", one.name));
        if let Err(error) = fs::write(&path, text(one)) {
            return fail(&format!("{}: cannot write the file: {error}", path.display()));
        }
        written.push_str(&format!("{}\n", path.display()));
    }
    print(&written)
}
