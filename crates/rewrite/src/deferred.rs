//! Passes bytes and other inputs to the observers of requests, shortly after the bytes were forwarded.
//!
//! With hundreds of streams, an observer's memory is not in the CPU cache when an event arrives. Passing several events
//! at once therefore costs little more than passing one. It also delays neither a response nor the client's next
//! request.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use tokometer_observe::input::{Close, Direction, TraceParent};
use tokometer_proxy::relay::{Guard, lateness};

/// Maximum delay of an item. The state of requests in flight is updated this much later; recorded times are exact.
const DELAY: Duration = Duration::from_millis(100);

/// After passing items of this total size, the task yields to the connections.
const STEP_BYTES: usize = 64 << 10;

/// Total size of all items from which each call of `add` also passes old items.
const MAX_BYTES: usize = 2 << 20;

/// Maximum capacity of each empty buffer.
const KEPT_BYTES: usize = 512 << 10;

/// Bytes after which the totals of a request are updated.
const REPORT_BYTES: u64 = 256 << 10;

/// The items of the requests of one listener on one thread.
#[derive(Default)]
pub(crate) struct DeferredInput(Mutex<State>);

#[derive(Default)]
struct State {
    last_id: u64,
    requests: HashMap<u64, Request>,
    new: Batch,
    /// Items that are being passed, ordered by request. The first `passed` items are done.
    old: Batch,
    passed: usize,
    has_task: bool,
}

/// A request and its response, which the observer sees as a separate connection.
struct Request {
    guard: Guard,
    /// Bytes of the request and of the response that the totals do not contain yet.
    unreported: [u64; 2],
}

#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    /// The bytes of the items.
    bytes: Vec<u8>,
    /// Size of the items with their bytes.
    size: usize,
}

struct Item {
    request: u64,
    at: Instant,
    /// Lateness of the thread when the item arrived; the thread may be late again before the item is passed.
    late_ms: u32,
    input: Input,
}

/// An input of a request's observer.
pub(crate) enum Input {
    /// These bytes of a message were forwarded.
    Bytes(Direction, Range<usize>),
    /// The server received this trace context.
    Trace(TraceParent),
    /// The server closed the connection.
    Finished,
    /// The client stopped accepting bytes.
    Waits,
    /// The client accepts bytes again, after it accepted none since this time.
    Blocked(Instant),
    /// The request ended.
    Closed(Close),
}

impl DeferredInput {
    /// Begins a request, and returns its id.
    pub(crate) fn begin(&self, guard: Guard) -> u64 {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.requests.insert(id, Request { guard, unreported: [0; 2] });
        id
    }

    /// Passes this item to the request's observer within [`DELAY`]. Items of ended requests are dropped.
    pub(crate) fn push(self: &Arc<Self>, request: u64, input: Input) {
        self.push_to(&mut self.lock(), request, input);
    }

    /// As [`push`](Deferred::push), for the bytes that `write` appends.
    pub(crate) fn push_bytes(self: &Arc<Self>, request: u64, direction: Direction, write: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let start = state.new.bytes.len();
        write(&mut state.new.bytes);
        let bytes = start..state.new.bytes.len();
        self.push_to(&mut state, request, Input::Bytes(direction, bytes));
    }

    /// Passes all items now.
    pub(crate) fn flush(&self) {
        self.lock().flush();
    }

    fn push_to(self: &Arc<Self>, state: &mut State, request: u64, input: Input) {
        let at = Instant::now();
        let item = Item { request, at, late_ms: lateness(at).total_ms, input };
        state.add(item);
        if !std::mem::replace(&mut state.has_task, true)
            // Without a runtime (it is stopping), the items are passed when the state is dropped.
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(Arc::clone(self).pass());
        }
    }

    async fn pass(self: Arc<Self>) {
        loop {
            tokio::time::sleep(DELAY).await;
            let now = Instant::now();
            while self.lock().pass_until(now) {
                tokio::task::yield_now().await;
            }
            if self.lock().is_done() {
                return;
            }
        }
    }

    /// Ignores poisoning: no code panics while it holds the lock, because observers' panics are caught.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Passes some of the items that arrived until `end`; false if there are none.
    fn pass_until(&mut self, end: Instant) -> bool {
        if self.old.items.is_empty() {
            if self.new.items.first().is_none_or(|first| first.at > end) {
                return false;
            }
            self.rotate();
        }
        self.pass(STEP_BYTES);
        true
    }

    /// True if no item is left: the task ends.
    fn is_done(&mut self) -> bool {
        if !self.new.items.is_empty() || !self.old.items.is_empty() {
            return false;
        }
        (self.new, self.old) = Default::default();
        self.has_task = false;
        true
    }

    /// Adds a new item. Limits the memory if items arrive faster than the task passes them.
    fn add(&mut self, item: Item) {
        let size = item.size();
        self.new.items.push(item);
        self.new.size += size;
        if self.new.size + self.old.size >= MAX_BYTES {
            self.pass(2 * size);
            if self.old.items.is_empty() {
                self.rotate();
            }
        }
    }

    fn flush(&mut self) {
        self.pass(usize::MAX);
        self.rotate();
        self.pass(usize::MAX);
    }

    /// Replaces the old items, all of which were passed, with the new items.
    fn rotate(&mut self) {
        std::mem::swap(&mut self.new, &mut self.old);
        // Stable, so the items of a request stay in order.
        self.old.items.sort_by_key(|item| item.request);
    }

    /// Passes old items of at least this size.
    fn pass(&mut self, mut size: usize) {
        while size > 0
            && let Some(&Item { request: id, .. }) = self.old.items.get(self.passed)
        {
            let mut request = self.requests.get_mut(&id);
            let mut closed = false;
            while size > 0
                && let Some(item) = self.old.items.get(self.passed).filter(|item| item.request == id)
            {
                self.passed += 1;
                size = size.saturating_sub(item.size());
                closed |= request.as_mut().is_some_and(|request| request.pass(item, &self.old.bytes));
            }
            if closed {
                self.requests.remove(&id);
            }
        }
        if self.passed >= self.old.items.len() {
            self.old.clear();
            self.passed = 0;
        }
    }
}

impl Drop for State {
    /// Passes the rest. Requests that are still open end here.
    fn drop(&mut self) {
        self.flush();
    }
}

impl Batch {
    /// Keeps small buffers.
    fn clear(&mut self) {
        self.items.clear();
        self.items.shrink_to(KEPT_BYTES / size_of::<Item>());
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.size = 0;
    }
}

impl Item {
    fn size(&self) -> usize {
        let bytes = if let Input::Bytes(_, range) = &self.input { range.len() } else { 0 };
        size_of::<Item>() + bytes
    }
}

impl Request {
    /// Passes an item to the observer; true if it is the last.
    fn pass(&mut self, item: &Item, bytes: &[u8]) -> bool {
        let Item { at, late_ms, ref input, .. } = *item;
        self.guard.late_until(late_ms);
        match input {
            Input::Bytes(direction, range) => {
                let bytes = bytes.get(range.clone()).unwrap_or_default();
                self.guard.seen(*direction, bytes, at);
                self.count(*direction, bytes.len() as u64);
            }
            Input::Trace(sent) => self.guard.sent_trace(*sent),
            Input::Finished => self.guard.finished(Direction::Response, at),
            Input::Waits => self.guard.waits(Direction::Response, at),
            Input::Blocked(since) => self.guard.blocked(Direction::Response, *since, at),
            Input::Closed(close) => {
                self.report();
                self.guard.end(*close, at);
                return true;
            }
        }
        false
    }

    fn count(&mut self, direction: Direction, bytes: u64) {
        let [request, response] = &mut self.unreported;
        let unreported = if direction == Direction::Request { request } else { response };
        *unreported += bytes;
        if *unreported >= REPORT_BYTES {
            self.report();
        }
    }

    /// Updates the totals.
    fn report(&mut self) {
        for (direction, unreported) in [Direction::Request, Direction::Response].into_iter().zip(&mut self.unreported) {
            self.guard.stats().bytes(direction).add(std::mem::take(unreported));
        }
    }
}

impl Drop for Request {
    /// If the request is still open, the guard then records its end.
    fn drop(&mut self) {
        self.report();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tokometer_observe::input::{Connection, Observe, Observer};
    use tokometer_proxy::relay::{Drain, Relay, Settings};

    /// Everything that the observers got, by connection.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<(u64, String)>>>);

    struct Logger(u64, Log);

    impl Log {
        fn of(&self, id: u64) -> Vec<String> {
            let log = self.0.lock().unwrap();
            log.iter().filter(|(of, _)| *of == id).map(|(_, text)| text.clone()).collect()
        }
    }

    impl Logger {
        fn log(&self, text: String) {
            self.1.0.lock().unwrap().push((self.0, text));
        }
    }

    impl Observe for Log {
        fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
            Some(Box::new(Logger(connection.id, self.clone())))
        }

        fn panicked(&self) {}
    }

    impl Observer for Logger {
        fn seen(&mut self, _: Direction, bytes: &[u8], _: Instant) {
            self.log(String::from_utf8_lossy(bytes).into());
        }

        fn finished(&mut self, _: Direction, _: Instant) {
            self.log("finished".into());
        }

        fn blocked(&mut self, _: Direction, _: Instant, _: Instant) {
            self.log("blocked".into());
        }

        fn closed(&mut self, close: Close, _: Instant) {
            self.log(format!("{close:?}"));
        }

        fn idle(&self) -> bool {
            false
        }
    }

    /// Requests 1 to `requests`, and what their observers get.
    fn requests(requests: u64) -> (Arc<DeferredInput>, Log) {
        let log = Log::default();
        let relay = Relay::new(Settings::default(), 1, Arc::new(log.clone()), Drain::new());
        let deferred = Arc::<DeferredInput>::default();
        for _ in 0..requests {
            deferred.begin(Guard::of_request(&relay, 0, "server".into(), None));
        }
        (deferred, log)
    }

    fn push(deferred: &Arc<DeferredInput>, request: u64, text: &str) {
        deferred.push_bytes(request, Direction::Response, |bytes| bytes.extend_from_slice(text.as_bytes()));
    }

    #[tokio::test(start_paused = true)]
    async fn each_observer_gets_its_items_in_order() {
        let (deferred, log) = requests(100);
        for round in 0..3 {
            (1..=100).rev().for_each(|request| push(&deferred, request, &format!("{request}-{round}")));
        }
        deferred.push(7, Input::Blocked(Instant::now()));
        deferred.push(7, Input::Closed(Close::Drained));
        push(&deferred, 7, "after the end");
        assert!(log.0.lock().unwrap().is_empty());

        tokio::time::sleep(DELAY * 3 / 2).await;
        for request in 1..=100 {
            let mut expected: Vec<String> = (0..3).map(|round| format!("{request}-{round}")).collect();
            if request == 7 {
                expected.extend(["blocked".into(), "Drained".into()]);
            }
            assert_eq!(log.of(request), expected);
        }
        assert_eq!(deferred.lock().requests.len(), 99);
        assert!(!deferred.lock().has_task);
        assert_eq!(deferred.lock().new.bytes.capacity(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn flush_passes_all_items_at_once() {
        let (deferred, log) = requests(2);
        push(&deferred, 1, "a");
        push(&deferred, 2, "b");
        deferred.push(2, Input::Closed(Close::Drained));
        deferred.flush();
        assert_eq!(log.of(1), ["a"]);
        assert_eq!(log.of(2), ["b", "Drained"]);
        push(&deferred, 1, "c");
        tokio::time::sleep(DELAY * 2).await;
        assert_eq!(log.of(1), ["a", "c"]);
    }

    /// No task passes the items, as if this thread never waited.
    #[test]
    fn memory_is_limited_and_nothing_is_lost() {
        let (deferred, log) = requests(50);
        let text = "x".repeat(1000);
        for index in 0..20_000_u64 {
            push(&deferred, index % 50 + 1, &format!("{index} {text}"));
            let state = deferred.lock();
            assert!(state.new.size + state.old.size < MAX_BYTES / 2 * 3 + 2000);
        }
        drop(deferred);
        for request in 1..=50 {
            let expected = (0..400).map(|round| format!("{} {text}", round * 50 + request - 1));
            assert_eq!(log.of(request), expected.chain(["Drained".into()]).collect::<Vec<_>>());
        }
    }
}
