//! The dashboards, one file each.

mod latency;
mod overview;
mod pod;
mod queue;
mod sidecar;
mod slo;

use crate::dashboards::board::Board;
use tokometer_telemetry::slo::Settings;

/// The uid of each dashboard.
pub(super) const OVERVIEW: &str = "tokometer-overview";
pub(super) const SLO: &str = "tokometer-slo";
pub(super) const LATENCY: &str = "tokometer-latency";
pub(super) const QUEUE: &str = "tokometer-queue";
pub(super) const POD: &str = "tokometer-pod";
pub(super) const SIDECAR: &str = "tokometer-sidecar";

/// All dashboards, from the whole fleet to one process.
pub(super) fn all(settings: &Settings) -> Vec<Board> {
    vec![
        overview::board(),
        slo::board(&settings.rules),
        latency::board(),
        queue::board(),
        pod::board(),
        sidecar::board(),
    ]
}
