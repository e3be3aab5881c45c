//! An observer that records its calls.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Connection, Direction, Observe, Observer};

use crate::injected;

/// One call of an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Recorded only for [`Mood::Slow`], because on a busy machine any thread may be late.
    Late(Duration),
    /// Recorded only for [`Mood::Slow`].
    Waited(Duration),
    Seen(Direction, Vec<u8>, Instant),
    Finished(Direction, Instant),
    Waits(Direction, Instant),
    Blocked(Direction, Instant, Instant),
    Closed(Close),
}

/// When an observer panics, and what else it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Never.
    Calm,
    /// Never. The observer reports that its connections are expensive to observe.
    Costly,
    /// Never. The first call of `seen` blocks its thread for this long.
    Slow(Duration),
    /// When the connection is accepted.
    Accepting,
    /// At the n-th call of `seen`.
    Seeing(usize),
    /// In `finished`.
    Finishing,
    /// In `closed`.
    Closing,
    /// In `seen`, and again when the observer is dropped.
    Dropping,
}

/// Records of all connections.
pub(crate) struct Watcher {
    mood: Mood,
    idle: bool,
    panics: AtomicUsize,
    journal: Arc<Journal>,
}

#[derive(Default)]
struct Journal {
    connections: Mutex<Vec<Log>>,
    changed: Condvar,
}

/// The calls for one connection.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) listener: usize,
    pub(crate) upstream: String,
    pub(crate) calls: Vec<Call>,
}

impl Log {
    /// The observed bytes of one direction.
    pub(crate) fn bytes(&self, wanted: Direction) -> Vec<u8> {
        let mut bytes = Vec::new();
        for call in &self.calls {
            if let Call::Seen(direction, seen, _) = call
                && *direction == wanted
            {
                bytes.extend_from_slice(seen);
            }
        }
        bytes
    }

    /// How the connection ended; `None` while it is open.
    pub(crate) fn close(&self) -> Option<Close> {
        match self.calls.last() {
            Some(Call::Closed(close)) => Some(*close),
            _ => None,
        }
    }
}

impl Watcher {
    /// With `idle`, connections are always reported idle; otherwise only after a response ends with an empty line.
    pub(crate) fn new(mood: Mood, idle: bool) -> Arc<Watcher> {
        Arc::new(Watcher { mood, idle, panics: AtomicUsize::new(0), journal: Arc::default() })
    }

    /// Waits until connection `index` meets `wanted`.
    pub(crate) fn wait(&self, index: usize, wanted: impl Fn(&Log) -> bool) -> Log {
        let connections = self.journal.connections.lock().unwrap();
        let unmet = |connections: &mut Vec<Log>| !connections.get(index).is_some_and(&wanted);
        let (connections, timeout) =
            self.journal.changed.wait_timeout_while(connections, Duration::from_secs(20), unmet).unwrap();
        assert!(!timeout.timed_out(), "connection {index} of {connections:?}");
        connections[index].clone()
    }

    /// Number of observer panics that the relay reported.
    pub(crate) fn panics(&self) -> usize {
        self.panics.load(Ordering::SeqCst)
    }

    /// Waits for the end of connection `index`.
    pub(crate) fn closed(&self, index: usize) -> Log {
        self.wait(index, |log| log.close().is_some())
    }
}

impl Observe for Watcher {
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
        if self.mood == Mood::Accepting {
            injected::panic("accepted");
        }
        let mut connections = self.journal.connections.lock().unwrap();
        connections.push(Log {
            peer: connection.peer,
            listener: connection.listener,
            upstream: connection.upstream.to_string(),
            calls: Vec::new(),
        });
        let index = connections.len() - 1;
        Some(Box::new(CallRecorder {
            index,
            mood: self.mood,
            idle: self.idle,
            seen: 0,
            journal: Arc::clone(&self.journal),
        }))
    }

    fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::SeqCst);
    }
}

struct CallRecorder {
    index: usize,
    mood: Mood,
    idle: bool,
    seen: usize,
    journal: Arc<Journal>,
}

impl CallRecorder {
    fn note(&self, call: Call) {
        self.journal.connections.lock().unwrap()[self.index].calls.push(call);
        self.journal.changed.notify_all();
    }
}

impl Observer for CallRecorder {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.seen += 1;
        if self.mood == Mood::Seeing(self.seen) || self.mood == Mood::Dropping {
            injected::panic("seen");
        }
        self.idle |= direction == Direction::Response && bytes.ends_with(b"\n\n");
        self.note(Call::Seen(direction, bytes.to_vec(), at));
        if let (Mood::Slow(time), 1) = (self.mood, self.seen) {
            std::thread::sleep(time);
        }
    }

    fn late(&mut self, by: Duration) {
        if matches!(self.mood, Mood::Slow(_)) {
            self.note(Call::Late(by));
        }
    }

    fn waited(&mut self, by: Duration, _: Instant) {
        if matches!(self.mood, Mood::Slow(_)) {
            self.note(Call::Waited(by));
        }
    }

    fn is_costly(&self) -> bool {
        self.mood == Mood::Costly
    }

    fn finished(&mut self, direction: Direction, at: Instant) {
        if self.mood == Mood::Finishing {
            injected::panic("finished");
        }
        self.note(Call::Finished(direction, at));
    }

    fn waits(&mut self, direction: Direction, since: Instant) {
        self.note(Call::Waits(direction, since));
    }

    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        self.note(Call::Blocked(direction, since, until));
    }

    fn closed(&mut self, close: Close, _: Instant) {
        self.note(Call::Closed(close));
        if self.mood == Mood::Closing {
            injected::panic("closed");
        }
    }

    fn idle(&self) -> bool {
        self.idle
    }
}

impl Drop for CallRecorder {
    fn drop(&mut self) {
        if self.mood == Mood::Dropping {
            injected::panic("drop");
        }
    }
}
