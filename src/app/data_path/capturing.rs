//! The data path of `tokometer tap`: one thread that reads captured packets. Traffic does not pass through it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tokometer_observe::observer::Observers;
use tokometer_proxy::relay::{Drain, Phase};
use tokometer_tap::capture::{self, Capture, Settings};
use tokometer_tap::{Limits, Server, Stats, Tap};

/// A running capture. Dropping it stops the capture.
#[derive(Debug)]
pub(in crate::app) struct Capturing {
    what: Captured,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Settings and counters of the capture.
#[derive(Clone, Debug)]
pub(in crate::app) struct Captured {
    settings: Settings,
    pub(in crate::app) stats: Arc<Stats>,
}

/// Why packets cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks the capability NET_RAW.
    #[error(
        "cannot capture packets: the capability NET_RAW is missing. In Kubernetes, write this to tap.json:\n  \
         {{\"securityContext\":{{\"runAsUser\":0,\"runAsNonRoot\":false,\"capabilities\":{{\"drop\":[\"ALL\"],\"add\":[\"NET_RAW\"]}}}}}}\n\
         and start tokometer in an ephemeral container with this capability (without --custom no \
         profile suffices, unless the pod has runAsUser 0):\n  \
         kubectl debug POD -it --image IMAGE --target CONTAINER --profile=general --custom tap.json -- tokometer tap --port {port}\n\
         Elsewhere: run tokometer as root, or run `setcap cap_net_raw+ep` on its binary."
    )]
    NotPermitted {
        /// The first captured port, for the example in the message.
        port: u16,
    },
    /// The interface does not exist, or the buffer cannot be allocated.
    #[error("tap.interface, tap.buffer: {0}")]
    Capture(capture::Error),
    /// The thread cannot be started.
    #[error("cannot start the thread that captures packets: {0}")]
    Thread(#[from] io::Error),
}

impl Capturing {
    /// Starts the capture. Each port is a listener, in the configured order.
    ///
    /// The capture counts as an open connection: during a drain it continues until no request is in flight.
    pub(super) fn start(settings: &Settings, observers: Arc<Observers>, drain: Drain) -> Result<Capturing, Error> {
        let capture = Capture::open(settings).map_err(|error| match error {
            capture::Error::NotPermitted => {
                Error::NotPermitted { port: settings.ports.first().copied().unwrap_or_default() }
            }
            error => Error::Capture(error),
        })?;
        let servers = settings.ports.iter().enumerate();
        let servers = servers.map(|(listener, port)| Server { address: None, port: *port, listener }).collect();
        let limits = Limits::new(observers.budget());
        let mut tap = Tap::new(servers, Arc::clone(&observers) as Arc<_>, limits, capture.clock());
        let what = Captured { settings: settings.clone(), stats: Arc::clone(tap.stats()) };
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, hold, mut logged) = (Arc::clone(&stop), drain.hold(), LoggedCounts::default());
        let thread = thread::Builder::new().name("capture".to_owned()).spawn(move || {
            let stats = Arc::clone(tap.stats());
            let keep_running = || {
                logged.log(&stats);
                match drain.phase() {
                    _ if stopped.load(Ordering::Relaxed) => false,
                    Phase::Running | Phase::Closing => true,
                    Phase::Draining => observers.open() > 0,
                    Phase::Forced => false,
                }
            };
            capture.run(
                &mut tap,
                keep_running,
                |error| tracing::warn!(%error, "The capture reported an error; continuing."),
            );
            drop(hold);
        })?;
        Ok(Capturing { what, stop, thread: Some(thread) })
    }

    /// Settings and counters of the capture.
    pub(in crate::app) fn what(&self) -> Captured {
        self.what.clone()
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked; the panic has already been printed.
            thread.join().ok();
        }
    }
}

impl Captured {
    /// Sentences that describe the capture, and the traffic that it cannot read.
    pub(in crate::app) fn notes(&self) -> Vec<String> {
        let Settings { ports, interface, .. } = &self.settings;
        let Stats { tls, kernel_drops, unsynchronised, .. } = &*self.stats;
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let mut notes = vec![format!(
            "capturing TCP port {} on interface {interface}: {} packets, {} connections open",
            ports.join(", "),
            self.stats.packets.get(),
            self.stats.open(),
        )];
        let mut note = |n: u64, text: &str| {
            if n > 0 {
                notes.push(format!("{n} {text}"));
            }
        };
        note(tls.get(), "connections carry TLS, which cannot be read: use `tokometer run`, which can terminate TLS");
        note(unsynchronised.get(), "connections were already in progress: they are read from their next request");
        note(kernel_drops.get(), "packets were lost: raise tap.buffer or the CPU limit");
        notes
    }
}

/// Counter values at the last log lines, so that only increases are logged.
#[derive(Debug, Default)]
struct LoggedCounts {
    tls: u64,
    kernel_drops: u64,
}

impl LoggedCounts {
    fn log(&mut self, stats: &Stats) {
        let (tls, kernel_drops) = (stats.tls.get(), stats.kernel_drops.get());
        if tls != self.tls {
            tracing::warn!(
                connections = tls,
                "Connections carry TLS, which a capture cannot read: their requests are not measured. Use `tokometer run`, which can terminate TLS."
            );
        }
        if kernel_drops != self.kernel_drops {
            tracing::warn!(
                packets = kernel_drops,
                "Packets were lost, because the capture was too slow: open requests are marked (`capture_loss`). Raise tap.buffer or the CPU limit."
            );
        }
        *self = LoggedCounts { tls, kernel_drops };
    }
}
