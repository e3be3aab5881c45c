//! What a person may set about reading the engine's metrics.

use std::time::Duration;

/// Reading the engine's own metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two readings of one engine; each is up to a tenth earlier or later, so that many sidecars do not ask in
    /// step.
    pub interval: Duration,
    /// Longest one reading may take, connect included.
    pub timeout: Duration,
    /// Most bytes of a page.
    pub page_bytes: usize,
    /// By pair, what is read; `None` (also past the end) for nothing.
    pub targets: Vec<Option<Target>>,
}

/// One engine's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The path that was set; `None` to find it.
    pub path: Option<String>,
    /// Its port where it is not that of the traffic.
    pub port: Option<u16>,
    /// `gen_ai.provider.name` of the engine where it was set.
    pub engine: Option<&'static str>,
    /// Read also a page whose figures another reader then lacks (llama.cpp's averages).
    pub draining: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            page_bytes: 8 * 1024 * 1024,
            targets: Vec::new(),
        }
    }
}
