//! Capture of packets on the loopback interface: its records equal the proxy's, and it has no effect on the traffic.
//!
//! Without the capability `NET_RAW` these tests print SKIP.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in helper functions")]

mod command;
mod disturbed;
mod same;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokometer::replay::{Notebook, Replayed};
use tokometer_observe::observer::{Observers, Settings};
use tokometer_tap::capture::{self, Capture, Interface};
use tokometer_tap::{Limits, Server, Stats, Tap};

/// Whether this process can capture packets.
pub(crate) fn is_permitted() -> bool {
    Captured::start(&[1]).map(Captured::end).is_some()
}

/// A capture in this process. Each port is a listener.
pub(crate) struct Captured {
    pub(crate) notebook: Notebook,
    pub(crate) stats: Arc<Stats>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Captured {
    /// Captures these ports on the loopback interface; `None` without the capability.
    pub(crate) fn start(ports: &[u16]) -> Option<Captured> {
        let settings = capture::Settings {
            ports: ports.to_vec(),
            interface: Interface::Named("lo".to_owned()),
            buffer: tokometer_settings::Size(64 << 20),
        };
        let capture = match Capture::open(&settings) {
            Ok(capture) => capture,
            Err(capture::Error::NotPermitted) => {
                eprintln!("SKIP: capturing packets needs the capability NET_RAW");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let notebook = Notebook::default();
        let observers = Arc::new(Observers::new(Settings::default(), ports.len(), Arc::new(notebook.clone())));
        let servers = ports.iter().enumerate();
        let servers = servers.map(|(listener, port)| Server { address: None, port: *port, listener }).collect();
        let limits = Limits::new(observers.budget());
        let mut tap = Tap::new(servers, observers, limits, capture.clock());
        let (stats, stop) = (Arc::clone(tap.stats()), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            capture.run(&mut tap, || !stopped.load(Ordering::Relaxed), |error| panic!("{error}"));
        });
        Some(Captured { notebook, stats, stop, thread })
    }

    /// Waits until this condition on the counters is true.
    pub(crate) fn until(&self, what: &str, is: impl Fn(&Stats) -> bool) {
        let end = Instant::now() + crate::WAIT;
        while !is(&self.stats) {
            assert!(Instant::now() < end, "{what}: {:#?}", self.stats);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the capture; returns all records and events.
    pub(crate) fn end(self) -> Replayed {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.notebook.take()
    }
}
