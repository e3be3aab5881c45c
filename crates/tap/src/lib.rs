//! Observes connections from a copy of their packets: no proxy, no effect on the traffic.
//!
//! [`Tap`] takes [`Packet`]s in the order of capture. It parses their headers, puts the bytes of each TCP connection in
//! order and passes them to the same observers that the proxy uses ([`tokometer_observe::input`]). [`file`](mod@file)
//! reads packets from pcap and pcapng files, [`capture`] from the network.
//!
//! Nothing is guessed: bytes that the capture lacks detach their connection (`capture_gap`), and a connection whose
//! beginning was not captured is observed from its next request on.

pub mod capture;
pub mod file;
mod flow;
mod packet;
mod segment;
mod servers;
mod settings;
mod shared;
mod stats;
mod tap;
#[cfg(test)]
mod tests;

pub use packet::{Clock, Link, OwnedPacket, Packet};
pub use servers::{Evidence, Servers};
pub use settings::{Limits, Server};
pub use stats::{Gauge, Peak, Stats};
pub use tap::Tap;
