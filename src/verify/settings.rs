//! Settings of a verification.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use http::{HeaderName, HeaderValue};
use serde::Serialize;
use tokometer_settings::duration;

use crate::client::{Target, header_like};

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

/// The example in the error message of an invalid header.
const KEY: &str = "\"Authorization: Bearer KEY\"";

/// Settings of a verification: the arguments of `verify`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tokometer verify --relay http://localhost:8000 \\
    --upstream http://localhost:8001
  tokometer verify --relay http://localhost:8000 \\
    --upstream http://localhost:8001 --requests 100 --json
  tokometer verify --relay http://localhost:8000 \\
    --upstream http://localhost:8001 --accept bypass

The checks are reach, latency, bytes, usage, queue, counts and bypass. docs/how-to/verify.md describes them.

Exit codes: 0 no check failed (there may be warnings), 1 a check failed, 2 wrong usage.")]
pub struct Settings {
    /// URL of the proxy, to which clients connect
    #[arg(long, value_name = "URL")]
    pub relay: Target,
    /// URL of the server
    #[arg(long, value_name = "URL")]
    pub upstream: Target,
    /// URL of tokometer's admin server [default: http://127.0.0.1:9464, if it responds]
    #[arg(long, value_name = "URL")]
    pub admin: Option<Target>,
    /// Model to request [default: the first model that the server lists]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// API to call: chat, or completions for models without a chat template
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Api::Chat)]
    pub api: Api,
    /// Number of canaries per path (direct and proxied)
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..=10_000))]
    pub requests: u32,
    /// Maximum tokens per response
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(2..=10_000))]
    pub max_tokens: u32,
    /// Maximum latency that the proxy may add: median of proxied requests minus median of direct requests
    #[arg(long, value_name = "DURATION", default_value = "5ms", value_parser = duration::parse)]
    pub max_added: Duration,
    /// Timeout of one request
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::positive)]
    pub timeout: Duration,
    /// Request header, such as "Authorization: Bearer KEY"; can be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header_like(KEY))]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Check that is allowed to fail; can be repeated
    #[arg(long, value_name = "CHECK", value_enum)]
    pub accept: Vec<CheckName>,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// The admin server, if `admin` is not set. If it does not respond, the check is unknown instead of failed.
    #[arg(skip = Target::from(SocketAddr::from(([127, 0, 0, 1], 9464))))]
    pub default_admin: Target,
    /// Addresses of this host at which to look for the server; `None`: all except loopback and link-local ones
    #[arg(skip)]
    pub own_addresses: Option<Vec<IpAddr>>,
}
