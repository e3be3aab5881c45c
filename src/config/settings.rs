//! The configuration as the program uses it: checked, and split by module.

use std::time::Duration;

use crate::admin;
use crate::app::access_log;
use crate::app::log;
use crate::export;
use crate::listen;
use crate::observe;
use crate::relay;

/// Everything that was set, checked: each module's own settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The listen -> upstream pairs, at least one.
    pub pairs: Vec<listen::Pair>,
    /// How connections are relayed.
    pub relay: relay::Settings,
    /// How exchanges are read and measured.
    pub observe: observe::Settings,
    /// Both exporters.
    pub export: export::Settings,
    /// The admin server.
    pub admin: admin::Settings,
    /// Logs of the program itself.
    pub log: log::Settings,
    /// The access log; `None` when it is off.
    pub access_log: Option<access_log::Settings>,
    /// Threads that relay; `None` for one per CPU that the process may use.
    pub threads: Option<usize>,
    /// How long open streams may go on after SIGTERM.
    pub grace_period: Duration,
}

impl Settings {
    /// The defaults, for this one pair and without looking at files, environment or flags.
    pub fn of_pair(pair: listen::Pair) -> Settings {
        Settings {
            pairs: vec![pair],
            relay: relay::Settings::default(),
            observe: observe::Settings::default(),
            export: export::Settings::default(),
            admin: admin::Settings::default(),
            log: log::Settings::default(),
            access_log: None,
            threads: None,
            grace_period: Duration::ZERO,
        }
    }
}
