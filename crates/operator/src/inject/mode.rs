//! How client connections reach the sidecar instead of the server.

use std::fmt;

/// How client connections reach the sidecar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `address-split`; if that is impossible, the error has the reason and an alternative.
    #[default]
    Auto,
    /// The server listens on 127.0.0.1, the sidecar on the pod's addresses, on the same port.
    AddressSplit,
    /// The server listens on a Unix socket, the sidecar on the server's port.
    Uds,
    /// Both listen on the same port; the kernel prefers the sidecar, which binds the address, to the server, which
    /// binds all addresses.
    ShadowBind,
    /// The server listens on the next port, the sidecar on the server's port.
    PortSwap,
    /// An nftables rule redirects connections to the sidecar.
    Redirect,
    /// The sidecar has its own port, to which a Service leads.
    Explicit,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 7] =
        [Mode::Auto, Mode::AddressSplit, Mode::Uds, Mode::ShadowBind, Mode::PortSwap, Mode::Redirect, Mode::Explicit];

    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::AddressSplit => "address-split",
            Mode::Uds => "uds",
            Mode::ShadowBind => "shadow-bind",
            Mode::PortSwap => "port-swap",
            Mode::Redirect => "redirect",
            Mode::Explicit => "explicit",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
