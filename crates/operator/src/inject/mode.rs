//! How clients come to the sidecar instead of the server.

use std::fmt;

/// A way of putting the sidecar between clients and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// `address-split`, and the reason and a way out where that cannot be.
    #[default]
    Auto,
    /// The server listens on 127.0.0.1, the sidecar on the pod's addresses, both on the same port.
    AddressSplit,
    /// The server listens on a Unix socket, the sidecar on its port.
    Uds,
    /// Both listen on the same port; the kernel prefers the sidecar, which has the address, to the server, which has all.
    ShadowBind,
    /// The server listens on the next port, the sidecar on the server's.
    PortSwap,
    /// A rule of nftables turns connections to the sidecar.
    Redirect,
    /// The sidecar has a port of its own, and a Service leads to it.
    Explicit,
}

impl Mode {
    /// Every one.
    pub const ALL: [Mode; 7] =
        [Mode::Auto, Mode::AddressSplit, Mode::Uds, Mode::ShadowBind, Mode::PortSwap, Mode::Redirect, Mode::Explicit];

    /// The word on the command line.
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
