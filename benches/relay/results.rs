//! The measurements: every run of every peer in every row.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Outcome;

/// The values of one run, by name.
pub(crate) type Measurements = BTreeMap<String, f64>;

/// All measurements. Runs with the same index are adjacent in time and can be compared in pairs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Seconds since 1970.
    pub(crate) unix_time: u64,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    pub(crate) quick: bool,
    /// Peers that could not run, and the reasons.
    pub(crate) missing: BTreeMap<String, String>,
    /// Errors of failed runs, by peer and row (`PEER in row ROW`).
    pub(crate) failed: BTreeMap<String, String>,
    /// Row, peer, runs.
    pub(crate) rows: BTreeMap<String, BTreeMap<String, Vec<Measurements>>>,
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some((upper + lower) / 2.0)
}

impl Results {
    pub(crate) fn begin(quick: bool) -> Results {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Results {
            unix_time: now.as_secs(),
            cpu: cpu.map_or("unknown", |(_, model)| model).to_owned(),
            kernel: kernel.trim().to_owned(),
            quick,
            missing: BTreeMap::new(),
            failed: BTreeMap::new(),
            rows: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, row: &str, peer: &str, measurements: Measurements) {
        self.rows.entry(row.to_owned()).or_default().entry(peer.to_owned()).or_default().push(measurements);
    }

    fn runs(&self, row: &str, peer: &str, measurement: &str) -> Option<Vec<f64>> {
        let runs = self.rows.get(row)?.get(peer)?;
        runs.iter().map(|run| run.get(measurement).copied()).collect()
    }

    /// The median over the runs.
    pub(crate) fn measurement(&self, row: &str, peer: &str, measurement: &str) -> Option<f64> {
        median(self.runs(row, peer, measurement)?)
    }

    /// The median of the ratios of paired runs.
    pub(crate) fn ratio(&self, row: &str, peer: &str, to: &str, measurement: &str) -> Option<f64> {
        let (mine, theirs) = (self.runs(row, peer, measurement)?, self.runs(row, to, measurement)?);
        median(mine.iter().zip(&theirs).map(|(mine, theirs)| mine / theirs).collect())
    }

    /// The metric names of a row, sorted.
    fn measurements(&self, row: &str) -> Vec<String> {
        let runs = self.rows.get(row).into_iter().flat_map(|peers| peers.values().flatten());
        let mut names: Vec<String> = runs.flat_map(|run| run.keys().cloned()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The medians, one table per row.
    pub(crate) fn table(&self) -> String {
        let mut page = String::new();
        for (row, peers) in &self.rows {
            let measurements = self.measurements(row);
            let runs = peers.values().map(Vec::len).max().unwrap_or(0);
            let mut line = |cells: Vec<String>| {
                let written = writeln!(page, "| {} |", cells.join(" | "));
                debug_assert!(written.is_ok());
            };
            line([format!("{row} (runs: {runs})")].into_iter().chain(measurements.iter().cloned()).collect());
            line(std::iter::once("---".to_owned()).chain(measurements.iter().map(|_| "---".to_owned())).collect());
            for peer in peers.keys() {
                let cell = |name: &String| self.measurement(row, peer, name).map_or("-".to_owned(), number);
                line(std::iter::once(peer.clone()).chain(measurements.iter().map(cell)).collect());
            }
            page.push('\n');
        }
        page
    }

    pub(crate) fn load(path: &Path) -> Outcome<Results> {
        let text = fs::read(path).map_err(|error| format!("{}: {error}; run the bench first", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub(crate) fn save(&self, path: &Path) -> Outcome<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(fs::write(path, serde_json::to_vec_pretty(self)?)?)
    }
}

/// Formats a value with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
