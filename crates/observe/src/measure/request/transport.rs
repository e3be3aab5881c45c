//! What is known of a request besides its bytes: the network, packets that a capture lost, and the trace context that
//! rewrite mode sent.

use crate::input::{Network, TraceParent};
use crate::measure::Record;

/// See the module. Boxed: recordings show none of it, and clients on Unix sockets have none.
#[derive(Debug, Default)]
pub(super) struct Transport(Option<Box<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The connection's values when the request began, and the latest ones.
    begun: Option<Network>,
    latest: Option<Network>,
    lost_packets: bool,
    sent_trace: Option<TraceParent>,
}

impl Transport {
    fn known(&mut self) -> &mut Known {
        self.0.get_or_insert_default()
    }

    /// The values of the connection at the beginning of the request.
    pub(super) fn begin(&mut self, network: &Network) {
        self.known().begun = Some(*network);
    }

    /// The values of the connection now.
    pub(super) fn network(&mut self, network: &Network) {
        self.known().latest = Some(*network);
    }

    /// Packets were lost.
    pub(super) fn lost_packets(&mut self) {
        self.known().lost_packets = true;
    }

    /// The proxy sent this trace context to the server.
    pub(super) fn sent_trace(&mut self, sent: TraceParent) {
        self.known().sent_trace = Some(sent);
    }

    /// Sets the values of the record.
    pub(super) fn fill(&self, record: &mut Record) {
        let Some(known) = &self.0 else { return };
        record.capture_loss = known.lost_packets;
        record.sent_trace = known.sent_trace;
        let begun = known.begun.unwrap_or_default();
        record.network = known.latest.map(|latest| Box::new(during(&begun, &latest)));
    }
}

/// The values of a request that began with `begun`, which is empty if nothing was known, and ends with `latest`.
fn during(begun: &Network, latest: &Network) -> Network {
    Network {
        rtt: latest.rtt,
        retransmits: latest.retransmits.map(|now| now.saturating_sub(begun.retransmits.unwrap_or(0))),
        zero_window: latest.zero_window.map(|now| now.saturating_sub(begun.zero_window.unwrap_or_default())),
    }
}
