//! The relay of one connection between client and server, as one small future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::relay::admission::{Accepted, Guard};
use crate::relay::drain::{Phase, Ticket};
use crate::relay::forward::{Forwarder, Io, Turn, with_read_buffer};
use crate::relay::settings::Settings;
use crate::relay::stats::Evicted;
use crate::relay::stream::Stream;
use crate::relay::stream::reset::ResetWatch;
use tokometer_observe::input::{Activity, Close, Direction, Side};

/// For this time after a drain begins, a connection that has relayed no bytes does not count as idle. The first request
/// of a client that has just connected may be in flight.
const FIRST_BYTE: Duration = Duration::from_millis(300);

/// Size of a read while the connection is expensive to observe ([`Observer::is_costly`](tokometer_observe::input::Observer)).
const COSTLY_READ_BYTES: usize = 8 * 1024;

/// If more bytes than this wait for slow clients, reads are small, to limit the waiting bytes that each further slow
/// client adds.
const MUCH_WAITING_BYTES: usize = 16 * 1024 * 1024;

/// Read size above [`MUCH_WAITING_BYTES`].
const SCARCE_READ_BYTES: usize = 2 * 1024;

/// Relays both directions until the connection ends. Owns no buffer unless bytes wait for a receiver.
///
/// A task holds this future, so its size is memory per connection; a test limits the size.
pub(crate) struct RelayedConnection {
    settings: Arc<Settings>,
    /// `None` once closed.
    ends: Option<Ends>,
    guard: Guard,
    request: Forwarder,
    response: Forwarder,
    /// The side that sent the first FIN.
    first: Option<Side>,
    /// `None` once another task owns the client's socket.
    ticket: Option<Ticket>,
    /// The waker is registered with the drain.
    entered: bool,
    /// Bytes were relayed.
    used: bool,
    idle: Option<Box<Idle>>,
    /// Runs from the start of the drain until bytes are relayed.
    first_byte: Option<Pin<Box<Sleep>>>,
}

struct Ends {
    client: Stream,
    server: Stream,
    watch: Option<Box<ResetWatch>>,
}

/// Idle timer: fires after a period without traffic.
struct Idle {
    moved: Instant,
    timeout: Duration,
    /// One side has finished.
    half_closed: bool,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    fn new(timeout: Duration) -> Box<Idle> {
        let timer = Box::pin(tokio::time::sleep(timeout));
        Box::new(Idle { moved: Instant::now(), timeout, half_closed: false, timer })
    }
}

/// How both sockets are closed.
#[derive(Clone, Copy)]
enum CloseMode {
    /// Sends FIN to each side that has not received a FIN.
    Orderly,
    /// Sends RST to both sides. This has no effect on a side that has reset the connection itself.
    Reset,
    /// Sends an error to the client after all bytes sent to it are delivered, and RST to the server.
    Truncate,
}

impl Accepted {
    /// Returns a future that relays bytes between both ends until the connection ends. Spawn it as its own task.
    pub(crate) fn join(self, client: Stream, server: Stream) -> RelayedConnection {
        let Accepted { mut guard, ticket } = self;
        guard.watch_network(&client);
        let settings = guard.relay().settings();
        let idle = settings.idle_timeout.map(Idle::new);
        RelayedConnection {
            settings,
            ends: Some(Ends { client, server, watch: None }),
            guard,
            request: Forwarder::new(Direction::Request),
            response: Forwarder::new(Direction::Response),
            first: None,
            ticket: Some(ticket),
            entered: false,
            used: false,
            idle,
            first_byte: None,
        }
    }
}

impl RelayedConnection {
    /// Forwards bytes in both directions; `Some` if the connection ended.
    fn relay(&mut self, cx: &mut Context<'_>) -> Option<(Close, CloseMode)> {
        let Ends { client, server, .. } = self.ends.as_mut()?;
        let most = match (self.guard.relay().waiting() > MUCH_WAITING_BYTES, self.guard.is_costly()) {
            (true, _) => SCARCE_READ_BYTES,
            (false, true) => COSTLY_READ_BYTES,
            (false, false) => usize::MAX,
        };
        let size = self.settings.scratch_bytes.min(self.settings.remainder_bytes).min(most).max(1);
        let (request, response, moved) = with_read_buffer(size, |buffer| {
            let (guard, last) = (&mut self.guard, self.response.finished());
            let mut io = Io { from: client, to: server, last, buffer, guard, moved: None };
            let request = self.request.turn(cx, &mut io);
            if request == Turn::ReceiverGone {
                self.response.lose_sender();
            }
            let Io { from: client, to: server, buffer, guard, moved, .. } = io;
            let mut io = Io { from: server, to: client, last: self.request.finished(), buffer, guard, moved };
            let response = self.response.turn(cx, &mut io);
            if response == Turn::ReceiverGone {
                self.request.lose_sender();
            }
            (request, response, io.moved)
        });
        self.set_activity();
        if let Some(at) = moved {
            self.used = true;
            if let Some(idle) = &mut self.idle {
                idle.moved = at;
            }
        }
        if request == Turn::More || response == Turn::More {
            cx.waker().wake_by_ref();
        }
        if self.first.is_none() {
            self.first = match (self.request.ended(), self.response.ended()) {
                (true, _) => Some(Side::Client),
                (false, true) => Some(Side::Server),
                (false, false) => None,
            };
        }
        Some(match (request, response) {
            (Turn::SenderReset, _) => (Close::Reset(Side::Client), CloseMode::Reset),
            (_, Turn::SenderReset) => (Close::Reset(Side::Server), CloseMode::Reset),
            (_, Turn::Truncated) => (Close::Truncated, CloseMode::Truncate),
            (Turn::ReceiverGone, _) if self.response.ended() => (Close::Reset(Side::Server), CloseMode::Reset),
            (_, Turn::ReceiverGone) if self.request.ended() => (Close::Reset(Side::Client), CloseMode::Reset),
            _ if self.request.finished() && self.response.finished() => {
                (Close::Finished { first: self.first.unwrap_or(Side::Client) }, CloseMode::Orderly)
            }
            _ => return None,
        })
    }

    /// Watches a side that is not read for a reset. If both sides have to be watched, only the client is: a write to
    /// the server is pending and reports a reset by the server.
    fn watch(&mut self, cx: &mut Context<'_>) -> Option<(Close, CloseMode)> {
        let ends = self.ends.as_mut()?;
        // After FINs in both directions, a reset loses no data.
        let watch_client = self.request.is_paused() && !self.response.finished();
        // Bytes from the server that wait for a slow client are delivered before a reset by the server is forwarded.
        let watch_server = self.response.is_paused() && !self.response.pending() && !self.request.finished();
        let side = match (watch_client, watch_server) {
            (true, _) => Side::Client,
            (false, true) => Side::Server,
            (false, false) => {
                ends.watch = None;
                return None;
            }
        };
        let watch = match &mut ends.watch {
            Some(watch) if watch.side() == side => watch,
            other => other.insert(Box::new(ResetWatch::new(side))),
        };
        let stream = if side == Side::Client { &ends.client } else { &ends.server };
        watch.poll(cx, stream).is_ready().then_some((Close::Reset(side), CloseMode::Reset))
    }

    /// Closes the connection if the current drain phase requires it.
    fn drain(&mut self, cx: &mut Context<'_>) -> Option<(Close, CloseMode)> {
        match self.ticket.as_ref()?.phase() {
            Phase::Running | Phase::Closing => None,
            Phase::Forced => Some((Close::Drained, CloseMode::Reset)),
            Phase::Draining => {
                if self.request.pending() || self.response.pending() {
                    return None;
                }
                // Without an observer, only an unused connection is known to be idle.
                let idle = self.guard.idle().unwrap_or(!self.used);
                let idle = idle && (self.used || self.first_byte_is_due(cx));
                idle.then_some((Close::Drained, CloseMode::Orderly))
            }
        }
    }

    /// Publishes what the connection waits for.
    fn set_activity(&mut self) {
        let delivers = self.request.pending() || self.response.pending();
        let activity = if delivers { Activity::InProgress } else { self.guard.activity() };
        let Some(ticket) = &mut self.ticket else { return };
        ticket.set_activity(activity);
        if activity == Activity::Incomplete && self.request.take_progress() {
            ticket.progress();
        }
    }

    /// Closes the connection if it is in the way of others. The client of an idle connection gets an orderly close, as
    /// from a server that limits the idle time.
    fn evict(&mut self) -> Option<(Close, CloseMode)> {
        if !self.ticket.as_mut()?.is_evicted() {
            return None;
        }
        let why = Evicted::of(self.guard.activity());
        self.guard.stats().evicted(why).add(1);
        let mode = if why == Evicted::Idle { CloseMode::Orderly } else { CloseMode::Reset };
        Some((Close::Evicted, mode))
    }

    fn first_byte_is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.first_byte.get_or_insert_with(|| Box::pin(tokio::time::sleep(FIRST_BYTE))).as_mut().poll(cx).is_ready()
    }

    fn idle_out(&mut self, cx: &mut Context<'_>) -> Option<(Close, CloseMode)> {
        if self.request.finished() || self.response.finished() {
            self.limit_half_close();
        }
        let idle = self.idle.as_mut()?;
        while idle.timer.as_mut().poll(cx).is_ready() {
            let until = idle.moved + idle.timeout;
            if until <= Instant::now() {
                return Some(if idle.half_closed {
                    self.half_close_over()
                } else {
                    (Close::IdleTimeout, CloseMode::Reset)
                });
            }
            idle.timer.as_mut().reset(until.into());
        }
        None
    }

    /// Applies the half-close timeout from now on. Most connections are half-closed only briefly and need no timer: the
    /// timeout starts once the reset watch's delay has passed.
    fn limit_half_close(&mut self) {
        let lasts = self.ends.as_ref().and_then(|ends| ends.watch.as_ref()).is_some_and(|watch| watch.has_started());
        let Some(timeout) = self.settings.half_close_timeout.filter(|_| lasts) else { return };
        let idle = self.idle.get_or_insert_with(|| Idle::new(timeout));
        if !std::mem::replace(&mut idle.half_closed, true) && timeout < idle.timeout {
            idle.timeout = timeout;
            idle.timer.as_mut().reset((idle.moved + timeout).into());
        }
    }

    /// Ends a connection that was half-closed for too long. The client gets an orderly close only if the response is
    /// complete, because it may interpret an orderly close as the end of the response.
    fn half_close_over(&mut self) -> (Close, CloseMode) {
        let whole = !self.request.pending() && !self.response.pending();
        match self.first {
            Some(Side::Server) if whole => (Close::Finished { first: Side::Server }, CloseMode::Orderly),
            Some(Side::Server) => (Close::Finished { first: Side::Server }, CloseMode::Reset),
            _ if whole && self.guard.idle() == Some(true) => {
                (Close::Finished { first: Side::Client }, CloseMode::Orderly)
            }
            _ => (Close::IdleTimeout, CloseMode::Reset),
        }
    }

    fn close(&mut self, close: Close, mode: CloseMode) {
        if let Some(Ends { client, server, .. }) = self.ends.take() {
            self.guard.release_network();
            match mode {
                CloseMode::Orderly => {
                    client.close();
                    server.close();
                }
                CloseMode::Reset => {
                    client.reset();
                    server.reset();
                }
                CloseMode::Truncate => {
                    server.reset();
                    let ticket = self.ticket.take();
                    drop(tokio::spawn(client.truncate(ticket)));
                }
            }
            self.request.settle(&mut self.guard);
            self.response.settle(&mut self.guard);
            self.guard.closed(close, Instant::now());
        }
    }
}

impl Future for RelayedConnection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.entered {
            // Registering once is enough: the waker of a spawned task does not change.
            if let Some(ticket) = &this.ticket {
                ticket.wake(cx.waker());
            }
            this.entered = true;
        }
        let end = this.relay(cx).or_else(|| this.watch(cx)).or_else(|| this.drain(cx)).or_else(|| this.evict());
        let end = end.or_else(|| this.idle_out(cx));
        match end {
            Some((close, mode)) => {
                this.close(close, mode);
                Poll::Ready(())
            }
            None if this.ends.is_none() => Poll::Ready(()),
            None => Poll::Pending,
        }
    }
}

impl Drop for RelayedConnection {
    /// Records the end of the connection also if the runtime stops and drops this task.
    fn drop(&mut self) {
        self.close(Close::Drained, CloseMode::Reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_future_is_at_most_256_bytes() {
        assert!(size_of::<RelayedConnection>() <= 256, "{} bytes", size_of::<RelayedConnection>());
    }
}
