//! Runs the data path: threads with a runtime each, so that a connection stays on the thread that accepted it.
//!
//! pingora's own server is not used: it ends with a fixed sleep and `exit`, and a second one in the same process may
//! get the runtime of the first (pingora-runtime 0.9.1 keeps handles by recycled thread numbers).

use std::fmt;
use std::io;
use std::thread;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::watch;

use tokometer_proxy::listen::Worker;

/// A running data path. Dropping it stops it immediately: drain first (`relay::Drain`) to let streams finish.
pub struct Serving {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Serves each worker on a separate thread.
///
/// # Errors
/// If a thread or its runtime cannot be created.
pub fn serve(workers: Vec<Worker>) -> io::Result<Serving> {
    let mut serving = Serving { stop: watch::Sender::new(false), threads: Vec::new() };
    for (number, worker) in workers.into_iter().enumerate() {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut stop = serving.stop.subscribe();
        let thread = thread::Builder::new().name(format!("relay-{number}")).spawn(move || {
            runtime.block_on(async move {
                let accepting = tokio::spawn(worker.accept());
                // An error means that the sender is gone, which also means stop.
                stop.wait_for(|stop| *stop).await.ok();
                accepting.abort();
            });
            // Dropping the runtime drops the remaining connections; each notifies its observer.
        })?;
        serving.threads.push(thread);
    }
    Ok(serving)
}

impl Serving {
    /// Stops immediately; open connections are closed. Returns when all threads have ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic of that thread is already printed; there is nothing left to stop.
            thread.join().ok();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}
