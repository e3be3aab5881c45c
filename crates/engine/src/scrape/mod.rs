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

pub use families::SOURCES;
pub use request::{Dial, Wire};
pub use scraper::{Engines, Scraper};
pub use state::{Page, Ratio, RatioSource, State, Tracker};
pub use watch::{Failure, Measurements, Stillness, Watch};

/// Settings for scraping the engine's own metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two scrapes of one engine, with a jitter of up to a tenth in both directions so that many sidecars
    /// do not scrape in step.
    pub interval: Duration,
    /// Time limit of one scrape, including connecting.
    pub timeout: Duration,
    /// Maximum size of a page in bytes.
    pub page_bytes: usize,
    /// The target of each listener. A listener with `None` or without an entry is not scraped.
    pub targets: Vec<Option<Target>>,
    /// For each listener, the index of the first listener with the same server. The target of this first listener
    /// applies to all listeners of the server. A listener without an entry has its own server.
    pub servers: Vec<usize>,
}

/// The metrics page of one engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The configured path; `None` to detect it.
    pub path: Option<String>,
    /// The port of the page, if it differs from the traffic port.
    pub port: Option<u16>,
    /// `gen_ai.provider.name` of the engine, if configured.
    pub engine: Option<&'static str>,
    /// Whether to read a page even if reading changes its values for other readers (llama.cpp's averages).
    pub draining: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            page_bytes: 8 * 1024 * 1024,
            targets: Vec::new(),
            servers: Vec::new(),
        }
    }
}
