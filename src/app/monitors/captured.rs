//! Metrics of the packet capture.

use tokometer_observe::input::Direction;
use tokometer_tap::Stats;
use tokometer_telemetry::export::table::{Id, Key};
use tokometer_telemetry::export::{Collect, Points};

use crate::app::data_path::capturing::Captured;

impl Collect for Captured {
    fn collect(&self, points: &mut Points<'_>) {
        let stats: &Stats = &self.stats;
        points.put(Id::CapturePackets, &[], stats.packets.get());
        points.put(Id::CaptureLost, &[], stats.kernel_drops.get());
        let unread = [("malformed", &stats.malformed), ("fragment", &stats.fragments), ("truncated", &stats.truncated)];
        points.put_each(Id::CaptureUnread, Key::Reason, unread.map(|(why, n)| (why, n.get())));
        points.put(Id::CaptureSegments, &[], stats.segments.get());
        let irregular = [
            ("duplicate", &stats.duplicates),
            ("out_of_order", &stats.out_of_order),
            ("retransmitted", &stats.retransmitted),
            ("ignored", &stats.ignored),
            ("shed", &stats.shed),
        ];
        points.put_each(Id::CaptureIrregular, Key::Kind, irregular.map(|(kind, n)| (kind, n.get())));
        let connections = [
            ("opened", &stats.opened),
            ("attached", &stats.attached),
            ("synchronised", &stats.synchronised),
            ("tls", &stats.tls),
        ];
        points.put_each(Id::CaptureConnections, Key::Kind, connections.map(|(kind, n)| (kind, n.get())));
        points.put(Id::CaptureOpen, &[], stats.open());
        points.put(Id::CaptureUnsynchronised, &[], stats.unsynchronised.get());
        points.put(Id::CaptureGaps, &[], stats.gaps.get());
        let io = [("request", Direction::Request), ("response", Direction::Response)];
        points.put_each(Id::CaptureIo, Key::Direction, io.map(|(word, of)| (word, stats.bytes(of).get())));
        points.put(Id::CaptureUnobserved, &[], stats.unobserved_bytes.get());
        points.put(Id::CaptureReassembly, &[], stats.reassembly_bytes.get());
        points.put(Id::CaptureRingFull, &[], stats.ring_full.get());
        points.put(Id::CaptureRingUsed, &[], stats.ring_used.get());
    }
}
