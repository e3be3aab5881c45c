//! A thread that repeats a task.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{io, thread};

/// A thread that repeats a task. Dropping it ends the thread without waiting.
#[derive(Debug)]
pub(in crate::app) struct Monitor {
    _stop: Sender<()>,
}

impl Monitor {
    /// Runs `task` after `delay`, and again after each time that it returns.
    pub(in crate::app) fn start(
        name: &str,
        mut delay: Duration,
        mut task: impl FnMut() -> Duration + Send + 'static,
    ) -> io::Result<Monitor> {
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
                delay = task();
            }
        })?;
        Ok(Monitor { _stop: stop })
    }
}
