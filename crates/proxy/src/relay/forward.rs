//! Forwards the bytes of one direction of a connection.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::relay::admission::{Guard, Waiting};
use crate::relay::stats::REPORT_BYTES;
use crate::relay::stream::Stream;
use tokometer_observe::input::Direction;

/// Maximum reads per direction and wake-up. A direction with more to read then yields to the thread's other
/// connections.
const READS_PER_TURN: usize = 8;

/// Smaller reads are not progress of an upload: a client that sends its request byte by byte makes none.
const PROGRESS_BYTES: usize = 1024;

/// Forwards the bytes of one direction in order; buffers at most the unsent rest of one read.
pub(crate) struct Forwarder {
    direction: Direction,
    state: State,
    /// Bytes that the receiver has not accepted yet; boxed because such bytes are rare.
    remainder: Option<Box<Remainder>>,
    /// Relayed bytes that are not yet added to the totals.
    unreported: u64,
    /// A large part of a message was read since the last call of [`Forwarder::take_progress`].
    progress: bool,
    /// A write to the sender failed, so the end of the sender's stream counts as a reset.
    sender_lost: bool,
    /// The server ended TLS without close_notify. A TLS client then gets no close_notify either.
    truncated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The sender may send.
    Open,
    /// The sender finished; the FIN to the receiver is pending.
    Finishing,
    /// The FIN was sent to the receiver.
    Finished,
    /// The receiver accepts no more bytes: the sender is no longer read.
    Broken,
}

/// Bytes waiting for their receiver. Empty if TLS has encrypted all bytes and only its output is waiting.
struct Remainder {
    bytes: Vec<u8>,
    sent: usize,
    since: Instant,
    _waiting: Waiting,
}

/// State of a forwarder after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The forwarder waits for one of its sockets.
    Waits,
    /// The forwarder may have more to read and must be polled again.
    More,
    /// The sender finished and the receiver was notified.
    Finished,
    /// The sender reset the connection.
    SenderReset,
    /// The server ended TLS without close_notify while a request was pending.
    Truncated,
    /// The receiver accepts no more bytes; the other direction may still have bytes to deliver.
    ReceiverGone,
}

/// The two ends of a forwarder, its read buffer, and the observer of the bytes read.
pub(crate) struct Io<'a> {
    pub(crate) from: &'a mut Stream,
    pub(crate) to: &'a mut Stream,
    /// The other direction has finished: when this direction finishes too, the connection is closed.
    pub(crate) last: bool,
    pub(crate) buffer: &'a mut [u8],
    pub(crate) guard: &'a mut Guard,
    /// Time of the last read or delivery.
    pub(crate) moved: Option<Instant>,
}

impl Forwarder {
    pub(crate) fn new(direction: Direction) -> Forwarder {
        Forwarder {
            direction,
            state: State::Open,
            remainder: None,
            unreported: 0,
            progress: false,
            sender_lost: false,
            truncated: false,
        }
    }

    /// True while the sender is not read: it has finished, or its bytes are waiting or undeliverable.
    pub(crate) fn is_paused(&self) -> bool {
        self.remainder.is_some() || self.state != State::Open
    }

    /// Records that a write to the sender failed. Bytes that the sender sent earlier are still delivered, followed by a
    /// reset instead of a FIN.
    pub(crate) fn lose_sender(&mut self) {
        self.sender_lost = true;
    }

    /// True once the sender finished.
    pub(crate) fn ended(&self) -> bool {
        matches!(self.state, State::Finishing | State::Finished)
    }

    /// True once the receiver was notified that the sender finished.
    pub(crate) fn finished(&self) -> bool {
        self.state == State::Finished
    }

    /// True while bytes wait for the receiver.
    pub(crate) fn pending(&self) -> bool {
        self.remainder.is_some()
    }

    /// True if a large part of a message was read since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progress)
    }

    /// Forwards the bytes that are available now.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>, io: &mut Io<'_>) -> Turn {
        for _ in 0..READS_PER_TURN {
            match self.step(cx, io) {
                Poll::Pending => return Turn::Waits,
                Poll::Ready(Some(turn)) => return turn,
                Poll::Ready(None) if io.guard.is_costly() => return Turn::More,
                Poll::Ready(None) => {}
            }
        }
        Turn::More
    }

    /// Delivers the remainder, or reads and forwards once.
    fn step(&mut self, cx: &mut Context<'_>, io: &mut Io<'_>) -> Poll<Option<Turn>> {
        if let Some(remainder) = &mut self.remainder {
            let since = remainder.since;
            if ready!(remainder.poll_deliver(cx, io.to)).is_err() {
                return Poll::Ready(Some(self.lose_receiver(io)));
            }
            self.remainder = None;
            let until = Instant::now();
            io.moved = Some(until);
            io.guard.blocked(self.direction, since, until);
        }
        match self.state {
            State::Open => self.poll_read(cx, io),
            State::Finishing => self.poll_finish(cx, io),
            State::Finished | State::Broken => Poll::Pending,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, io: &mut Io<'_>) -> Poll<Option<Turn>> {
        let mut buf = ReadBuf::new(io.buffer);
        let read = ready!(Pin::new(&mut *io.from).poll_read(cx, &mut buf));
        let at = Instant::now();
        io.moved = Some(at);
        match read {
            Ok(()) if !buf.filled().is_empty() => {}
            Ok(()) => return self.finish(cx, io, at),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                // A client that omits close_notify has finished too: requests are self-delimiting.
                self.truncated = self.direction == Direction::Response;
                return self.finish(cx, io, at);
            }
            Err(_) => return Poll::Ready(Some(Turn::SenderReset)),
        }
        let bytes = buf.filled();
        match poll_send(cx, io.to, bytes) {
            Ok(None) => {}
            Ok(Some(sent)) => {
                let bytes = bytes.get(sent..).unwrap_or_default().to_vec();
                let waiting = io.guard.relay().wait_with(bytes.len());
                self.remainder = Some(Box::new(Remainder { bytes, sent: 0, since: at, _waiting: waiting }));
            }
            Err(_) => return Poll::Ready(Some(self.lose_receiver(io))),
        }
        let late = io.guard.late(at);
        io.guard.seen(self.direction, bytes, at);
        if !late.is_zero() && self.direction == Direction::Request {
            io.guard.waited(io.from.data_age().unwrap_or_default().min(late), at);
        }
        if self.remainder.is_some() {
            io.guard.waits(self.direction, at);
        }
        self.progress |= bytes.len() >= PROGRESS_BYTES;
        self.unreported += bytes.len() as u64;
        if self.unreported >= REPORT_BYTES {
            self.report(io.guard);
        }
        Poll::Ready(None)
    }

    /// Forwards the sender's FIN, then reports it to the observer.
    fn finish(&mut self, cx: &mut Context<'_>, io: &mut Io<'_>, at: Instant) -> Poll<Option<Turn>> {
        if self.sender_lost {
            return Poll::Ready(Some(Turn::SenderReset));
        }
        // Many servers omit close_notify. That matters only while a response is incomplete, because the end of the
        // connection may delimit it.
        if self.truncated && io.guard.idle() == Some(false) {
            return Poll::Ready(Some(Turn::Truncated));
        }
        self.state = State::Finishing;
        let turn = self.poll_finish(cx, io);
        io.guard.late(at);
        io.guard.finished(self.direction, at);
        turn
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>, io: &mut Io<'_>) -> Poll<Option<Turn>> {
        // Without TLS to the receiver, the close that follows immediately has the same effect and saves a system call.
        // With TLS, close_notify has to be written first.
        if io.last && !io.to.is_tls() {
            self.state = State::Finished;
            return Poll::Ready(Some(Turn::Finished));
        }
        // If the shutdown fails, the receiver is gone; the forwarder of the other direction reports the cause.
        let shut_down = if self.truncated && io.to.is_tls() {
            // The receiver must see the truncation too.
            SockRef::from(&io.to.socket()).shutdown(Shutdown::Write)
        } else {
            ready!(Pin::new(&mut *io.to).poll_shutdown(cx))
        };
        self.state = State::Finished;
        Poll::Ready(Some(if shut_down.is_ok() { Turn::Finished } else { Turn::ReceiverGone }))
    }

    fn lose_receiver(&mut self, io: &mut Io<'_>) -> Turn {
        self.state = State::Broken;
        self.settle(io.guard);
        Turn::ReceiverGone
    }

    /// Ends this direction and discards waiting bytes.
    pub(crate) fn settle(&mut self, guard: &mut Guard) {
        if let Some(remainder) = self.remainder.take() {
            guard.blocked(self.direction, remainder.since, Instant::now());
        }
        self.report(guard);
    }

    fn report(&mut self, guard: &Guard) {
        guard.stats().bytes(self.direction).add(std::mem::take(&mut self.unreported));
    }
}

impl Remainder {
    fn poll_deliver(&mut self, cx: &mut Context<'_>, to: &mut Stream) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *to).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        Pin::new(to).poll_flush(cx)
    }
}

/// Writes once. `None` if all bytes are sent; otherwise the number of bytes that the receiver accepted.
fn poll_send(cx: &mut Context<'_>, to: &mut Stream, bytes: &[u8]) -> io::Result<Option<usize>> {
    match Pin::new(&mut *to).poll_write(cx, bytes) {
        Poll::Ready(Ok(sent)) if sent == bytes.len() => match Pin::new(to).poll_flush(cx) {
            Poll::Ready(flushed) => flushed.map(|()| None),
            Poll::Pending => Ok(Some(sent)),
        },
        Poll::Ready(Ok(sent)) => Ok(Some(sent)),
        Poll::Ready(Err(error)) => Err(error),
        Poll::Pending => Ok(Some(0)),
    }
}

thread_local! {
    /// The read buffer, shared by all connections of the thread.
    static READ_BUFFER: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Calls `work` with the first `size` bytes of the thread's read buffer.
pub(crate) fn with_read_buffer<R>(size: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    READ_BUFFER.with(|own| {
        // Taken out during the call: a nested call gets its own buffer instead of an alias of this one.
        let mut buffer = match own.take() {
            Some(buffer) if buffer.len() >= size => buffer,
            _ => vec![0; size].into_boxed_slice(),
        };
        let result = work(buffer.get_mut(..size).unwrap_or_default());
        own.set(Some(buffer));
        result
    })
}
