//! One connection: processes its segments and calls its observer.

mod network;
mod observed;
mod reassembly;
pub(crate) mod synchronise;

use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Direction, Observer, Side};

use crate::flow::network::{Meter, Window};
use crate::flow::reassembly::Reassembly;
use crate::segment::{Endpoint, Segment};
use crate::shared::Shared;

/// Maximum time that acknowledged bytes may be missing. If several CPUs capture packets of one connection, the packets
/// may be out of order by microseconds.
const GAP_TIMEOUT: Duration = Duration::from_millis(100);

/// Two segments with the same [`Segment::print`] within this time are one segment, captured on two interfaces. A
/// retransmission takes longer (RFC 8985, section 7.2: a tail loss probe after two round trips).
const COPIES: Duration = Duration::from_millis(1);

/// How long an ended connection is remembered, so that its late segments are not assigned to a new connection.
const LINGER: Duration = Duration::from_secs(10);

/// How long a connection may take until both sides have sent something. Linux gives up on a SYN after 130 s.
const HANDSHAKE: Duration = Duration::from_secs(150);

/// Both ends of a connection, and the listener it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) client: Endpoint,
    pub(crate) server: Endpoint,
    pub(crate) listener: usize,
}

/// A connection.
pub(crate) struct Flow {
    ends: Ends,
    begun: Instant,
    /// Time of the connection's last segment.
    last: Instant,
    request: Half,
    response: Half,
    state: State,
    /// The side that finished first.
    first: Option<Side>,
    network: Meter,
    /// The connection has been counted as TLS.
    tls: bool,
    /// Sequence number of a SYN on an open connection: the client may have reconnected.
    reopening: Option<u32>,
}

/// One direction.
#[derive(Debug, Default)]
struct Half {
    bytes: Reassembly,
    /// FIN and all bytes before it have arrived.
    finished: bool,
    /// The receiver acknowledged bytes that the capture lacks: the acknowledged sequence number, and when.
    missing: Option<(u32, Instant)>,
    /// Whether this host sends the segments of this direction. On a loopback interface each segment is captured a
    /// second time, when it is received.
    outgoing: Option<bool>,
    /// [`Segment::print`] of the last segment, and when the segment was captured.
    print: Option<(u64, Instant)>,
}

/// Whether a connection is observed.
enum State {
    /// At the beginning of a request: the observer is created when the first bytes arrive.
    Ready,
    Observed(Box<dyn Observer>),
    /// In the middle of a message; can be observed from the next request on.
    Unsynchronised,
    /// The observers did not accept the connection.
    Unobserved,
    Ended,
}

/// What to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Keep,
    Remove,
}

impl Flow {
    /// Creates a connection from its first captured segment. Without SYN, the connection is already in progress.
    pub(crate) fn new(ends: Ends, segment: &Segment<'_>, at: Instant, shared: &Shared) -> Flow {
        let state = if segment.syn() {
            shared.stats.opened.add(1);
            State::Ready
        } else {
            shared.stats.attached.add(1);
            shared.stats.unsynchronised.change(0, 1);
            State::Unsynchronised
        };
        Flow {
            ends,
            begun: at,
            last: at,
            request: Half::default(),
            response: Half::default(),
            state,
            first: None,
            network: Meter::default(),
            tls: false,
            reopening: None,
        }
    }

    /// Processes a segment. `Remove` if the segment belongs to a new connection between the same ends.
    pub(crate) fn segment(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        at: Instant,
        shared: &mut Shared,
    ) -> Action {
        if !matches!(self.state, State::Ended) {
            self.last = at;
        }
        let half = self.half(direction);
        let (print, printed) = half.print.replace((segment.print, at)).unzip();
        if print == Some(segment.print) && printed.is_some_and(|then| at.saturating_duration_since(then) < COPIES) {
            shared.stats.duplicates.add(1);
            return Action::Keep;
        }
        // If each segment is captured twice, the sent copy comes first. The received copy (`is_copy`) counts as a
        // duplicate and is not measured, but its bytes can fill a gap.
        half.outgoing = half.outgoing.max(segment.outgoing);
        let is_copy = half.outgoing != segment.outgoing;
        if is_copy {
            shared.stats.duplicates.add(1);
        } else {
            shared.stats.segments.add(1);
        }
        if segment.syn() && !is_copy && self.is_replaced_by(direction, segment, at, shared) {
            return Action::Remove;
        }
        if matches!(self.state, State::Ended) {
            return Action::Keep;
        }
        if segment.rst() {
            self.reset(direction, segment, at, shared);
            return Action::Keep;
        }
        self.begin(direction, segment, at, shared);
        self.acknowledge(direction, segment, is_copy, at, shared);
        if direction == Direction::Request && !is_copy && !segment.syn() && !segment.fin() {
            self.window(segment.window, at, shared);
        }
        self.synchronise(direction, segment, shared);
        match self.state {
            State::Ready | State::Observed(_) => self.observe(direction, segment, is_copy, at, shared),
            _ => self.follow(direction, segment, at, shared),
        }
        self.check_gap(at, shared);
        Action::Keep
    }

    fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    fn other_half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Request => &mut self.response,
            Direction::Response => &mut self.request,
        }
    }

    /// True if this SYN belongs to a new connection. On an open connection, a client's SYN alone proves nothing,
    /// because anyone can send it. The server's SYN-ACK is the proof: the server sends it only if the old connection
    /// has ended.
    fn is_replaced_by(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        at: Instant,
        shared: &mut Shared,
    ) -> bool {
        let ended = matches!(self.state, State::Ended);
        match direction {
            Direction::Request if segment.opens() => {
                let bytes = &self.request.bytes;
                let is_known = !bytes.is_started() || bytes.began_at(segment.first_byte());
                self.reopening = (!is_known).then_some(segment.first_byte());
                ended
            }
            Direction::Response if self.reopening.is_some() && self.reopening == segment.acknowledged => {
                if self.request.lacks_bytes() || self.response.lacks_bytes() {
                    self.lose(at, shared);
                }
                self.close(Close::Reset(Side::Client), at, shared);
                true
            }
            _ => false,
        }
    }

    /// Records sequence numbers and the round trip of the handshake.
    fn begin(&mut self, direction: Direction, segment: &Segment<'_>, at: Instant, shared: &mut Shared) {
        let started = self.half(direction).bytes.is_started();
        if !started {
            if !segment.syn() {
                // Neither the server's SYN nor the client's acknowledgement was captured, so earlier bytes of this
                // direction may be missing.
                self.lose(at, shared);
            }
            self.half(direction).bytes.start(segment.first_byte());
        }
        if direction == Direction::Response && segment.syn() {
            match started {
                false => self.network.sent(segment.first_byte(), at),
                true => self.network.sent_again(false),
            }
        }
    }

    /// Processes the acknowledgement in a segment of `direction`, which refers to bytes of the other direction.
    fn acknowledge(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        is_copy: bool,
        at: Instant,
        shared: &mut Shared,
    ) {
        let Some(acknowledged) = segment.acknowledged else { return };
        if !self.other_half(direction).bytes.is_started() {
            if !segment.syn() && !self.half(direction).bytes.began_at(segment.first_byte()) {
                // The server's SYN was not captured. Only the client's first segment is certain to acknowledge nothing
                // but that SYN; a later segment may acknowledge bytes that are missing.
                self.lose(at, shared);
            }
            self.other_half(direction).bytes.start(acknowledged);
        }
        let is_observed = matches!(self.state, State::Ready | State::Observed(_));
        let half = self.other_half(direction);
        if is_observed && half.missing.is_none() && half.bytes.lacks(acknowledged) {
            half.missing = Some((acknowledged, at));
            shared.suspects_gap = true;
        }
        if direction == Direction::Request && !is_copy {
            self.network.acknowledged(acknowledged, at);
        }
    }

    /// Reports when the client stops and continues reading.
    fn window(&mut self, window: u16, at: Instant, shared: &Shared) {
        match self.network.window(window, at) {
            Window::Closed => self.call(shared, |observer| observer.waits(Direction::Response, at)),
            Window::Opened(since) => {
                self.call(shared, |observer| observer.blocked(Direction::Response, since, at));
            }
            Window::Unchanged => {}
        }
    }

    /// Begins to observe a connection in progress if this segment begins a request. The segment must follow all earlier
    /// bytes from the client, and must acknowledge all bytes captured from the server.
    fn synchronise(&mut self, direction: Direction, segment: &Segment<'_>, shared: &Shared) {
        if !matches!(self.state, State::Unsynchronised) {
            return;
        }
        if !self.tls && synchronise::is_tls(segment.payload) {
            self.tls = true;
            shared.stats.tls.add(1);
        }
        let Some(acknowledged) = segment.acknowledged.filter(|_| direction == Direction::Request) else { return };
        let is_next = self.request.bytes.distance(segment.first_byte()).is_some_and(|distance| distance >= 0);
        let is_quiet = self.response.bytes.distance(acknowledged).is_some_and(|distance| distance >= 0);
        let is_open = !self.request.finished && !self.response.finished;
        if is_next && is_quiet && is_open && synchronise::begins_request(segment.payload) {
            self.request.restart(segment.first_byte());
            self.response.restart(acknowledged);
            self.network.repeat();
            self.state = State::Ready;
            shared.stats.unsynchronised.change(1, 0);
            shared.stats.synchronised.add(1);
        }
    }

    /// Processes a segment of an unobserved connection.
    fn follow(&mut self, direction: Direction, segment: &Segment<'_>, at: Instant, shared: &mut Shared) {
        shared.stats.unobserved_bytes.add(segment.payload.len() as u64);
        let half = self.half(direction);
        half.missing = None;
        half.bytes.skip_to(segment.first_byte().wrapping_add(segment.len));
        if segment.fin() {
            self.finish(direction, at, shared);
        }
    }

    fn check_gap(&mut self, at: Instant, shared: &mut Shared) {
        let is_over =
            |half: &Half| half.missing.is_some_and(|(_, since)| at.saturating_duration_since(since) >= GAP_TIMEOUT);
        if is_over(&self.request) || is_over(&self.response) {
            self.lose(at, shared);
        }
        shared.suspects_gap |= self.request.missing.is_some() || self.response.missing.is_some();
    }

    /// Reports lost packets that may have belonged to this connection.
    pub(crate) fn lost_packets(&mut self, at: Instant, shared: &Shared) {
        self.call(shared, |observer| observer.lost_packets(at));
    }

    /// Checks for gaps and for an idle timeout.
    pub(crate) fn tick(&mut self, at: Instant, shared: &mut Shared) -> Action {
        self.check_gap(at, shared);
        let quiet = at.saturating_duration_since(self.last);
        if matches!(self.state, State::Ended) {
            return if quiet < LINGER { Action::Keep } else { Action::Remove };
        }
        let in_handshake = !self.request.bytes.is_started() || !self.response.bytes.is_started();
        if quiet < shared.limits.idle && !(in_handshake && quiet >= HANDSHAKE) {
            return Action::Keep;
        }
        // No end was captured, so it is unknown whether the connection has ended.
        self.close(Close::CaptureEnded, at, shared);
        Action::Remove
    }

    /// Ends the connection because the capture ends. A response is certainly over only if the server has sent FIN.
    pub(crate) fn end(&mut self, at: Instant, shared: &mut Shared) {
        let close = match self.first {
            Some(Side::Server) => Close::Finished { first: Side::Server },
            _ => Close::CaptureEnded,
        };
        self.close(close, at, shared);
    }
}

impl Half {
    /// True if bytes that were sent are missing. They may still arrive.
    fn lacks_bytes(&self) -> bool {
        !self.bytes.is_finished() && (self.missing.is_some() || self.bytes.waiting_bytes() > 0)
    }

    /// Restarts at this sequence number.
    fn restart(&mut self, next: u32) {
        self.bytes.start(next);
        self.missing = None;
    }
}
