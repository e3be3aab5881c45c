//! Notices a reset of an end that is not being read.
//!
//! While a side is read, its reset shows as a read error. A side that has finished, or whose bytes wait for the other
//! side, is not read: its socket is watched by a descriptor of its own, made only when that state lasts.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::relay::stream::Stream;
use tokometer_observe::input::Side;

/// Most sides are not read for a moment only (a full send buffer, a FIN that the other side answers with its own), and a
/// peer that is written to shows its reset by itself; so the descriptor is made after this time. It is as long as the
/// period of the thread's own timer (`listen::service`): a timer that is due before all others costs the runtime a system
/// call to wake itself, and most connections that end would pay it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Watches one socket for a reset.
pub(crate) struct ResetWatch {
    side: Side,
    state: State,
}

enum State {
    /// Too early to bother.
    Soon(Pin<Box<Sleep>>),
    /// Watching.
    Armed(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// It cannot be watched (no descriptor was free): the next write will tell.
    Blind,
}

impl ResetWatch {
    pub(crate) fn new(side: Side) -> ResetWatch {
        ResetWatch { side, state: State::Soon(Box::pin(tokio::time::sleep(PATIENCE))) }
    }

    /// The side that it watches.
    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// True once the state that made it has lasted for a while.
    pub(crate) fn lasts(&self) -> bool {
        !matches!(self.state, State::Soon(_))
    }

    /// Ready when the peer of `stream` is gone for both directions.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<()> {
        if let State::Soon(sleep) = &mut self.state {
            std::task::ready!(sleep.as_mut().poll(cx));
            self.state = match stream.socket().as_fd().try_clone_to_owned() {
                Ok(descriptor) => State::Armed(Box::pin(gone(descriptor))),
                Err(_) => State::Blind,
            };
        }
        match &mut self.state {
            State::Armed(gone) => gone.as_mut().poll(cx),
            State::Soon(_) | State::Blind => Poll::Pending,
        }
    }
}

/// Resolves when the kernel reports that the peer takes nothing any more (EPOLLHUP, EPOLLERR). Room in the send buffer is
/// reported on the same flag and put aside; it comes seldom, because the relay's own registration is another one.
async fn gone(descriptor: OwnedFd) {
    if watch(descriptor).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn watch(descriptor: OwnedFd) -> io::Result<()> {
    // Only its readiness is asked for, which is the same for TCP and for Unix sockets.
    let socket = TcpStream::from_std(descriptor.into())?;
    loop {
        if socket.ready(Interest::WRITABLE).await?.is_write_closed() {
            return Ok(());
        }
        let cleared: io::Result<()> = socket.try_io(Interest::WRITABLE, || Err(io::ErrorKind::WouldBlock.into()));
        debug_assert!(cleared.is_err());
    }
}
