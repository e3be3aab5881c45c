//! What a person may set about the relay.

use std::time::Duration;

/// What a client gets when the server cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unreachable {
    /// HTTP/1: `503` with a JSON error that names tokometer and the address; a reset for what is not HTTP/1.
    #[default]
    Http503,
    /// A TCP reset.
    Reset,
}

/// How connections are relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What a client gets when the server cannot be reached.
    pub unreachable: Unreachable,
    /// How long a connect to the server may take; `None` for as long as the kernel tries.
    pub connect_timeout: Option<Duration>,
    /// Most bytes kept per direction while the other side does not take them; reading stops above it.
    pub remainder_bytes: usize,
    /// Size of the per-thread read buffer.
    pub scratch_bytes: usize,
    /// TCP keep-alive probes start after this idle time, on both sides; `None` turns them off.
    pub keepalive: Option<Duration>,
    /// Close a connection on which nothing moved for this long; `None` (default) never does.
    pub idle_timeout: Option<Duration>,
    /// Close a connection of which one side has finished when nothing moved for this long; `None` never does.
    pub half_close_timeout: Option<Duration>,
    /// Maximum of connections that are open at a time; `None` for as many as the process has descriptors for.
    pub max_connections: Option<usize>,
    /// Other processes of the same user may listen on the same TCP addresses (SO_REUSEPORT).
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
