//! Data about a request that is not parsed from its bytes: network values, packets lost by a capture, and the trace
//! context sent in rewrite mode.

use crate::input::{Network, TraceParent};
use crate::measure::Record;

/// Boxed, because some requests have none of this data (recordings, Unix sockets).
#[derive(Debug, Default)]
pub(super) struct Transport(Option<Box<NetworkValues>>);

#[derive(Debug, Default)]
struct NetworkValues {
    /// The connection's values when the request began, and the latest values.
    begun: Option<Network>,
    latest: Option<Network>,
    lost_packets: bool,
    sent_trace: Option<TraceParent>,
}

impl Transport {
    fn known(&mut self) -> &mut NetworkValues {
        self.0.get_or_insert_default()
    }

    /// Sets the connection's values at the start of the request.
    pub(super) fn begin(&mut self, network: &Network) {
        self.known().begun = Some(*network);
    }

    /// Sets the connection's current values.
    pub(super) fn network(&mut self, network: &Network) {
        self.known().latest = Some(*network);
    }

    /// Records that the capture lost packets.
    pub(super) fn lost_packets(&mut self) {
        self.known().lost_packets = true;
    }

    /// Records the trace context that the proxy sent to the server.
    pub(super) fn sent_trace(&mut self, sent: TraceParent) {
        self.known().sent_trace = Some(sent);
    }

    /// Sets the fields of the record.
    pub(super) fn fill(&self, record: &mut Record) {
        let Some(known) = &self.0 else { return };
        record.capture_loss = known.lost_packets;
        record.request.sent_trace = known.sent_trace;
        let begun = known.begun.unwrap_or_default();
        record.network = during(&begun, &known.latest.unwrap_or_default());
    }
}

/// The change from `begun` (empty if unknown) to `latest`. The round-trip time is the latest one.
fn during(begun: &Network, latest: &Network) -> Network {
    Network {
        rtt: latest.rtt,
        retransmits: latest.retransmits.map(|now| now.saturating_sub(begun.retransmits.unwrap_or(0))),
        zero_window: latest.zero_window.map(|now| now.saturating_sub(begun.zero_window.unwrap_or_default())),
    }
}
