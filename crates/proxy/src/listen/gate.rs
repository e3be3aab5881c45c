//! Opens and closes one listener while the program runs.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::listen::bind::{First, SocketFile};
use crate::listen::error::Error;
use crate::listen::settings::Address;
use crate::relay::{Listening, Phase, Relay};

/// The gate of one listener. While the gate is closed, the kernel refuses connections to the address, as if no program
/// listened there. Open connections are not affected.
#[derive(Debug)]
pub struct Gate {
    address: Address,
    relay: Arc<Relay>,
    /// The threads that serve the listener.
    threads: Vec<UnboundedSender<Opened>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A socket opened before the first [`Gate::open`].
    first: Option<First>,
    /// Set while the gate is open.
    close: Option<watch::Sender<bool>>,
    /// Alive until every thread has closed its socket.
    served: Weak<()>,
}

/// A listening socket of one thread.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) socket: OwnedFd,
    /// Becomes true when the gate closes.
    pub(crate) closing: watch::Receiver<bool>,
    _listening: Listening,
    /// The socket file, removed when the last thread stops listening.
    _file: Option<Arc<SocketFile>>,
    _served: Arc<()>,
}

impl Gate {
    pub(crate) fn new(
        address: Address,
        first: Option<First>,
        relay: Arc<Relay>,
        threads: Vec<UnboundedSender<Opened>>,
    ) -> Gate {
        Gate { address, relay, threads, state: Mutex::new(State { first, ..State::default() }) }
    }

    /// Starts listening, unless the gate is already open. Returns false during a drain and while the previous sockets
    /// are still being closed.
    ///
    /// # Errors
    /// As [`bind`](crate::listen::bind).
    pub fn open(&self) -> Result<bool, Error> {
        let mut state = self.state();
        if state.close.is_some() {
            return Ok(true);
        }
        if state.served.strong_count() > 0 || self.relay.drain().phase() >= Phase::Closing {
            return Ok(false);
        }
        let settings = self.relay.settings();
        let first = match state.first.take() {
            Some(first) => first,
            None => First::open(&self.address, &settings)?,
        };
        let sockets = first.sockets(&self.address, self.threads.len(), &settings)?;
        let (close, closing) = watch::channel(false);
        let served = Arc::new(());
        state.served = Arc::downgrade(&served);
        state.close = Some(close);
        for (thread, socket) in self.threads.iter().zip(sockets) {
            let opened = Opened {
                socket,
                closing: closing.clone(),
                _listening: self.relay.drain().listen(),
                _file: first.file.clone(),
                _served: Arc::clone(&served),
            };
            // If the thread has ended, the socket is dropped.
            thread.send(opened).ok();
        }
        Ok(true)
    }

    /// Stops listening. Clients that have begun to connect are still accepted.
    pub fn close(&self) {
        if let Some(close) = self.state().close.take() {
            close.send_replace(true);
        }
    }

    /// True between [`Gate::open`] and [`Gate::close`].
    pub fn is_open(&self) -> bool {
        self.state().close.is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
