//! The listeners as pingora services: one set per thread, so that the accepting thread also serves the connection.
//!
//! Listening sockets are closed without cutting off clients that have begun to connect.
//!
//! The kernel completes TCP handshakes and queues the connections until they are accepted. Closing the listening socket
//! resets the queued connections. A closing listener therefore first drops new SYNs, then accepts the queued
//! connections, then closes the socket. A client whose SYN is dropped retransmits it after one second (RFC 6298,
//! section 2). The inference server receives the retransmitted SYN if it listens on the same port.

use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::server::{Fds, ListenFds};
use pingora::services::Service as _;
use pingora::services::listening::Service;
use pingora::time::fast_timeout::set_fast_timeout_to_tokio_threshold;
use socket2::{SockFilter, SockRef};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::listen::bind::Bound;
use crate::listen::error::Error;
use crate::listen::frontend::Frontend;
use crate::listen::gate::{Gate, Opened};
use crate::listen::settings::Address;
use crate::listen::tls;
use crate::listen::upstream::Upstream;
use crate::listen::upstream::own::OwnConnections;
use crate::relay::{Phase, Relay, watch_lag};

/// The worker of one thread. It serves all listeners, and has its own listening socket for each open listener.
pub struct Worker {
    listeners: Vec<ThreadListener>,
    relay: Arc<Relay>,
}

/// One listener on one thread.
struct ThreadListener {
    frontend: Frontend,
    name: String,
    address: Address,
    opened: UnboundedReceiver<Opened>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("listeners", &self.listeners.len()).field("relay", &self.relay).finish()
    }
}

/// Opens these listeners and returns the workers that serve them, one per thread. A listener's number is its index in
/// `bound`.
///
/// # Errors
/// When a TLS file is missing or invalid, or a socket cannot be opened for each thread.
pub fn serve(bound: Vec<Bound>, relay: &Arc<Relay>, threads: usize) -> Result<Vec<Worker>, Error> {
    let (workers, gates) = gated(bound, relay, threads)?;
    gates.iter().try_for_each(|gate| gate.open().map(drop))?;
    Ok(workers)
}

/// Like [`serve`], but the listeners stay closed: the caller opens them with the returned gates.
///
/// # Errors
/// When a TLS file is missing or invalid.
pub fn gated(bound: Vec<Bound>, relay: &Arc<Relay>, threads: usize) -> Result<(Vec<Worker>, Vec<Gate>), Error> {
    // Makes pingora use tokio's timers for timeouts of at least one second: its own timers need a thread that wakes 100
    // times per second.
    set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
    let mut workers: Vec<Worker> = Vec::new();
    workers.resize_with(threads.max(1), || Worker { listeners: Vec::new(), relay: Arc::clone(relay) });
    let mut gates = Vec::new();
    let own = OwnConnections::new(bound.len());
    for (listener, bound) in bound.into_iter().enumerate() {
        let Bound { listener: settings, address, first } = bound;
        let keepalive = relay.settings().keepalive;
        let frontend = Frontend {
            relay: Arc::clone(relay),
            listener,
            tls: settings.tls.as_ref().map(tls::rotating_acceptor).transpose()?,
            upstream: Arc::new(Upstream::recorded(
                &settings.upstream,
                settings.upstream_tls.as_ref(),
                keepalive,
                Arc::clone(&own),
            )?),
            rewrite: None,
        };
        let mut threads = Vec::new();
        for worker in &mut workers {
            let (sender, opened) = unbounded_channel();
            threads.push(sender);
            let (mut frontend, name, address) = (frontend.clone(), settings.name.clone(), address.clone());
            frontend.rewrite = settings.rewrite.as_ref().map(|handlers| {
                let server = Arc::clone(&frontend.upstream);
                handlers.handler(relay, listener, server)
            });
            worker.listeners.push(ThreadListener { frontend, name, address, opened });
        }
        gates.push(Gate::new(address, first, Arc::clone(relay), threads));
    }
    Ok((workers, gates))
}

impl Worker {
    /// Accepts connections until the drain begins. Each connection becomes a task of the current runtime, which must be
    /// single-threaded and outlive the connections. Two more tasks continue during the drain: one notifies connections
    /// of the drain, the other measures the thread's lag.
    pub async fn accept(self) {
        let mut open = JoinSet::new();
        for listener in self.listeners {
            open.spawn(listener.accept());
        }
        let relay = self.relay;
        tokio::spawn(relay.drain().clone().notify_connections());
        tokio::spawn(async move { watch_lag(relay.lags()).await });
        while open.join_next().await.is_some() {}
    }
}

impl ThreadListener {
    /// Serves every socket that the gate opens, until the drain begins.
    async fn accept(mut self) {
        let drain = self.frontend.relay.drain().clone();
        loop {
            let opened = tokio::select! {
                biased;
                opened = self.opened.recv() => opened,
                () = drain.reached(Phase::Closing) => None,
            };
            match opened {
                Some(opened) => self.serve(opened).await,
                None => break,
            }
        }
        if let Some(handler) = &self.frontend.rewrite {
            drain.reached(Phase::Draining).await;
            // The first request of a client that has just connected may be in flight.
            tokio::time::sleep(FIRST_REQUEST).await;
            handler.drain().await;
        }
    }

    async fn serve(&self, opened: Opened) {
        let (key, listener) = match &self.address {
            Address::Unix(path) => {
                let path = path.display().to_string();
                (path.clone(), ListenerConfig::uds(path))
            }
            address => (address.to_string(), ListenerConfig::tcp(address.to_string())),
        };
        // The other fields of `opened` are dropped at the end of this function, after the socket is closed.
        let Opened { socket, closing: mut gate, .. } = opened;
        let drain = self.frontend.relay.drain().clone();
        let mut service = Service::new(self.name.clone(), self.frontend.clone());
        // The relay does its own reads and writes: pingora's buffers would waste 64 KiB per connection.
        service.add_listener(listener.l4_buffer(L4BufferSettings::new(0, 0)));
        // A duplicate descriptor for the orderly close; not needed for Unix sockets, which have no SYNs to drop. If it
        // cannot be created, the listener still closes, but may cut off connecting clients.
        let duplicate = matches!(self.address, Address::Tcp { .. }).then(|| socket.try_clone().ok()).flatten();
        // If this table has a listening socket for the address, pingora uses that socket instead of creating one.
        let mut descriptors = Fds::new();
        descriptors.add(key, socket.into_raw_fd());
        let descriptors: ListenFds = Arc::new(descriptors.into());
        let (close, closing) = watch::channel(false);
        let close = async move {
            tokio::select! {
                () = drain.reached(Phase::Closing) => {}
                // An error means that the gate was dropped and cannot close the socket.
                Ok(_) = gate.wait_for(|closes| *closes) => {}
            }
            if let Some(socket) = duplicate {
                if let Err(error) = reject_new_connections(SockRef::from(&socket)) {
                    tracing::debug!(%error, "Clients that are connecting may be cut off.");
                }
                drop(socket);
                tokio::time::sleep(CLOSING_TIME).await;
            }
            close.send_replace(true);
        };
        tokio::join!(service.start_service(Some(descriptors), closing, 1), close);
    }
}

/// How long a connection in rewrite mode may stay idle after a drain begins.
const FIRST_REQUEST: Duration = Duration::from_millis(300);

/// Time for handshakes in progress to complete and for their first requests to arrive.
const CLOSING_TIME: Duration = Duration::from_millis(100);

/// Makes the kernel drop SYNs (the first packet of a handshake) for this socket from now on.
///
/// The socket filter (socket(7), SO_ATTACH_FILTER) receives packets from the TCP header on. Accepted connections
/// inherit the filter. It does not affect them, because they receive no SYNs.
fn reject_new_connections(socket: SockRef<'_>) -> io::Result<()> {
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    socket.attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn queued_connection_is_accepted_and_new_ones_are_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut before = TcpStream::connect(address).unwrap();
        reject_new_connections(SockRef::from(&listener)).unwrap();
        assert!(TcpStream::connect_timeout(&address, CLOSING_TIME).is_err());
        let (mut accepted, _) = listener.accept().unwrap();
        before.write_all(b"a").unwrap();
        accepted.read_exact(&mut [0; 1]).unwrap();
        accepted.write_all(b"b").unwrap();
        before.read_exact(&mut [0; 1]).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
