//! `dashboards`: prints or writes the dashboards.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::cli::DashboardsArgs;
use crate::cli::FAILURE;
use crate::cli::complain;
use crate::cli::print;
use tokometer_operator::dashboards::Dashboard;
use tokometer_operator::dashboards::dashboards;
use tokometer_telemetry::slo::Settings;

pub(super) fn run(arguments: &DashboardsArgs, settings: &Settings) -> ExitCode {
    let boards = dashboards(settings);
    let text = |board: &Dashboard| if arguments.import { board.import.clone() } else { board.json.clone() };
    if let Some(folder) = &arguments.out {
        return write(folder, &boards, &text);
    }
    if arguments.queries {
        let lines = boards.iter().flat_map(|board| &board.queries).map(|query| query.json() + "\n");
        return print(&lines.collect::<String>());
    }
    match &arguments.board {
        Some(name) => print(&boards.iter().filter(|board| board.name == name).map(text).collect::<String>()),
        None => print(&boards.iter().map(summary).collect::<String>()),
    }
}

fn summary(board: &Dashboard) -> String {
    format!("{:20} {}\n{:20} {}\n", board.name, board.title, "", board.description)
}

/// Writes one file per dashboard; creates the directory if it is missing.
fn write(folder: &Path, boards: &[Dashboard], text: &dyn Fn(&Dashboard) -> String) -> ExitCode {
    if let Err(error) = fs::create_dir_all(folder) {
        complain(&format!("tokometer: --out {}: cannot create this directory: {error}", folder.display()));
        return ExitCode::from(FAILURE);
    }
    for board in boards {
        let path = folder.join(format!("{}.json", board.name));
        if let Err(error) = fs::write(&path, text(board)) {
            complain(&format!("tokometer: {}: cannot write the file: {error}", path.display()));
            return ExitCode::from(FAILURE);
        }
    }
    print(
        &boards
            .iter()
            .map(|board| format!("{}\n", folder.join(format!("{}.json", board.name)).display()))
            .collect::<String>(),
    )
}
