//! What is known of a connection's network, for the requests on it.

use std::sync::Arc;

use crate::input::{Network, NetworkSource};

/// See the module. Boxed: a connection whose source of traffic does not show the network has none.
#[derive(Default)]
pub(super) struct ClientNetwork(Option<Box<Known>>);

#[derive(Default)]
struct Known {
    latest: Option<Network>,
    source: Option<Arc<dyn NetworkSource>>,
}

impl ClientNetwork {
    /// The values now.
    pub(super) fn set(&mut self, network: &Network) {
        self.0.get_or_insert_default().latest = Some(*network);
    }

    /// Where later values can be read.
    pub(super) fn read_from(&mut self, source: Arc<dyn NetworkSource>) {
        self.0.get_or_insert_default().source = Some(source);
    }

    /// The values when a request begins: what happened since the last request is not part of this one. `None` if nothing
    /// has happened on the connection, which saves a system call.
    pub(super) fn at_begin(&mut self) -> Option<Network> {
        let is_used = self.0.as_ref()?.latest.is_some();
        if is_used { self.now() } else { None }
    }

    /// The values now, read if there is a source.
    pub(super) fn now(&mut self) -> Option<Network> {
        let known = self.0.as_mut()?;
        if let Some(source) = &known.source {
            match source.network() {
                Some(now) => known.latest = Some(now),
                None => known.source = None,
            }
        }
        known.latest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Returns these values, the last one first.
    #[derive(Default)]
    struct Script(Mutex<Vec<Option<Network>>>);

    impl NetworkSource for Script {
        fn network(&self) -> Option<Network> {
            self.0.lock().unwrap().pop().expect("the source is read no more often")
        }
    }

    fn resent(segments: u64) -> Option<Network> {
        Some(Network { retransmits: Some(segments), ..Network::default() })
    }

    #[test]
    fn source_is_read_at_ends_and_at_later_begins_until_it_has_nothing() {
        let mut network = ClientNetwork::default();
        assert_eq!((network.at_begin(), network.now()), (None, None));
        let script = Arc::new(Script(Mutex::new(vec![None, resent(7), resent(5)])));
        network.read_from(Arc::clone(&script) as _);
        assert_eq!(network.at_begin(), None, "nothing has happened on the connection");
        assert_eq!((network.now(), network.at_begin()), (resent(5), resent(7)));
        // The socket is closed: what was known last stays, and what is reported replaces it.
        assert_eq!((network.now(), network.now()), (resent(7), resent(7)));
        network.set(&resent(9).unwrap());
        assert_eq!(network.now(), resent(9));
    }
}
