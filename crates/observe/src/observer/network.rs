//! Network values of a connection, for the records of its requests.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crate::input::{Network, NetworkSource};

/// Empty if the traffic source provides no network values. Boxed to keep such connections small.
#[derive(Default)]
pub(super) struct ClientNetwork(Option<Box<NetworkValues>>);

#[derive(Default)]
struct NetworkValues {
    latest: Option<Network>,
    source: Option<Arc<dyn NetworkSource>>,
    /// Time of the connection read at which the source was last read.
    read_at: Option<Instant>,
    /// True if a request has begun on the connection.
    has_begun: bool,
}

impl ClientNetwork {
    /// Sets the current values.
    pub(super) fn set(&mut self, network: &Network) {
        self.0.get_or_insert_default().latest = Some(*network);
    }

    /// Sets the source of later values.
    pub(super) fn read_from(&mut self, source: Arc<dyn NetworkSource>) {
        self.0.get_or_insert_default().source = Some(source);
    }

    /// The values at the start of a request, to exclude earlier changes. `None` for the first request of a connection:
    /// nothing has changed before it, so a system call is saved.
    pub(super) fn at_begin(&mut self, at: Instant) -> Option<Network> {
        let known = self.0.as_mut()?;
        let is_first = !mem::replace(&mut known.has_begun, true);
        if is_first && known.latest.is_none() { None } else { self.now(at) }
    }

    /// The current values. The source is read at most once per `at`, because one read of the connection may contain
    /// hundreds of requests.
    pub(super) fn now(&mut self, at: Instant) -> Option<Network> {
        let known = self.0.as_mut()?;
        if known.read_at != Some(at)
            && let Some(source) = &known.source
        {
            known.read_at = Some(at);
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
    fn source_is_read_once_per_read_of_the_connection_until_it_has_nothing() {
        let first = Instant::now();
        let [second, third] = [1, 2].map(|ms| first + std::time::Duration::from_millis(ms));
        let mut network = ClientNetwork::default();
        assert_eq!((network.at_begin(first), network.now(first)), (None, None));
        let script = Arc::new(Script(Mutex::new(vec![None, resent(7), resent(5)])));
        network.read_from(Arc::clone(&script) as _);
        assert_eq!(network.at_begin(first), None, "nothing has happened on the connection");
        assert_eq!([network.now(first), network.at_begin(first), network.now(first)], [resent(5); 3]);
        assert_eq!([network.at_begin(second), network.now(second)], [resent(7); 2]);
        // The source returned `None` (closed socket): the last values are kept until new values are set.
        assert_eq!([network.now(third), network.now(first)], [resent(7); 2]);
        network.set(&resent(9).unwrap());
        assert_eq!(network.now(third), resent(9));
    }
    #[test]
    fn request_that_begins_during_the_first_one_excludes_earlier_changes() {
        let first = Instant::now();
        let second = first + std::time::Duration::from_millis(1);
        let mut network = ClientNetwork::default();
        network.read_from(Arc::new(Script(Mutex::new(vec![resent(5)]))));
        assert_eq!([network.at_begin(first), network.at_begin(second)], [None, resent(5)]);
    }
}
