//! Detects a reset by a side that is not being read.
//!
//! While a side is read, a reset causes a read error. A side that has finished, or whose bytes wait for the other side,
//! is not read. If this state persists, a separate descriptor is created to watch the side's socket.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::relay::stream::Stream;
use tokometer_observe::input::Side;

/// Delay before the descriptor is created. Most pauses are brief (a full send buffer, a FIN that the other side
/// returns), and a write to the peer reports a reset anyway. The delay exceeds the period of the thread's timer
/// (`lag`): a timer due before all others costs the runtime a system call, which most ending connections would incur.
const WATCH_DELAY: Duration = Duration::from_secs(1);

/// Watches one socket for a reset.
pub(crate) struct ResetWatch {
    side: Side,
    state: State,
}

enum State {
    /// The delay has not passed yet.
    Delayed(Pin<Box<Sleep>>),
    /// Watching.
    Armed(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// The socket cannot be watched (no free descriptor): the next write reports the reset.
    Unwatched,
}

impl ResetWatch {
    pub(crate) fn new(side: Side) -> ResetWatch {
        ResetWatch { side, state: State::Delayed(Box::pin(tokio::time::sleep(WATCH_DELAY))) }
    }

    /// The watched side.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// True once the delay has passed.
    pub(crate) fn has_started(&self) -> bool {
        !matches!(self.state, State::Delayed(_))
    }

    /// Ready when the peer of `stream` is gone in both directions.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<()> {
        if let State::Delayed(sleep) = &mut self.state {
            std::task::ready!(sleep.as_mut().poll(cx));
            self.state = match stream.socket().try_clone_to_owned() {
                Ok(descriptor) => State::Armed(Box::pin(gone(descriptor))),
                Err(_) => State::Unwatched,
            };
        }
        match &mut self.state {
            State::Armed(gone) => gone.as_mut().poll(cx),
            State::Delayed(_) | State::Unwatched => Poll::Pending,
        }
    }
}

/// Resolves when the kernel reports that the peer accepts no more bytes (EPOLLHUP, EPOLLERR). Writability also wakes
/// this future, and is ignored.
async fn gone(descriptor: OwnedFd) {
    if watch(descriptor).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn watch(descriptor: OwnedFd) -> io::Result<()> {
    // Also used for Unix sockets: only readiness is read, which works the same.
    let socket = TcpStream::from_std(descriptor.into())?;
    loop {
        if socket.ready(Interest::WRITABLE).await?.is_write_closed() {
            return Ok(());
        }
        let cleared: io::Result<()> = socket.try_io(Interest::WRITABLE, || Err(io::ErrorKind::WouldBlock.into()));
        debug_assert!(cleared.is_err());
    }
}
