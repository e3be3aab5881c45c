//! The observed part of a connection: passes bytes, ends and losses to its observer.

use std::time::Instant;

use tokometer_observe::input::{Close, Connection, Direction, Observer};

use crate::flow::reassembly::{Arrival, Room};
use crate::flow::{Ends, Flow, Reset, State, side, synchronise};
use crate::segment::Segment;
use crate::shared::Shared;

impl Flow {
    /// Processes a segment of an observed connection.
    pub(super) fn observe(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        is_copy: bool,
        at: Instant,
        shared: &mut Shared,
    ) {
        let (first, len) = (segment.first_byte(), segment.len);
        if segment.payload.len() < len as usize {
            shared.stats.truncated.add(1);
        }
        let bytes = &mut self.half(direction).bytes;
        if segment.fin() {
            bytes.finish(first.wrapping_add(len));
        }
        if segment.urgent > 0 {
            // tcp_check_urg, without the setting `tcp_stdurg`.
            bytes.mark_urgent(segment.sequence.wrapping_add(u32::from(segment.urgent) - 1));
        }
        let arrival = self.reassemble(direction, segment, at, shared);
        if !is_copy {
            match arrival {
                Arrival::Next if direction == Direction::Response => self.network.sent(first.wrapping_add(len), at),
                Arrival::Old => {
                    shared.stats.retransmitted.add(1);
                    if direction == Direction::Response {
                        self.network.sent_again(true);
                    }
                }
                Arrival::Early => shared.stats.out_of_order.add(1),
                _ => {}
            }
        }
        if arrival == Arrival::Full {
            return self.lose(at, shared);
        }
        let half = self.half(direction);
        if half.missing.is_some_and(|(before, _)| !half.bytes.lacks(before)) {
            half.missing = None;
        }
        if half.bytes.is_finished() && !half.finished {
            self.finish(direction, at, shared);
        }
    }

    /// Puts the bytes in order and passes them to the observer.
    fn reassemble(&mut self, direction: Direction, segment: &Segment<'_>, at: Instant, shared: &mut Shared) -> Arrival {
        if matches!(self.state, State::Ready) && segment.len > 0 {
            self.accept(direction, segment, shared);
        }
        if segment.len > 0
            && let Some(network) = self.network.changes(at)
        {
            self.call(shared, |observer| observer.network(&network));
        }
        let Flow { ends, request, response, state, .. } = self;
        let bytes = match direction {
            Direction::Request => &mut request.bytes,
            Direction::Response => &mut response.bytes,
        };
        let mut panicked = false;
        let mut deliver = |bytes: &[u8]| {
            let State::Observed(observer) = &mut *state else { return };
            shared.stats.bytes(direction).add(bytes.len() as u64);
            panicked = panicked || shared.contain(|| observer.seen(direction, bytes, at)).is_none();
        };
        let before = bytes.waiting_bytes();
        let limits = &shared.limits;
        let room = Room { budget: &limits.budget, client: ends.client, bytes: limits.reassembly_bytes };
        let arrival = bytes.take(segment.first_byte(), segment.payload, segment.len, &room, &mut deliver);
        let waiting = bytes.waiting_bytes();
        shared.stats.reassembly_bytes.change(before as u64, waiting as u64);
        if panicked {
            self.dismiss(shared);
        }
        arrival
    }

    /// Creates the observer.
    fn accept(&mut self, direction: Direction, segment: &Segment<'_>, shared: &mut Shared) {
        if direction == Direction::Request && synchronise::begins_tls(segment.payload) {
            self.tls = true;
            shared.stats.tls.add(1);
        }
        let Ends { client, server, listener } = self.ends;
        let observer = shared.accepted(Connection {
            id: 0,
            peer: Some(client.socket_address()),
            listener,
            upstream: server.socket_address().to_string().into(),
            accepted: self.begun,
        });
        self.state = observer.map_or(State::Unobserved, State::Observed);
        if let Some(since) = self.network.closed_since() {
            self.call(shared, |observer| observer.waits(Direction::Response, since));
        }
    }

    /// Records that a direction has ended with FIN. Its bytes have all been delivered or given up.
    pub(super) fn finish(&mut self, direction: Direction, at: Instant, shared: &mut Shared) {
        self.half(direction).finished = true;
        let first = *self.finished_first.get_or_insert(side(direction));
        self.call(shared, |observer| observer.finished(direction, at));
        if self.request.finished && self.response.finished {
            self.close(Close::Finished { first }, at, shared);
        }
    }

    /// Handles a reset by the sender of `direction`. The receiver accepts it only with exactly the next sequence number
    /// (RFC 5961, section 3.2). Linux (`tcp_validate_incoming`, `tcp_reset_check`) also accepts the end of the last
    /// segment after a hole, and the number of a FIN that it has received. Timestamp and acknowledgement do not matter.
    /// The reset counts once its sender has sent nothing else for [`RESET`](super::RESET): a firewall may have dropped it.
    pub(super) fn reset(&mut self, direction: Direction, segment: &Segment<'_>, at: Instant, shared: &mut Shared) {
        let (half, other) = self.halves(direction);
        let after_fin = i32::from(half.bytes.is_finished());
        let number = segment.sequence;
        let Some(distance) = half.bytes.distance(number) else { return shared.stats.ignored.add(1) };
        let is_next = distance == 0 || distance == after_fin;
        let is_accepted = is_next
            || half.bytes.waiting_end() == Some(number)
            // The capture lacks bytes that the receiver has.
            || distance > 0 && half.receiver.has_acknowledged(number)
            || distance > 0 && half.receiver.may_lack && half.receiver.is_in_window(number);
        if !is_accepted {
            return shared.stats.ignored.add(1);
        }
        let lacks_before = |acknowledged| {
            other.bytes.lacks(acknowledged) && other.receiver.accepts_acknowledgement(acknowledged, None)
        };
        let lacks_bytes = !is_next || other.lacks_bytes() || segment.acknowledged.is_some_and(lacks_before);
        shared.suspects_end = true;
        self.reset.get_or_insert(Reset { side: side(direction), at, ended: at, lacks_bytes });
    }

    /// Gives up on missing bytes and drops the observer. The connection can be observed again from the next request on.
    pub(super) fn lose(&mut self, at: Instant, shared: &mut Shared) {
        if !matches!(self.state, State::Ready | State::Observed(_)) {
            return;
        }
        shared.stats.gaps.add(1);
        self.call(shared, |observer| observer.lost(at));
        self.dismiss(shared);
        self.forget_bytes(shared);
        self.state = State::Unsynchronised;
        shared.stats.unsynchronised.change(0, 1);
        for direction in [Direction::Request, Direction::Response] {
            let half = self.half(direction);
            if half.bytes.has_fin() && !half.finished {
                self.finish(direction, at, shared);
            }
        }
    }

    fn forget_bytes(&mut self, shared: &Shared) {
        for half in [&mut self.request, &mut self.response] {
            shared.stats.reassembly_bytes.change(half.bytes.waiting_bytes() as u64, 0);
            half.bytes.forget_waiting();
            half.missing = None;
        }
    }

    pub(super) fn close(&mut self, close: Close, at: Instant, shared: &mut Shared) {
        if matches!(self.state, State::Ended) {
            return;
        }
        if matches!(self.state, State::Unsynchronised) {
            shared.stats.unsynchronised.change(1, 0);
        }
        if let Some(since) = self.network.closed_since() {
            self.call(shared, |observer| observer.blocked(Direction::Response, since, at));
        }
        if let Some(network) = self.network.changes(at) {
            self.call(shared, |observer| observer.network(&network));
        }
        self.call(shared, |observer| observer.closed(close, at));
        self.dismiss(shared);
        self.forget_bytes(shared);
        self.state = State::Ended;
        shared.stats.ended.add(1);
    }

    /// Calls the observer, if there is one, and drops it if it panics.
    pub(super) fn call(&mut self, shared: &Shared, call: impl FnOnce(&mut dyn Observer)) {
        if let State::Observed(observer) = &mut self.state
            && shared.contain(|| call(observer.as_mut())).is_none()
        {
            self.dismiss(shared);
        }
    }

    /// Drops the observer, if there is one.
    fn dismiss(&mut self, shared: &Shared) {
        if self.is_observed()
            && let State::Observed(observer) = std::mem::replace(&mut self.state, State::Unobserved)
        {
            shared.contain(|| drop(observer));
        }
    }

    fn is_observed(&self) -> bool {
        matches!(self.state, State::Observed(_))
    }
}
