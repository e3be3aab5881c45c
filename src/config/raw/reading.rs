//! The block `scrape`, and what a pair may have of its own of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reading the engine's own metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scrape {
    /// True reads the engine's metrics, false does not. null: reads them, except where reading changes what another reader
    /// gets (llama.cpp begins two averages anew with each reading; its counters stay).
    pub enabled: Option<bool>,
    /// Path of the engine's Prometheus page. null: `/metrics`, and for TensorRT-LLM `/prometheus/metrics`, because reading its
    /// `/metrics` empties it; which of them it is, is asked with an `OPTIONS` request unless `observe.engine` says it.
    pub path: Option<String>,
    /// Port of the page. null: that of the upstream, and 8002 with `observe.engine: triton`.
    #[schemars(range(min = 1, max = 65535))]
    pub port_number: Option<u64>,
    /// Milliseconds between two readings. After failures they become rarer, up to one in a minute.
    #[schemars(range(min = 100, max = 3600000))]
    pub interval_ms: u64,
    /// Milliseconds that one reading may take.
    #[schemars(range(min = 1, max = 600000))]
    pub timeout_ms: u64,
    /// Most bytes of a page; of a longer one nothing is told. It is read piece by piece and never kept.
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

/// Reading the metrics of one pair's server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PairScrape {
    /// True reads them, false does not. null: `scrape.enabled`.
    pub enabled: Option<bool>,
    /// Path of the page. null: `scrape.path`.
    pub path: Option<String>,
    /// Port of the page. null: `scrape.port_number`.
    #[schemars(range(min = 1, max = 65535))]
    pub port_number: Option<u64>,
}
