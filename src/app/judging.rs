//! Evaluates waiting requests once a second, and keeps the sums for the last minutes.

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::Sender;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use tokometer_telemetry::live::InFlight;
use tokometer_telemetry::slo::Judge;
use tokometer_telemetry::slo::Window;

/// Time between evaluations. A miss is counted at the second one.
const PERIOD: Duration = Duration::from_secs(1);

/// The evaluating thread; dropping this stops it.
#[derive(Debug)]
pub(super) struct Judging {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Judging {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(judge: Arc<Judge>, in_flight: Arc<InFlight>, window: Arc<Window>) -> io::Result<Judging> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name("objectives".to_owned()).spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                judge.look(now);
                in_flight.tick(now);
                window.note(now, || judge.judged());
            }
        })?;
        Ok(Judging { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Judging {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread is already printed; there is nothing left to stop.
            thread.join().ok();
        }
    }
}
