//! One end of a connection: TCP or a Unix socket, plain or under TLS.

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

/// A socket that was opened elsewhere and is registered with the runtime of this thread.
pub trait Endpoint: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {
    /// Its descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// One that a listener accepted.
    Accepted(Box<dyn Endpoint>),
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

/// What one side of a relayed connection speaks. TLS is boxed, so that plain connections stay small.
#[derive(Debug)]
pub enum Stream {
    /// The bytes as they are.
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
    /// The socket under it.
    pub fn socket(&self) -> &Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Ends the connection in order: FIN, under TLS close_notify first if the socket takes it.
    pub fn close(mut self) {
        if let Stream::Tls(stream) = &mut self {
            let mut cx = Context::from_waker(Waker::noop());
            // Best effort: the socket is closed right after, whatever became of the alert.
            drop(Pin::new(stream).poll_shutdown(&mut cx));
        }
    }

    /// Ends the connection with a reset (RST) instead of an orderly FIN. A Unix socket knows no reset: there the peer sees
    /// a plain close.
    pub fn reset(self) {
        // SO_LINGER 0 makes close() send RST; on a socket that is already dead there is nothing left to send.
        SockRef::from(self.socket()).set_linger(Some(Duration::ZERO)).ok();
    }
}

/// Longest time to wait until a client has got what was sent to it.
const DELIVERY: Duration = Duration::from_secs(10);

/// Time between two looks at what it has got.
const LOOK: Duration = Duration::from_millis(20);

impl Stream {
    /// Ends the connection so that the peer sees an error behind all bytes: under TLS by a FIN without close_notify, else by a
    /// reset, as a FIN would be the end of a response that has no length.
    ///
    /// The reset waits until the peer's kernel has acknowledged every byte: ours would discard what it has not sent yet, while
    /// Linux lets the peer read what it has received before it reports the reset. `ticket` keeps the connection open for the
    /// drain meanwhile. Dropped early, this resets as well.
    pub(crate) async fn truncate(self, ticket: Option<Ticket>) {
        let socket = SockRef::from(self.socket());
        // An error means that the connection is dead already.
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
        // The kernel's sockets have no buffer of ours to flush.
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
