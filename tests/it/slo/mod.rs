//! SLO objectives: good, bad and excluded requests, each counted once.

mod cases;
mod config;
mod counted;
mod headers;
mod naive;
mod outages;
mod run;
mod waiting;

use std::time::Duration;

use tokometer_observe::measure::Record;
use tokometer_telemetry::slo::{Goal, Objective, Settings};

use crate::export::records;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A successful streamed response: first token after 200 ms, 101 tokens within one second.
fn good() -> Record {
    records::good("m")
}

/// Settings with only this objective.
fn only(goal: Goal) -> Settings {
    let name = goal.word().to_owned();
    let objective = Objective { name, target: 0.99, scope: tokometer_telemetry::slo::Scope::default(), goal };
    Settings { objectives: vec![objective], ..Settings::none() }
}
