//! Settings of a verification.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::client::Target;

tokometer_metrics::closed_enum! {
    /// API of the canaries.
    #[derive(ValueEnum)]
    pub enum Api {
        /// OpenAI chat completions.
        Chat = "chat",
        /// OpenAI completions, for models without a chat template.
        Completions = "completions",
    }
}

tokometer_metrics::closed_enum! {
    /// Name of a check.
    #[derive(Serialize, ValueEnum)]
    #[serde(rename_all = "snake_case")]
    pub enum CheckName {
        /// The server is reachable directly and through the proxy.
        Reach = "reach",
        /// The proxy adds at most --max-added to each median.
        Latency = "latency",
        /// Responses are identical, byte for byte where possible.
        Bytes = "bytes",
        /// Streams contain token counts even if the client does not request them.
        Usage = "usage",
        /// The engine reports queue times.
        Queue = "queue",
        /// The metrics on the admin server include every canary exactly once.
        Counts = "counts",
        /// Only the proxy can reach the server.
        Bypass = "bypass",
    }
}

/// Settings of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address of the proxy.
    pub relay: Target,
    /// Address of the server.
    pub upstream: Target,
    /// Address of the proxy's admin server.
    pub admin: Target,
    /// True if the user set the admin address: if it does not respond, the check fails instead of being unknown.
    pub admin_is_named: bool,
    /// Model of the canaries; `None`: the first one in `/v1/models`.
    pub model: Option<String>,
    /// API of the canaries.
    pub api: Api,
    /// Number of timed canaries on each side.
    pub requests: u32,
    /// Maximum tokens of each response.
    pub max_tokens: u32,
    /// Additional request headers, such as `Authorization`.
    pub headers: Vec<(String, String)>,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Maximum latency that the proxy may add to the median time to first byte, time to first token and inter-token
    /// gap.
    pub max_added: Duration,
    /// Checks whose failures and warnings are accepted.
    pub accept: Vec<CheckName>,
    /// Addresses of this host at which to look for the server; `None`: all except loopback and link-local ones.
    pub own_addresses: Option<Vec<IpAddr>>,
}

impl Settings {
    /// The defaults, for these two addresses.
    pub fn of(relay: Target, upstream: Target) -> Settings {
        Settings {
            relay,
            upstream,
            admin: Target::from(SocketAddr::from(([127, 0, 0, 1], 9464))),
            admin_is_named: false,
            model: None,
            api: Api::Chat,
            requests: 20,
            max_tokens: 32,
            headers: Vec::new(),
            timeout: Duration::from_secs(60),
            max_added: Duration::from_millis(5),
            accept: Vec::new(),
            own_addresses: None,
        }
    }
}
