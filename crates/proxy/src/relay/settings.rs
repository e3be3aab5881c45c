//! User settings of the relay: the block `relay` of the configuration. These comments are the block's documentation.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_settings as form;

/// Behaviour while the server cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unreachable {
    /// The listener is open only while the server accepts connections. It is closed until the server listens, and after
    /// the server has refused three consecutive connection attempts. Clients are then refused as they would be without
    /// tokometer. Open connections continue. A connection accepted shortly before the listener closes gets a `503`, as
    /// with `http_503`. Connection timeouts do not close the listener, and a listener with the upstream `original` is
    /// never closed.
    #[default]
    Refuse,
    /// The listener is always open. HTTP/1 clients get a `503` with a JSON error that names tokometer and the server's
    /// address; clients of other protocols get a TCP reset.
    #[serde(rename = "http_503")]
    Http503,
    /// The listener is always open. Clients get a TCP reset.
    Reset,
}

/// How connections are forwarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// What clients get while the server cannot be reached.
    #[schemars(extend("x-reload" = true))]
    pub unreachable: Unreachable,
    /// Timeout for connecting to the server. 0: the kernel's timeout.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "1h"], "x-reload" = true))]
    pub connect_timeout: Option<Duration>,
    /// Maximum bytes buffered per direction while the receiver accepts none; reading stops above it.
    #[serde(skip)]
    pub remainder_bytes: usize,
    /// Size of the per-thread read buffer.
    #[serde(skip)]
    pub scratch_bytes: usize,
    /// Idle time after which TCP keep-alive probes start, on connections to clients and to the server. 0: no probes.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "9h"]))]
    pub keepalive: Option<Duration>,
    /// Time without a byte in either direction after which a connection is closed. 0: never. Use a value above the
    /// longest time to first token, because the server may send nothing during that time.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "168h"], "x-reload" = true))]
    pub idle_timeout: Option<Duration>,
    /// Time without a byte after which a half-closed connection is closed. 0: never. If the client closed its side
    /// first, a request that is still open at the timeout gets the outcome `upstream_timeout`.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "168h"], "x-reload" = true))]
    pub half_close_timeout: Option<Duration>,
    /// Maximum number of open client connections. Near the maximum, connections without a request in progress are
    /// closed; above it, new connections are refused immediately and counted in `tokometer.connections.refused`. 0:
    /// derived from the open-file limit (the hard limit of `ulimit -n`) and the container's memory limit.
    #[serde(with = "form::written")]
    #[schemars(with = "u64", range(min = 0, max = 10000000), extend("x-reload" = true))]
    pub max_connections: Option<usize>,
    /// If true, the listeners' TCP ports can be shared with other processes of the same user that also set
    /// SO_REUSEPORT. Examples: an inference server on the same port (`inject --mode shadow-bind`), or the old process
    /// during a handover. If false, a port that is already in use is an error at startup.
    pub port_sharing: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            unreachable: Unreachable::default(),
            connect_timeout: Some(Duration::from_secs(10)),
            remainder_bytes: 64 * 1024,
            scratch_bytes: 64 * 1024,
            keepalive: Some(Duration::from_secs(60)),
            idle_timeout: None,
            half_close_timeout: Some(Duration::from_secs(300)),
            max_connections: None,
            port_sharing: false,
        }
    }
}
