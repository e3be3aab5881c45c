//! The relay's statistics as metrics.

use std::sync::Arc;
use std::sync::PoisonError;

use crate::app::monitors::Interceptions;
use tokometer_observe::input::Direction;
use tokometer_proxy::listen::Interception;
use tokometer_proxy::relay::Full;
use tokometer_proxy::relay::Relay;
use tokometer_telemetry::export::Collect;
use tokometer_telemetry::export::Points;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

/// The listeners' connections, and how each intercepts its server's traffic.
pub(super) struct Listeners {
    pub(super) relay: Arc<Relay>,
    pub(super) interceptions: Interceptions,
}

impl Collect for Listeners {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, stats) in self.relay.stats().iter().enumerate() {
            let mut put = |id, key, word: &'static str, n: u64| points.put_at(listener, id, &[(key, word.into())], n);
            for why in Full::ALL {
                put(Id::ConnectionsRefused, Key::Reason, why.as_str(), stats.refused(why));
            }
            put(Id::ConnectFailures, Key::Reason, "refused", stats.connect_failures());
            put(Id::ConnectFailures, Key::Reason, "timeout", stats.connect_timeouts());
            put(Id::RelayIo, Key::Direction, "request", stats.bytes(Direction::Request));
            put(Id::RelayIo, Key::Direction, "response", stats.bytes(Direction::Response));
            points.put_at(listener, Id::ConnectionsOpened, &[], stats.accepted());
            points.put_at(listener, Id::ConnectionsOpen, &[], stats.open());
            points.put_at(listener, Id::HandshakeFailures, &[], stats.handshake_failures());
        }
        let interceptions = self.interceptions.lock().unwrap_or_else(PoisonError::into_inner);
        for (listener, found) in interceptions.iter().enumerate() {
            if let Some(Interception { mode, result }) = *found {
                let known = [(Key::Mode, mode.into()), (Key::Result, result.into())];
                points.put_at(listener, Id::Interception, &known, 1.0);
            }
        }
        points.put(Id::EventLoopLag, &[], self.relay.lag());
    }
}
