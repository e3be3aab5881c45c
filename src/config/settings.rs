//! The configuration as used by the program: validated, and split by module.

use std::time::Duration;

use crate::admin;
use crate::app::access_log;
use crate::app::log;
use tokometer_engine::engine_spans;
use tokometer_engine::scrape;
use tokometer_observe::observer;
use tokometer_proxy::listen;
use tokometer_proxy::relay;
use tokometer_telemetry::accounting;
use tokometer_telemetry::export;
use tokometer_telemetry::live;
use tokometer_telemetry::slo;
use tokometer_telemetry::tokenizer;

/// All settings, validated, by module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The listeners (listen address and upstream), at least one.
    pub pairs: Vec<listen::Pair>,
    /// How connections are forwarded.
    pub relay: relay::Settings,
    /// How requests are parsed and measured.
    pub observe: observer::Settings,
    /// Token counting by text.
    pub tokenizer: tokenizer::Settings,
    /// Scraping of the engines' own metrics.
    pub scrape: scrape::Settings,
    /// Requests in flight, and wedge detection.
    pub live: live::Settings,
    /// Both exporters.
    pub export: export::Settings,
    /// The receiver of the engine's spans; `None` when it is off.
    pub queue: Option<engine_spans::Settings>,
    /// The admin server.
    pub admin: admin::Settings,
    /// Logs of tokometer itself.
    pub log: log::Settings,
    /// The access log; `None` when it is off.
    pub access_log: Option<access_log::Settings>,
    /// The objectives.
    pub slo: slo::Settings,
    /// Tenants, prices and budgets.
    pub ledger: accounting::Settings,
    /// Number of threads that forward traffic; `None` for one per CPU available to the process.
    pub threads: Option<usize>,
    /// How long open streams may continue after SIGTERM.
    pub grace_period: Duration,
    /// How long new connections are accepted after a drain request.
    pub lame_duck: Duration,
}

impl Settings {
    /// The defaults for this one listener, without files, environment or flags. Scraping is off.
    pub fn of_pair(pair: listen::Pair) -> Settings {
        Settings {
            pairs: vec![pair],
            relay: relay::Settings::default(),
            observe: observer::Settings::default(),
            tokenizer: tokenizer::Settings::default(),
            scrape: scrape::Settings::default(),
            live: live::Settings::default(),
            export: export::Settings::default(),
            queue: None,
            admin: admin::Settings::default(),
            log: log::Settings::default(),
            access_log: None,
            slo: slo::Settings::default(),
            ledger: accounting::Settings::default(),
            threads: None,
            grace_period: Duration::ZERO,
            lame_duck: Duration::ZERO,
        }
    }
}
