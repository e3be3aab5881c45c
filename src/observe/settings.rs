//! What a person may set about observing.

use std::time::Duration;

/// How exchanges are read and measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// False relays without looking.
    pub enabled: bool,
    /// The engine behind us, when it is not to be recognised from what it sends.
    pub engine: Option<&'static str>,
    /// Most bytes of a request or response head; a longer one detaches the observer.
    pub head_bytes: usize,
    /// Most requests that may wait for their answers on one connection.
    pub pipeline_depth: usize,
    /// Most connections that are observed at a time; further ones are relayed unobserved and counted as shed.
    pub max_observed: usize,
    /// A gap between two tokens longer than this is a stall.
    pub stall: Duration,
    /// Fewest output tokens for which a decode rate is told.
    pub min_rate_tokens: u64,
    /// Shortest time between first and last token for which a decode rate is told.
    pub min_rate_span: Duration,
    /// Path prefixes to strip before a path is recognised (`/engine1`).
    pub path_prefixes: Vec<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            enabled: true,
            engine: None,
            head_bytes: 64 * 1024,
            pipeline_depth: 64,
            max_observed: 100_000,
            stall: Duration::from_secs(1),
            min_rate_tokens: 2,
            min_rate_span: Duration::from_millis(1),
            path_prefixes: Vec::new(),
        }
    }
}
