//! Objectives: what is good, bad or left out, and that all of it is counted once.

mod cases;
mod config;
mod counted;
mod headers;
mod naive;
mod run;
mod waiting;

use std::time::Duration;

use tokometer_observe::measure::Record;
use tokometer_telemetry::slo::Goal;
use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

use crate::export::records;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A streamed answer that ended well: first token after 200 ms, 101 tokens in a second.
fn good() -> Record {
    records::good("m")
}

/// Settings with this objective alone.
fn only(goal: Goal) -> Settings {
    let name = goal.word().to_owned();
    let objective = Objective { name, target: 0.99, scope: tokometer_telemetry::slo::Scope::default(), goal };
    Settings { objectives: vec![objective], ..Settings::none() }
}
