//! User settings of the relay.

use std::time::Duration;

/// Response to the client when the server cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreachable {
    /// HTTP/1: `503` with a JSON error that contains "tokometer" and the address. Other protocols: a reset.
    #[default]
    Http503,
    /// A TCP reset.
    Reset,
}

/// How connections are relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Response to the client when the server cannot be reached.
    pub unreachable: Unreachable,
    /// Timeout for connecting to the server; `None` uses the kernel's.
    pub connect_timeout: Option<Duration>,
    /// Maximum bytes kept per direction while the other side accepts none; reading stops above it.
    pub remainder_bytes: usize,
    /// Size of the per-thread read buffer.
    pub scratch_bytes: usize,
    /// Idle time before TCP keep-alive probes start, on both sides; `None` disables them.
    pub keepalive: Option<Duration>,
    /// Closes a connection without traffic for this long; `None` (default) never does.
    pub idle_timeout: Option<Duration>,
    /// Closes a half-closed connection without traffic for this long; `None` never does.
    pub half_close_timeout: Option<Duration>,
    /// Maximum number of open connections; `None` for as many as the process has descriptors for.
    pub max_connections: Option<usize>,
    /// Allows other processes of the same user to listen on the same TCP addresses (SO_REUSEPORT).
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
