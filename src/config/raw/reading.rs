//! The block `scrape`, and its overrides per listener.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scraping of the engine's own metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scrape {
    /// True scrapes the engine's metrics, false does not. null: scrapes them unless a scrape affects other scrapers
    /// (llama.cpp resets two averages on every scrape; its counters are not reset).
    pub enabled: Option<bool>,
    /// Path of the engine's Prometheus metrics. null: `/metrics`, except for TensorRT-LLM: `/prometheus/metrics`,
    /// because reading its `/metrics` empties it. Without `observe.engine`, an `OPTIONS` request determines which of
    /// them to use.
    pub path: Option<String>,
    /// Port of the engine's metrics. null: the port of the upstream, or 8002 with `observe.engine: triton`.
    #[schemars(range(min = 1, max = 65535))]
    pub port_number: Option<u64>,
    /// Milliseconds between scrapes. After failures the interval grows, up to one minute.
    #[schemars(range(min = 100, max = 3600000))]
    pub interval_ms: u64,
    /// Timeout of one scrape, in milliseconds.
    #[schemars(range(min = 1, max = 600000))]
    pub timeout_ms: u64,
    /// Maximum size of the metrics page in bytes; larger pages are ignored. The page is parsed in pieces and never
    /// stored.
    #[schemars(range(min = 1024, max = 1073741824))]
    pub page_bytes: u64,
}

impl Default for Scrape {
    fn default() -> Scrape {
        Scrape {
            enabled: None,
            path: None,
            port_number: None,
            interval_ms: 5000,
            timeout_ms: 2000,
            page_bytes: 8_388_608,
        }
    }
}

/// Scraping of the metrics of one listener's upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PairScrape {
    /// True scrapes this upstream, false does not. null: `scrape.enabled`.
    pub enabled: Option<bool>,
    /// Path of the metrics. null: `scrape.path`.
    pub path: Option<String>,
    /// Port of the metrics. null: `scrape.port_number`.
    #[schemars(range(min = 1, max = 65535))]
    pub port_number: Option<u64>,
}
