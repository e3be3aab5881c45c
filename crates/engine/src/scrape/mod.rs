//! The engine's own metrics: scraped every few seconds and converted to common names.
//!
//! A separate thread requests the engine's page, on connections of its own. `exposition` parses the page in fixed
//! memory, and `families` finds the known names. `state` keeps the series with these names, and computes how counts
//! increase between pages. `watch` keeps the states of the last hour.

pub mod exposition;

mod families;
mod metrics;
mod request;
mod scraper;
mod state;
mod watch;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_decode::Engine;
use tokometer_settings as form;

pub use families::SOURCES;
pub use request::{Dial, Wire};
pub use scraper::{Engines, Scraper};
pub use state::{Page, Ratio, RatioSource, State, Tracker};
pub use watch::{Failure, Measurements, Stillness, Watch};

/// Scraping of the engine's own metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// Whether to scrape the engine's metrics. null: true, except for llama.cpp. Each scrape of llama.cpp resets two
    /// averages, so other scrapers would get wrong values for them.
    pub enabled: Option<bool>,
    /// Path of the engine's Prometheus metrics. null: `/metrics`, or `/prometheus/metrics` for TensorRT-LLM, which
    /// deletes the content of `/metrics` on every read. If `observe.engine` is `auto`, an `OPTIONS` request determines
    /// which path to use.
    pub path: Option<String>,
    /// Port of the engine's metrics. null: the port of the upstream, or 8002 with `observe.engine: triton`.
    #[schemars(range(min = 1, max = 65535))]
    pub port_number: Option<u16>,
    /// Interval between scrapes. After failed scrapes, the interval increases to at most one minute.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["100ms", "1h"]))]
    pub interval: Duration,
    /// Time limit of one scrape, including connecting.
    #[serde(skip)]
    pub timeout: Duration,
    /// Maximum size of a page in bytes.
    #[serde(skip)]
    pub page_bytes: usize,
    /// The target of each listener. A listener with `None` or without an entry is not scraped.
    #[serde(skip)]
    pub targets: Vec<Option<Target>>,
    /// For each listener, the index of the first listener with the same server. The target of this first listener
    /// applies to all listeners of the server. A listener without an entry has its own server.
    #[serde(skip)]
    pub servers: Vec<usize>,
}

/// The metrics page of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The configured path; `None` to detect it.
    pub path: Option<String>,
    /// The port of the page, if it differs from the traffic port.
    pub port: Option<u16>,
    /// The engine, if configured.
    pub engine: Option<Engine>,
    /// Whether to read a page even if reading changes its values for other readers (llama.cpp's averages).
    pub draining: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            enabled: None,
            path: None,
            port_number: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            page_bytes: 8 * 1024 * 1024,
            targets: Vec::new(),
            servers: Vec::new(),
        }
    }
}
