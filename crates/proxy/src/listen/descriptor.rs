//! Takes an accepted socket out of pingora's stream. The socket stays registered with the runtime of the accepting
//! thread, which also serves the connection: registering a second descriptor would cost five system calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora::protocols::l4::stream::Stream as Transport;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::relay::{Endpoint, Stream};

/// An accepted TCP or Unix socket, without buffers (`L4BufferSettings::new(0, 0)`).
#[derive(Debug)]
struct Accepted(Transport);

/// Converts pingora's stream to an endpoint of the relay.
///
/// # Errors
/// When the stream is a TLS stream or has no socket.
pub(crate) fn take(stream: pingora::protocols::Stream) -> io::Result<Stream> {
    let transport = stream.into_any().downcast::<Transport>().map_err(|_| io::ErrorKind::Unsupported)?;
    if transport.as_raw_fd() < 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(Box::new(Accepted(*transport)))
}

impl Endpoint for Accepted {
    fn socket(&self) -> BorrowedFd<'_> {
        // SAFETY: this is the descriptor of the tokio socket inside the transport (pingora-core 0.9.1,
        // protocols/l4/stream.rs); `take` checked that it is not -1. No code takes that socket out of the transport,
        // and only dropping the transport closes it. The returned borrow cannot outlive `self`, which owns it.
        unsafe { BorrowedFd::borrow_raw(self.0.as_raw_fd()) }
    }

    fn into_transport(self: Box<Self>) -> Transport {
        self.0
    }
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The kernel almost always accepts the bytes immediately, so the first write is a direct system call. The
        // layers of pingora and tokio are used only to wait until the socket is writable.
        match send(self.socket(), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => Poll::Ready(Ok(sent)),
            Err(Errno::AGAIN | Errno::INTR) => Pin::new(&mut self.0).poll_write(cx, bytes),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // There is no buffer.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
