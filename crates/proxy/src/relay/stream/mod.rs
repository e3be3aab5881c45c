//! One end of a connection: TCP or a Unix socket, plain or with TLS.

pub(crate) mod reset;
pub(crate) mod tcp_info;

use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{fmt, io};

use pingora::protocols::l4::stream::Stream as Transport;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;

use crate::relay::drain::Ticket;
use crate::relay::stream::tcp_info::tcp_info;

/// Maximum time to wait until a client has received everything that was sent to it.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two checks for delivery.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A connected socket, with or without TLS, registered with the runtime of this thread.
pub type Stream = Box<dyn Endpoint>;

/// See [`Stream`].
pub trait Endpoint: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {
    /// The socket; with TLS, the socket of the encrypted connection.
    fn socket(&self) -> BorrowedFd<'_>;

    /// True for TLS.
    fn is_tls(&self) -> bool {
        false
    }

    /// Converts the endpoint to a pingora stream.
    fn into_transport(self: Box<Self>) -> Transport;
}

impl Endpoint for TcpStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn into_transport(self: Box<Self>) -> Transport {
        (*self).into()
    }
}

impl Endpoint for UnixStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn into_transport(self: Box<Self>) -> Transport {
        (*self).into()
    }
}

impl Endpoint for TlsStream<Stream> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.get_ref().0.socket()
    }

    fn is_tls(&self) -> bool {
        true
    }

    fn into_transport(self: Box<Self>) -> Transport {
        VirtualSocketStream::new(Box::new(Layered(self))).into()
    }
}

impl dyn Endpoint {
    /// Time since data last arrived from the peer; `None` for a Unix socket.
    pub(crate) fn data_age(&self) -> Option<Duration> {
        let info = tcp_info(self.socket().as_raw_fd()).ok()?;
        Some(Duration::from_millis(info.tcpi_last_data_recv.into()))
    }

    /// Ends the connection with a FIN. With TLS, sends close_notify first if the socket accepts it immediately.
    pub(crate) fn close(mut self: Box<Self>) {
        if self.is_tls() {
            let mut cx = Context::from_waker(Waker::noop());
            // Best effort: the socket is closed immediately afterwards in any case.
            drop(Pin::new(&mut self).poll_shutdown(&mut cx));
        }
    }

    /// Ends the connection with a reset (RST) instead of an orderly FIN. Unix sockets have no reset: their peer sees a
    /// plain close.
    pub(crate) fn reset(self: Box<Self>) {
        // SO_LINGER 0 makes close() send RST; on a dead socket there is nothing left to send.
        SockRef::from(&self.socket()).set_linger(Some(Duration::ZERO)).ok();
    }

    /// Ends the connection so that the peer gets an error after it has received all bytes. With TLS, the error is a FIN
    /// without close_notify; otherwise a reset, because a FIN would be a valid end of a response without a length.
    ///
    /// The reset waits until the peer's kernel has acknowledged every byte: an earlier reset would discard unsent
    /// bytes. On Linux, the peer can read all received bytes before it gets the error. Until then, `ticket` makes the
    /// drain wait for this connection. Dropping this future early also resets the connection.
    pub(crate) async fn truncate(self: Box<Self>, ticket: Option<Ticket>) {
        // An error means that the connection is already dead.
        if self.is_tls() {
            SockRef::from(&self.socket()).shutdown(Shutdown::Write).ok();
        } else {
            SockRef::from(&self.socket()).set_linger(Some(Duration::ZERO)).ok();
        }
        let descriptor = self.socket().as_raw_fd();
        let delivered = async {
            // An error (a Unix socket) means that there is nothing to wait for.
            while tcp_info(descriptor).is_ok_and(|info| info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0) {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(DELIVERY_TIMEOUT, delivered).await.ok();
        drop((self, ticket));
    }
}

/// A TLS stream as a virtual socket of pingora.
#[derive(Debug)]
struct Layered(Stream);

impl VirtualSocket for Layered {
    /// Does nothing: the options were set when the socket was opened.
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Layered {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Layered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
