//! The kernel's measurements of a TCP connection (`TCP_INFO`).
//!
//! Neither rustix, socket2 nor nix reads this option, and pingora's function fails on kernels before 6.2, which return
//! fewer fields.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use pingora::protocols::l4::ext::TCP_INFO;

use tokometer_observe::input::{Network, NetworkSource};

/// Bytes up to the last field that is used, `tcpi_sndbuf_limited`: kernels from 4.10 (2017) return at least these.
const USED_BYTES: usize = std::mem::offset_of!(TCP_INFO, tcpi_delivered);

/// `tcpi_min_rtt` before the first round trip.
const UNKNOWN_RTT: u32 = u32::MAX;

/// The descriptor of a socket that is closed.
const CLOSED: RawFd = -1;

/// The kernel's values for this socket. Fields that the kernel does not support are 0.
///
/// # Errors
/// When it is not a TCP socket.
pub(crate) fn tcp_info(socket: RawFd) -> io::Result<TCP_INFO> {
    // SAFETY: a structure of integers, for which zero is a valid value.
    let mut info = unsafe { TCP_INFO::new() };
    let mut len = size_of::<TCP_INFO>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has that size and is valid with any contents. It
    // writes their number to `len`. A descriptor that is not a TCP socket causes an error.
    let result =
        unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (len as usize) < USED_BYTES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info)
}

/// Network measurements of a client's connection. The relay owns the socket. The observer reads the values when a
/// request ends and when the connection's next request begins, with one system call each.
#[derive(Debug)]
pub(crate) struct ClientNetwork {
    socket: AtomicI32,
}

impl ClientNetwork {
    /// Measurements of this socket. Call [`ClientNetwork::release`] before the socket is closed.
    pub(crate) fn new(client: impl AsRawFd) -> Arc<ClientNetwork> {
        Arc::new(ClientNetwork { socket: AtomicI32::new(client.as_raw_fd()) })
    }

    /// Stops all further reads. Call this before the socket is closed: afterwards, another socket may get its number.
    pub(crate) fn release(&self) {
        self.socket.store(CLOSED, Ordering::Relaxed);
    }
}

impl NetworkSource for ClientNetwork {
    fn network(&self) -> Option<Network> {
        // Relaxed: one task makes all calls.
        let socket = Some(self.socket.load(Ordering::Relaxed)).filter(|socket| *socket != CLOSED)?;
        let info = tcp_info(socket).ok()?;
        Some(Network {
            rtt: (info.tcpi_min_rtt != UNKNOWN_RTT).then(|| Duration::from_micros(info.tcpi_min_rtt.into())),
            retransmits: Some(info.tcpi_total_retrans.into()),
            zero_window: Some(Duration::from_micros(info.tcpi_rwnd_limited)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn connection_that_has_sent_bytes_has_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"a").unwrap();
        client.read_exact(&mut [0]).unwrap();
        let source = ClientNetwork { socket: AtomicI32::new(server.as_raw_fd()) };
        let network = source.network().unwrap();
        let rtt = network.rtt.unwrap();
        assert!(rtt > Duration::ZERO && rtt < Duration::from_secs(1), "{rtt:?}");
        assert_eq!((network.retransmits, network.zero_window), (Some(0), Some(Duration::ZERO)));
        source.release();
        assert_eq!(source.network(), None);
    }

    #[test]
    fn unix_socket_has_no_values() {
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(tcp_info(socket.as_raw_fd()).is_err());
    }
}
