//! The block `tap`: the servers whose packets are captured, in place of listeners.

use crate::config::checked::problems::Problems;
use tokometer_proxy::listen::{Address, Listener};
use tokometer_tap::capture;

/// Maximum number of ports. The kernel compares every packet of the host with each of them.
const MAX_PORTS: usize = 64;

/// Checks the block; `None` if no port is set and connections are forwarded.
pub(super) fn capture(raw: &capture::Settings, problems: &mut Problems<'_>) -> Option<capture::Settings> {
    let ports = &raw.ports;
    for (index, port) in ports.iter().enumerate() {
        if *port == 0 || ports.iter().take(index).any(|earlier| earlier == port) {
            let message = format!("invalid port {port}; write each port of a server once, from 1 to 65535");
            problems.error(&format!("tap.ports[{index}]"), message);
        }
    }
    if ports.len() > MAX_PORTS {
        problems.error("tap.ports", format!("{} ports; at most {MAX_PORTS} are supported", ports.len()));
    }
    if raw.interface == capture::Interface::Named(String::new()) {
        problems.error("tap.interface", "the name is empty; write any, or a name such as eth0");
    }
    (!ports.is_empty()).then(|| raw.clone())
}

/// The servers as listeners: clients connect to them directly.
pub(super) fn listeners(settings: &capture::Settings) -> Vec<Listener> {
    let listener = |port: &u16| {
        let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: *port };
        Listener {
            name: port.to_string(),
            listen: address.clone(),
            upstream: address,
            tls: None,
            upstream_tls: None,
            rewrite: None,
        }
    };
    settings.ports.iter().map(listener).collect()
}
