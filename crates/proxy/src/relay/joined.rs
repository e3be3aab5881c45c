//! A client and its server, joined: the whole life of a relayed connection as one small future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;
use std::time::Instant;

use tokio::time::Sleep;

use crate::relay::drain::Phase;
use crate::relay::drain::Ticket;
use crate::relay::guard::Guard;
use crate::relay::lane::Eyes;
use crate::relay::lane::Lane;
use crate::relay::lane::Turn;
use crate::relay::lane::Way;
use crate::relay::reset::ResetWatch;
use crate::relay::scratch;
use crate::relay::settings::Settings;
use crate::relay::stream::Stream;
use tokometer_observe::input::Close;
use tokometer_observe::input::Direction;
use tokometer_observe::input::Side;

/// How long a connection may be without its first byte when a drain begins, before it is taken for idle: the request of who has
/// just connected is on its way.
const FIRST_BYTE: Duration = Duration::from_millis(300);

/// Size of a read while the connection is expensive to observe ([`Observer::is_costly`](tokometer_observe::input::Observer)).
const COSTLY_READ_BYTES: usize = 8 * 1024;

/// While more bytes than this wait for clients that do not take them, reads are small, and so is what each further client
/// leaves waiting.
const MUCH_WAITS: usize = 16 * 1024 * 1024;

/// Size of a read then.
const SCARCE_READ_BYTES: usize = 2 * 1024;

/// Relays both directions until the connection ends. Owns no buffer while nothing waits for its receiver.
///
/// A task waits for this future, so its size is memory per connection; a test keeps it small.
pub struct Joined {
    settings: Arc<Settings>,
    /// `None` once closed.
    ends: Option<Ends>,
    guard: Guard,
    request: Lane,
    response: Lane,
    /// Whose FIN came first.
    first: Option<Side>,
    /// `None` once somebody else keeps the client's socket.
    ticket: Option<Ticket>,
    /// The waker is known to the drain.
    entered: bool,
    /// Anything was relayed.
    used: bool,
    idle: Option<Box<Idle>>,
    /// Runs from the drain's begin while nothing was relayed.
    first_byte: Option<Pin<Box<Sleep>>>,
}

struct Ends {
    client: Stream,
    server: Stream,
    watch: Option<Box<ResetWatch>>,
}

/// Waits for a time in which nothing moves.
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

/// How both sockets are left.
#[derive(Clone, Copy)]
enum Farewell {
    /// FIN to whoever has not got one.
    Orderly,
    /// RST to both; the one that reset the connection itself does not see it.
    Reset,
    /// An error to the client once it has got everything that was sent to it; RST to the server.
    Truncate,
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").finish_non_exhaustive()
    }
}

impl Joined {
    pub(crate) fn new(guard: Guard, ticket: Ticket, client: Stream, server: Stream) -> Joined {
        let settings = guard.relay().settings();
        let idle = settings.idle_timeout.map(Idle::new);
        Joined {
            settings,
            ends: Some(Ends { client, server, watch: None }),
            guard,
            request: Lane::new(Direction::Request),
            response: Lane::new(Direction::Response),
            first: None,
            ticket: Some(ticket),
            entered: false,
            used: false,
            idle,
            first_byte: None,
        }
    }

    /// Moves bytes both ways; `Some` when that ended the connection.
    fn relay(&mut self, cx: &mut Context<'_>) -> Option<(Close, Farewell)> {
        let Ends { client, server, .. } = self.ends.as_mut()?;
        let most = match (self.guard.relay().waiting() > MUCH_WAITS, self.guard.is_costly()) {
            (true, _) => SCARCE_READ_BYTES,
            (false, true) => COSTLY_READ_BYTES,
            (false, false) => usize::MAX,
        };
        let size = self.settings.scratch_bytes.min(self.settings.remainder_bytes).min(most).max(1);
        let (request, response, moved) = scratch::with(size, |scratch| {
            let mut eyes = Eyes { scratch, guard: &mut self.guard, moved: None };
            let last = self.response.finished();
            let request = self.request.turn(cx, &mut Way { from: client, to: server, last }, &mut eyes);
            if request == Turn::ReceiverGone {
                self.response.lose_sender();
            }
            let last = self.request.finished();
            let response = self.response.turn(cx, &mut Way { from: server, to: client, last }, &mut eyes);
            if response == Turn::ReceiverGone {
                self.request.lose_sender();
            }
            (request, response, eyes.moved)
        });
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
        if request == Turn::SenderReset {
            return Some((Close::Reset(Side::Client), Farewell::Reset));
        }
        if response == Turn::SenderReset {
            return Some((Close::Reset(Side::Server), Farewell::Reset));
        }
        if response == Turn::Truncated {
            return Some((Close::Truncated, Farewell::Truncate));
        }
        if request == Turn::ReceiverGone && self.response.ended() {
            return Some((Close::Reset(Side::Server), Farewell::Reset));
        }
        if response == Turn::ReceiverGone && self.request.ended() {
            return Some((Close::Reset(Side::Client), Farewell::Reset));
        }
        if self.request.finished() && self.response.finished() {
            let first = self.first.unwrap_or(Side::Client);
            return Some((Close::Finished { first }, Farewell::Orderly));
        }
        None
    }

    /// Watches an end that is not read. Where neither is, a write to the server is pending, which shows its reset.
    fn watch(&mut self, cx: &mut Context<'_>) -> Option<(Close, Farewell)> {
        let ends = self.ends.as_mut()?;
        // Once an end has our FIN and has sent its own, there is nothing left that a reset could cut.
        let watch_client = self.request.deaf() && !self.response.finished();
        // Bytes of the server that wait for a slow client are delivered before a reset of the server is passed on.
        let watch_server = self.response.deaf() && !self.response.pending() && !self.request.finished();
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
        watch.poll(cx, stream).is_ready().then_some((Close::Reset(side), Farewell::Reset))
    }

    /// What a drain asks of this connection.
    fn drain(&mut self, cx: &mut Context<'_>) -> Option<(Close, Farewell)> {
        match self.ticket.as_ref()?.phase() {
            Phase::Running | Phase::Closing => None,
            Phase::Forced => Some((Close::Drained, Farewell::Reset)),
            Phase::Draining => {
                if self.request.pending() || self.response.pending() {
                    return None;
                }
                // Without an observer only a connection that was never used is known to be idle.
                let idle = self.guard.idle().unwrap_or(!self.used);
                let idle = idle && (self.used || self.first_byte_is_due(cx));
                idle.then_some((Close::Drained, Farewell::Orderly))
            }
        }
    }

    fn first_byte_is_due(&mut self, cx: &mut Context<'_>) -> bool {
        self.first_byte.get_or_insert_with(|| Box::pin(tokio::time::sleep(FIRST_BYTE))).as_mut().poll(cx).is_ready()
    }

    fn idle_out(&mut self, cx: &mut Context<'_>) -> Option<(Close, Farewell)> {
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
                    (Close::IdleTimeout, Farewell::Reset)
                });
            }
            idle.timer.as_mut().reset(until.into());
        }
        None
    }

    /// From now on the half-close timeout counts. Most connections are half closed for a moment only, which the reset watch
    /// knows: they are spared the timer.
    fn limit_half_close(&mut self) {
        let lasts = self.ends.as_ref().and_then(|ends| ends.watch.as_ref()).is_some_and(|watch| watch.lasts());
        let Some(timeout) = self.settings.half_close_timeout.filter(|_| lasts) else { return };
        let idle = self.idle.get_or_insert_with(|| Idle::new(timeout));
        if !std::mem::replace(&mut idle.half_closed, true) && timeout < idle.timeout {
            idle.timeout = timeout;
            idle.timer.as_mut().reset((idle.moved + timeout).into());
        }
    }

    /// The end of a connection that was half closed for too long. What the client may take for a whole response is ended in
    /// order only if it is one.
    fn half_close_over(&mut self) -> (Close, Farewell) {
        let whole = !self.request.pending() && !self.response.pending();
        match self.first {
            Some(Side::Server) if whole => (Close::Finished { first: Side::Server }, Farewell::Orderly),
            Some(Side::Server) => (Close::Finished { first: Side::Server }, Farewell::Reset),
            _ if whole && self.guard.idle() == Some(true) => {
                (Close::Finished { first: Side::Client }, Farewell::Orderly)
            }
            _ => (Close::IdleTimeout, Farewell::Reset),
        }
    }

    fn close(&mut self, close: Close, farewell: Farewell) {
        if let Some(Ends { client, server, .. }) = self.ends.take() {
            match farewell {
                Farewell::Orderly => {
                    client.close();
                    server.close();
                }
                Farewell::Reset => {
                    client.reset();
                    server.reset();
                }
                Farewell::Truncate => {
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

impl Future for Joined {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.entered {
            // Once is enough: the waker of a spawned task stays the same.
            if let Some(ticket) = &this.ticket {
                ticket.wake(cx.waker());
            }
            this.entered = true;
        }
        let end = this.relay(cx).or_else(|| this.watch(cx)).or_else(|| this.drain(cx)).or_else(|| this.idle_out(cx));
        match end {
            Some((close, farewell)) => {
                this.close(close, farewell);
                Poll::Ready(())
            }
            None if this.ends.is_none() => Poll::Ready(()),
            None => Poll::Pending,
        }
    }
}

impl Drop for Joined {
    /// A runtime that stops drops its tasks: the ending is told also then.
    fn drop(&mut self) {
        self.close(Close::Drained, Farewell::Reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_future_of_a_connection_stays_small() {
        assert!(size_of::<Joined>() <= 256, "{} bytes", size_of::<Joined>());
    }
}
