//! Closes a listening socket without cutting off clients that have begun to connect.
//!
//! The kernel completes handshakes by itself and queues the connections until they are accepted; closing the socket
//! resets queued ones. Therefore new SYNs are dropped first, then queued connections are accepted, then the socket is
//! closed. A client that connects in between gets no response and retransmits its SYN after one second (RFC 6298,
//! section 2), to the server if that listens on the same port.

use std::io;
use std::time::Duration;

use socket2::SockFilter;
use socket2::SockRef;

/// Time for handshakes in progress to complete and for their first requests to arrive.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// From now on the kernel drops SYNs (the first packet of a handshake) for this socket.
///
/// A socket filter (socket(7), SO_ATTACH_FILTER) receives packets from the TCP header on. Accepted connections inherit
/// it, but receive no such packets.
pub(crate) fn let_nobody_in(socket: SockRef<'_>) -> io::Result<()> {
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
    use std::io::Read;
    use std::io::Write;
    use std::net::TcpListener;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn queued_connection_is_accepted_and_new_ones_are_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut before = TcpStream::connect(address).unwrap();
        let_nobody_in(SockRef::from(&listener)).unwrap();
        assert!(TcpStream::connect_timeout(&address, LINGER).is_err());
        let (mut accepted, _) = listener.accept().unwrap();
        before.write_all(b"a").unwrap();
        accepted.read_exact(&mut [0; 1]).unwrap();
        accepted.write_all(b"b").unwrap();
        before.read_exact(&mut [0; 1]).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
