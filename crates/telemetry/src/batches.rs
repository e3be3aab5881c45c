//! Passes values from the data path to a low-priority thread, which processes them in batches.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use std::{fmt, io};

use tokometer_observe::measure::Inbox;

/// Niceness of the thread (setpriority(2)): streams take precedence on a shared core.
const NICENESS: i32 = 10;

/// Maximum time that a value waits if `settle` is not called. Batches reduce the cost per value: waking the thread for
/// every short request would cost more than all other measurements of the request.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of waiting values at which the thread is woken before [`PAUSE`] has passed.
const MANY: usize = 256;

/// Processes the values of one batch.
type Process<T> = Box<dyn Fn(&mut dyn Iterator<Item = T>) + Send + Sync>;

/// A bounded queue and the thread that processes its values. Dropping it processes the remaining values.
pub(crate) struct Batches<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Shared by the data path and the thread. The data path takes the lock only after `stop`.
struct Shared<T> {
    waiting: Inbox<T>,
    process: Process<T>,
    thread: OnceLock<Thread>,
    /// True while the thread sleeps until a value is pushed or `stop` is called.
    idle: AtomicBool,
    over: AtomicBool,
    /// Locked during processing, so that `settle` returns only after a batch in progress is finished.
    settling: Mutex<()>,
}

impl<T: Send + 'static> fmt::Debug for Batches<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("waiting", &self.shared.waiting.len()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Batches<T> {
    /// Starts a thread with this name. The queue holds at most `capacity` values. `process` must consume every value of
    /// its iterator.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        name: &str,
        capacity: usize,
        process: impl Fn(&mut dyn Iterator<Item = T>) + Send + Sync + 'static,
    ) -> io::Result<Batches<T>> {
        let shared = Arc::new(Shared {
            waiting: Inbox::new(capacity),
            process: Box::new(process),
            thread: OnceLock::new(),
            idle: AtomicBool::new(false),
            over: AtomicBool::new(false),
            settling: Mutex::default(),
        });
        let settler = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            settler.thread.set(thread::current()).ok();
            // Lowering the priority needs no privilege; if it fails anyway, values are still processed.
            rustix::process::nice(NICENESS).ok();
            while settler.wait() {
                settler.settle();
            }
        })?;
        Ok(Batches { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Adds the value that `make` returns; false if the queue is full. Never blocks.
    pub(crate) fn push(&self, make: impl FnOnce() -> T) -> bool {
        let shared = &self.shared;
        let waiting = shared.waiting.push(make);
        if waiting == Some(MANY) || shared.idle.load(SeqCst) && shared.idle.swap(false, SeqCst) {
            shared.wake();
        }
        // After `stop` the thread no longer runs, so the value is processed here.
        if shared.over.load(SeqCst) {
            shared.settle();
        }
        waiting.is_some()
    }

    /// Number of waiting values.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.waiting.len()
    }

    /// Processes all waiting values. Call it on a thread outside the data path, never while processing a value.
    pub(crate) fn settle(&self) {
        self.shared.settle();
    }

    /// Blocks processing until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.shared.settling()
    }

    /// Processes the remaining values and ends the thread. Later values are processed on the calling thread.
    pub(crate) fn stop(&self) {
        self.shared.over.store(true, SeqCst);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            // If the thread panicked, the panic hook has already reported it. `settle` below processes its remaining
            // values.
            thread.join().ok();
        }
        self.shared.settle();
    }
}

impl<T: Send + 'static> Drop for Batches<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<T> Shared<T> {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Waits until a batch is due; false after `stop`.
    fn wait(&self) -> bool {
        let over = || self.over.load(SeqCst);
        loop {
            self.idle.store(true, SeqCst);
            if !self.waiting.is_empty() || over() {
                break;
            }
            thread::park();
        }
        self.idle.store(false, SeqCst);
        let since = Instant::now();
        while let Some(left) = PAUSE.checked_sub(since.elapsed()).filter(|_| self.waiting.len() < MANY && !over()) {
            thread::park_timeout(left);
        }
        !over()
    }

    fn settling(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self) {
        let _settling = self.settling();
        (self.process)(&mut self.waiting.drain());
    }
}
