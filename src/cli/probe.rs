//! `tokometer probe`, for exec probes.

use std::process::ExitCode;

use crate::cli::shared::{fail, print};
use crate::client::HealthCheck;

/// Checks a server once and reports the result.
pub(super) fn probe(check: &HealthCheck) -> ExitCode {
    match check.run() {
        Ok(Some(status)) => print(&format!("healthy: status {status}\n")),
        Ok(None) => print("healthy: the port accepts connections\n"),
        Err(unhealthy) => fail(&unhealthy),
    }
}
