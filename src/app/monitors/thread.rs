//! A thread that repeats a task.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A thread that repeats a task. Dropping it ends the thread without waiting.
#[derive(Debug)]
pub(in crate::app) struct Monitor {
    thread: Thread,
    signals: Arc<Signals>,
}

#[derive(Debug, Default)]
struct Signals {
    stop: AtomicBool,
    run: AtomicBool,
}

impl Monitor {
    /// Runs `task` after `delay`, and again after each delay that it returns.
    pub(in crate::app) fn start(
        name: &str,
        mut delay: Duration,
        mut task: impl FnMut() -> Duration + Send + 'static,
    ) -> io::Result<Monitor> {
        let signals = Arc::new(Signals::default());
        let received = Arc::clone(&signals);
        let started = thread::Builder::new().name(name.to_owned()).spawn(move || {
            while received.wait(delay) {
                delay = task();
            }
        })?;
        Ok(Monitor { thread: started.thread().clone(), signals })
    }

    /// Returns a function that runs the task now, or again after the current run. The function does not block.
    pub(in crate::app) fn trigger(&self) -> impl Fn() + Send + Sync + 'static {
        let (thread, signals) = (self.thread.clone(), Arc::clone(&self.signals));
        move || {
            signals.run.store(true, Ordering::Release);
            thread.unpark();
        }
    }
}

impl Signals {
    /// Waits for this time, or until the task is triggered; false once the monitor is dropped.
    fn wait(&self, delay: Duration) -> bool {
        let end = Instant::now() + delay;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return false;
            }
            let rest = end.saturating_duration_since(Instant::now());
            if self.run.swap(false, Ordering::Acquire) || rest.is_zero() {
                return true;
            }
            thread::park_timeout(rest);
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.signals.stop.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn triggered_task_runs_before_its_time_and_ends_with_its_monitor() {
        let (ran, runs) = mpsc::channel();
        let monitor = Monitor::start("test", NEVER, move || {
            ran.send(()).unwrap();
            NEVER
        })
        .unwrap();
        let trigger = monitor.trigger();
        for _ in 0..3 {
            trigger();
            runs.recv().unwrap();
        }
        drop(monitor);
        assert!(runs.recv().is_err(), "the thread has ended, and with it the sender");
    }
}
