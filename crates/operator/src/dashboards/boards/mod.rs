//! The boards, one file each.

mod latency;
mod overview;
mod pod;
mod queue;
mod sidecar;
mod slo;
mod tenants;

use crate::dashboards::board::Board;
use tokometer_telemetry::slo::Settings;

/// Address of each board.
pub(super) const OVERVIEW: &str = "tokometer-overview";
pub(super) const SLO: &str = "tokometer-slo";
pub(super) const LATENCY: &str = "tokometer-latency";
pub(super) const QUEUE: &str = "tokometer-queue";
pub(super) const POD: &str = "tokometer-pod";
pub(super) const SIDECAR: &str = "tokometer-sidecar";

/// All boards, from the whole fleet to one process.
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
