//! Observers that record their calls.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Connection, Direction, Network, Observe, Observer};

/// A call to an observer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Accepted { listener: usize, peer: String, upstream: String },
    Seen(Direction, String),
    Finished(Direction),
    Waits,
    Blocked(Duration),
    Lost,
    LostPackets,
    Network(Network),
    Closed(Close),
}

/// All calls, with the number of the connection and the time since the start.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) start: Instant,
    pub(crate) calls: Arc<Mutex<Vec<(u64, Duration, Call)>>>,
    /// If set, no observer is created.
    pub(crate) refuses: bool,
    /// An observer panics if the bytes contain this text.
    pub(crate) panics_at: Option<&'static str>,
}

impl Log {
    pub(crate) fn new() -> Log {
        Log { start: Instant::now(), calls: Arc::default(), refuses: false, panics_at: None }
    }

    fn add(&self, connection: u64, at: Instant, call: Call) {
        self.calls.lock().unwrap().push((connection, at - self.start, call));
    }

    /// Takes all calls so far.
    pub(crate) fn take_timed(&self) -> Vec<(u64, Duration, Call)> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// Takes all calls so far; omits network calls.
    pub(crate) fn take(&self) -> Vec<Call> {
        let calls = self.take_timed().into_iter().map(|(_, _, call)| call);
        calls.filter(|call| !matches!(call, Call::Network(_))).collect()
    }

    /// The bytes of one direction in all calls so far.
    pub(crate) fn bytes(&self, of: Direction) -> Vec<u8> {
        let calls = self.calls.lock().unwrap();
        let seen = calls.iter().filter_map(|(_, _, call)| match call {
            Call::Seen(direction, bytes) if *direction == of => Some(bytes.as_bytes()),
            _ => None,
        });
        seen.collect::<Vec<_>>().concat()
    }
}

impl Observe for Log {
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
        let Connection { id, peer, listener, upstream, accepted } = connection;
        let (peer, upstream) = (peer.map(|peer| peer.to_string()).unwrap_or_default(), upstream.to_string());
        self.add(*id, *accepted, Call::Accepted { listener: *listener, peer, upstream });
        (!self.refuses).then(|| Box::new(Writer { id: *id, log: self.clone() }) as Box<dyn Observer>)
    }
}

struct Writer {
    id: u64,
    log: Log,
}

impl Observer for Writer {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if self.log.panics_at.is_some_and(|word| text.contains(word)) {
            panic!("as scripted");
        }
        self.log.add(self.id, at, Call::Seen(direction, text));
    }

    fn finished(&mut self, direction: Direction, at: Instant) {
        self.log.add(self.id, at, Call::Finished(direction));
    }

    fn waits(&mut self, _: Direction, since: Instant) {
        self.log.add(self.id, since, Call::Waits);
    }

    fn blocked(&mut self, _: Direction, since: Instant, until: Instant) {
        self.log.add(self.id, until, Call::Blocked(until - since));
    }

    fn lost(&mut self, at: Instant) {
        self.log.add(self.id, at, Call::Lost);
    }

    fn lost_packets(&mut self, at: Instant) {
        self.log.add(self.id, at, Call::LostPackets);
    }

    fn network(&mut self, network: &Network) {
        self.log.add(self.id, self.log.start, Call::Network(*network));
    }

    fn closed(&mut self, close: Close, at: Instant) {
        self.log.add(self.id, at, Call::Closed(close));
    }

    fn idle(&self) -> bool {
        true
    }
}
