//! One end of a connection: TCP or a Unix socket, plain or with TLS.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::task::Waker;
use std::time::Duration;

use pingora::protocols::l4::ext::get_tcp_info;
use socket2::SockRef;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::net::UnixStream;
use tokio::time::sleep;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use crate::relay::drain::Ticket;

/// A socket opened elsewhere and registered with the runtime of this thread.
pub trait Endpoint: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// The file descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// Accepted by a listener.
    Accepted(Box<dyn Endpoint>),
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

/// A socket with or without TLS. TLS is boxed to keep plain connections small.
#[derive(Debug)]
pub enum Stream {
    /// No TLS.
    Plain(Socket),
    /// TLS with this side.
    Tls(Box<TlsStream<Socket>>),
}

impl From<Socket> for Stream {
    fn from(socket: Socket) -> Stream {
        Stream::Plain(socket)
    }
}

impl Stream {
    /// The underlying socket.
    pub fn socket(&self) -> &Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Ends the connection in order with a FIN; under TLS preceded by close_notify if the socket accepts it.
    pub fn close(mut self) {
        if let Stream::Tls(stream) = &mut self {
            let mut cx = Context::from_waker(Waker::noop());
            // Best effort: the socket is closed immediately afterwards in any case.
            drop(Pin::new(stream).poll_shutdown(&mut cx));
        }
    }

    /// Ends the connection with a reset (RST) instead of an orderly FIN. Unix sockets have no reset: their peer sees a
    /// plain close.
    pub fn reset(self) {
        // SO_LINGER 0 makes close() send RST; on a dead socket there is nothing left to send.
        SockRef::from(self.socket()).set_linger(Some(Duration::ZERO)).ok();
    }
}

/// Maximum time to wait until a client has received everything that was sent to it.
const DELIVERY: Duration = Duration::from_secs(10);

/// Polling interval for that.
const LOOK: Duration = Duration::from_millis(20);

impl Stream {
    /// Ends the connection so that the peer sees an error after all bytes: under TLS a FIN without close_notify,
    /// otherwise a reset, because a FIN would be a valid end of a response without a length.
    ///
    /// The reset waits until the peer's kernel has acknowledged every byte: the local kernel would discard unsent
    /// bytes, while Linux lets the peer read what it has received before it reports the reset. Meanwhile `ticket` keeps
    /// the connection open for the drain. Dropping this future early also resets.
    pub(crate) async fn truncate(self, ticket: Option<Ticket>) {
        let socket = SockRef::from(self.socket());
        // An error means that the connection is already dead.
        match self {
            Stream::Plain(_) => socket.set_linger(Some(Duration::ZERO)).ok(),
            Stream::Tls(_) => socket.shutdown(Shutdown::Write).ok(),
        };
        let descriptor = self.socket().as_fd().as_raw_fd();
        let delivered = async {
            // An error (a Unix socket) means that there is nothing to wait for.
            while get_tcp_info(descriptor).is_ok_and(|info| info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0) {
                sleep(LOOK).await;
            }
        };
        timeout(DELIVERY, delivered).await.ok();
        drop((self, ticket));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Accepted(endpoint) => endpoint.descriptor(),
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Accepted(endpoint) => Pin::new(endpoint).poll_read(cx, buf),
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Accepted(endpoint) => Pin::new(endpoint).poll_write(cx, bytes),
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Kernel sockets have no user-space buffer to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Accepted(endpoint) => Pin::new(endpoint).poll_shutdown(cx),
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
