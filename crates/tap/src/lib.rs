//! Observes connections from a copy of their packets: no proxy, no effect on the traffic.
//!
//! [`Tap`] receives [`Packet`]s in capture order. It parses their headers, reassembles the bytes of each TCP connection
//! and passes them to the same observers that the proxy uses ([`tokometer_observe::input`]). [`file`](mod@file) reads
//! packets from pcap and pcapng files, [`capture`] from the network.
//!
//! Nothing is guessed. If the capture lacks bytes, their connection is detached (`capture_gap`). An HTTP/1 connection
//! whose beginning was not captured, or that was detached, is observed from its next request. HTTP/2 and WebSocket
//! clients are observed only after they reconnect.

pub mod capture;
mod embryos;
pub mod file;
mod flow;
mod packet;
mod segment;
mod servers;
mod shared;
mod stats;
mod tap;
#[cfg(test)]
mod tests;

pub use packet::{Checksum, Clock, Link, OwnedPacket, Packet};
pub use servers::{Evidence, Server, Servers};
pub use shared::Limits;
pub use stats::{Gauge, Peak, Stats};
pub use tap::Tap;
