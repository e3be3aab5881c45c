//! One connection: processes its segments and calls its observer.

mod network;
mod observed;
mod reassembly;
mod receiver;
pub(crate) mod synchronise;

use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Direction, Observer, Side};

use crate::flow::network::{Meter, Window};
use crate::flow::reassembly::Reassembly;
use crate::flow::receiver::Receiver;
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

/// How long the sender of a reset must send nothing else until the connection counts as reset. Longer than a round trip
/// and a delayed acknowledgement.
const RESET: Duration = Duration::from_secs(1);

/// Both ends of a connection, and the listener it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) client: Endpoint,
    pub(crate) server: Endpoint,
    pub(crate) listener: usize,
}

/// A connection.
pub(crate) struct Flow {
    /// The server has sent SYN for a new connection between the same ends.
    pub(crate) is_replaced: bool,
    ends: Ends,
    begun: Instant,
    /// Time of the connection's last segment.
    last: Instant,
    request: Half,
    response: Half,
    state: State,
    /// The side that finished first.
    finished_first: Option<Side>,
    network: Meter,
    /// The connection has been counted as TLS.
    tls: bool,
    /// A reset that ends the connection unless its sender goes on.
    reset: Option<Reset>,
    /// Sequence number of the first byte of the response, if the handshake was captured.
    first_response_byte: Option<u32>,
}

/// A reset that the receiver accepts, as far as the capture shows.
#[derive(Clone, Copy, Debug)]
struct Reset {
    side: Side,
    at: Instant,
    /// Time of the connection's last bytes, if later: the receiver may send until the reset reaches it.
    ended: Instant,
    /// The capture lacks bytes that were sent before.
    lacks_bytes: bool,
}

/// One direction.
#[derive(Debug, Default)]
struct Half {
    bytes: Reassembly,
    receiver: Receiver,
    /// FIN and all bytes before it have arrived.
    finished: bool,
    /// The receiver acknowledged bytes that the capture lacks: the acknowledged sequence number, and when.
    missing: Option<(u32, Instant)>,
    /// Whether this host sends the segments of this direction. On a loopback interface each segment is captured a
    /// second time, when it is received.
    outgoing: Option<bool>,
    /// [`Segment::print`] of the last accepted segment, and when the segment was captured.
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
    /// Creates a connection that began at `at`. Without a captured SYN, the connection is already in progress.
    pub(crate) fn new(ends: Ends, has_syn: bool, at: Instant, shared: &Shared) -> Flow {
        let state = if has_syn {
            shared.stats.opened.add(1);
            State::Ready
        } else {
            shared.stats.attached.add(1);
            shared.stats.unsynchronised.change(0, 1);
            State::Unsynchronised
        };
        Flow {
            is_replaced: false,
            ends,
            begun: at,
            last: at,
            request: Half::default(),
            response: Half::default(),
            state,
            finished_first: None,
            network: Meter::default(),
            tls: false,
            reset: None,
            first_response_byte: None,
        }
    }

    /// Processes a segment. SYN segments are passed only at the beginning of the connection.
    pub(crate) fn segment(&mut self, direction: Direction, segment: &Segment<'_>, at: Instant, shared: &mut Shared) {
        let half = self.half(direction);
        if half.receiver.is_corrupt(segment) {
            return shared.stats.ignored.add(1);
        }
        let is_again = |(print, then)| print == segment.print && at.saturating_duration_since(then) < COPIES;
        if half.print.is_some_and(is_again) {
            return shared.stats.duplicates.add(1);
        }
        // If each segment is captured twice, the sent copy comes first. The received copy (`is_copy`) counts as a
        // duplicate and is not measured, but its bytes can fill a gap after a loss. Otherwise it must not: it may come
        // from another host, and be a packet with a forged source address.
        half.outgoing = half.outgoing.max(segment.outgoing);
        let is_copy = half.outgoing != segment.outgoing;
        if is_copy {
            shared.stats.duplicates.add(1);
            if !half.receiver.may_lack && half.missing.is_none() {
                return;
            }
        } else {
            shared.stats.segments.add(1);
        }
        if matches!(self.state, State::Ended) {
            return;
        }
        if segment.rst() {
            return self.reset(direction, segment, at, shared);
        }
        if !self.accepts(direction, segment) {
            return shared.stats.ignored.add(1);
        }
        self.last = at;
        let (half, other) = self.halves(direction);
        half.print = Some((segment.print, at));
        let is_acknowledging = half.receiver.accepted(segment, &mut other.receiver);
        if is_acknowledging || segment.len > 0 || segment.fin() {
            self.reset = self.reset.filter(|reset| reset.side != side(direction));
        }
        if segment.len > 0
            && let Some(reset) = &mut self.reset
        {
            reset.ended = at;
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
    }

    /// True if the receiver of this segment accepts it. The server is trusted: if the capture lacks windows that the
    /// client has announced, none of the server's bytes may be ignored. A client may be anyone.
    fn accepts(&mut self, direction: Direction, segment: &Segment<'_>) -> bool {
        let first = self.first_response_byte;
        let (half, other) = self.halves(direction);
        let is_accepted = direction == Direction::Response
            || segment.acknowledged.is_none_or(|number| other.receiver.accepts_acknowledgement(number, first))
                && half.receiver.accepts(segment, &other.receiver);
        half.receiver.sent(segment);
        is_accepted
    }

    fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    /// The half of this direction, and the other one.
    fn halves(&mut self, direction: Direction) -> (&mut Half, &mut Half) {
        match direction {
            Direction::Request => (&mut self.request, &mut self.response),
            Direction::Response => (&mut self.response, &mut self.request),
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
        if segment.syn() && (!started || direction == Direction::Response) {
            // Windows are scaled only if both sides send the option (RFC 7323, section 2.2). The server answers the
            // client's first SYN.
            let (half, other) = self.halves(direction);
            other.receiver.set_scale(segment.scale.unwrap_or(0));
            if segment.scale.is_none() {
                half.receiver.set_scale(0);
            }
        }
        if direction == Direction::Response && segment.syn() {
            self.first_response_byte = Some(segment.first_byte());
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
        if !self.halves(direction).1.bytes.is_started() {
            if !segment.syn() && !self.half(direction).bytes.began_at(segment.first_byte()) {
                // The server's SYN was not captured. Only the client's first segment is certain to acknowledge nothing
                // but that SYN; a later segment may acknowledge bytes that are missing.
                self.lose(at, shared);
            }
            self.halves(direction).1.bytes.start(acknowledged);
        }
        let is_observed = matches!(self.state, State::Ready | State::Observed(_));
        let is_unsynchronised = matches!(self.state, State::Unsynchronised);
        let half = self.halves(direction).1;
        if half.bytes.distance(acknowledged).is_some_and(|distance| distance == i32::from(half.bytes.is_finished())) {
            half.receiver.may_lack = false;
        }
        if is_unsynchronised {
            half.bytes.skip_to(acknowledged);
        }
        if is_observed && half.missing.is_none() && half.bytes.lacks(acknowledged) {
            half.missing = Some((acknowledged, at));
            shared.suspects_end = true;
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
        let end = segment.first_byte().wrapping_add(segment.len);
        // Bytes after a hole may never become part of the stream. Once they have, the receiver acknowledges them.
        if half.bytes.distance(segment.first_byte()).is_some_and(|distance| distance <= 0) {
            half.bytes.skip_to(end);
        }
        if segment.fin() && half.bytes.distance(end) == Some(0) && !half.finished {
            self.finish(direction, at, shared);
        }
    }

    fn check_gap(&mut self, at: Instant, shared: &mut Shared) {
        let is_over =
            |half: &Half| half.missing.is_some_and(|(_, since)| at.saturating_duration_since(since) >= GAP_TIMEOUT);
        if is_over(&self.request) || is_over(&self.response) {
            self.lose(at, shared);
        }
        shared.suspects_end |= self.request.missing.is_some() || self.response.missing.is_some();
    }

    /// Ends the connection if a reset is older than [`RESET`], or with `None`, immediately.
    fn check_reset(&mut self, at: Option<Instant>, shared: &mut Shared) {
        let Some(reset) = self.reset else { return };
        if at.is_some_and(|at| at.saturating_duration_since(reset.at) < RESET) {
            shared.suspects_end = true;
            return;
        }
        if reset.lacks_bytes {
            self.lose(reset.ended, shared);
        }
        self.close(Close::Reset(reset.side), reset.ended, shared);
    }

    /// Ends the connection because a new one between the same ends has begun.
    pub(crate) fn replace(&mut self, at: Instant, shared: &mut Shared) {
        self.check_reset(None, shared);
        if self.request.lacks_bytes() || self.response.lacks_bytes() {
            self.lose(at, shared);
        }
        self.close(Close::Reset(Side::Client), at, shared);
    }

    /// Reports lost packets that may have belonged to this connection.
    pub(crate) fn lost_packets(&mut self, at: Instant, shared: &Shared) {
        self.request.receiver.lost_packets();
        self.response.receiver.lost_packets();
        self.call(shared, |observer| observer.lost_packets(at));
    }

    /// Checks for gaps and for an idle timeout.
    pub(crate) fn tick(&mut self, at: Instant, shared: &mut Shared) -> Action {
        self.check_gap(at, shared);
        self.check_reset(Some(at), shared);
        let quiet = at.saturating_duration_since(self.last);
        if matches!(self.state, State::Ended) {
            return if quiet < LINGER { Action::Keep } else { Action::Remove };
        }
        if quiet < shared.limits.idle {
            return Action::Keep;
        }
        // No end was captured, so it is unknown whether the connection has ended.
        self.close(Close::CaptureEnded, at, shared);
        Action::Remove
    }

    /// Ends the connection because the capture ends. A response is certainly over only if the server has sent FIN.
    pub(crate) fn end(&mut self, at: Instant, shared: &mut Shared) {
        self.check_reset(None, shared);
        let close = match self.finished_first {
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

/// The sender of this direction.
fn side(direction: Direction) -> Side {
    match direction {
        Direction::Request => Side::Client,
        Direction::Response => Side::Server,
    }
}
