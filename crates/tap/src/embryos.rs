//! Connections that the server has not accepted yet. Anyone can send segments that belong to no connection, from any
//! address, so they are only kept here: for a short time, in little memory, and without an observer.
//!
//! A connection is accepted once the client acknowledges the server's sequence number, which it cannot guess (RFC 6528),
//! or, if the handshake was not captured, once the server sends anything but SYN or a reset.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokometer_observe::budget::{Budget, Share};
use tokometer_observe::input::Direction;

use crate::segment::{Key, OwnedSegment, Segment};

/// Half of the time for which a connection is kept: a client repeats SYN and unacknowledged bytes after 1, 3, 7 and 15 s
/// (RFC 6298).
const PERIOD: Duration = Duration::from_secs(30);

/// Maximum number of connections in each of the two generations.
const MAX: usize = 4096;

/// Maximum number of segments of a connection, and of the bytes in the segments of a generation.
const MAX_SEGMENTS: usize = 16;
const MAX_BYTES: usize = 1 << 20;

/// Memory charged for a connection, for its table entry and its segments without their bytes.
const EMBRYO_BYTES: usize = 2 * size_of::<(Key, Vec<Held>)>() + 4 * size_of::<Held>();

/// A segment with its direction and time.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) direction: Direction,
    pub(crate) at: Instant,
    pub(crate) segment: OwnedSegment,
}

/// The segments of connections that the server has not accepted.
#[derive(Debug)]
pub(crate) struct Embryos {
    /// Once this generation is full or old, it replaces the other one.
    young: Generation,
    old: Generation,
    turned: Option<Instant>,
    share: Share,
}

#[derive(Debug, Default)]
struct Generation {
    embryos: HashMap<Key, Vec<Held>>,
    /// Bytes in all segments.
    bytes: usize,
}

impl Generation {
    fn held(&self) -> usize {
        self.embryos.len() * EMBRYO_BYTES + self.bytes
    }

    fn take(&mut self, key: &Key) -> Option<Vec<Held>> {
        let held = self.embryos.remove(key)?;
        self.bytes -= held.iter().map(|held| held.segment.len()).sum::<usize>();
        Some(held)
    }
}

impl Embryos {
    pub(crate) fn new(budget: &Budget) -> Embryos {
        let share = budget.account(None, 0).share();
        Embryos { young: Generation::default(), old: Generation::default(), turned: None, share }
    }

    fn get(&self, key: &Key) -> Option<&[Held]> {
        self.young.embryos.get(key).or_else(|| self.old.embryos.get(key)).map(Vec::as_slice)
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    /// True if this segment of the client completes a handshake (RFC 9293, section 3.10.7.4, SYN-RECEIVED).
    pub(crate) fn completes_handshake(&self, key: &Key, direction: Direction, segment: &Segment<'_>) -> bool {
        let is_answer = |held: &Held| {
            let answer = held.segment.as_segment();
            held.direction == Direction::Response && answer.syn() && Some(answer.first_byte()) == segment.acknowledged
        };
        let is_from_client = direction == Direction::Request && !segment.syn();
        is_from_client && self.get(key).is_some_and(|held| held.iter().any(is_answer))
    }

    /// Keeps a segment, if there is room.
    pub(crate) fn hold(&mut self, key: Key, held: Held) {
        let len = held.segment.len();
        if self.young.embryos.len() >= MAX || self.young.bytes + len > MAX_BYTES {
            self.turn();
        }
        let mut segments = self.take_all(&key);
        if segments.len() < MAX_SEGMENTS && len <= MAX_BYTES {
            segments.push(held);
        }
        self.young.bytes += segments.iter().map(|held| held.segment.len()).sum::<usize>();
        self.young.embryos.insert(key, segments);
        if self.charge().is_err() {
            self.old = Generation::default();
            if self.charge().is_err() {
                self.young = Generation::default();
                self.charge().ok();
            }
        }
    }

    /// Removes a connection; returns those of its segments that the server has accepted.
    pub(crate) fn take(&mut self, key: &Key, last: &Segment<'_>) -> Vec<Held> {
        let mut held = self.take_all(key);
        self.charge().ok();
        // The answer that this segment acknowledges, and the SYN that it answers.
        let is_answer = |held: &Held| held.direction == Direction::Response && held.segment.as_segment().syn();
        let acknowledged = last.acknowledged;
        held.retain(|held| !is_answer(held) || Some(held.segment.as_segment().first_byte()) == acknowledged);
        let answered = held.iter().find(|held| is_answer(held)).and_then(|held| held.segment.as_segment().acknowledged);
        let mut is_first = true;
        held.retain_mut(|held| {
            let segment = held.segment.as_segment();
            if held.direction == Direction::Response || !segment.syn() {
                return true;
            }
            let first = segment.first_byte();
            // Bytes in SYN count only if the server acknowledges them (TCP Fast Open, RFC 7413, section 4.2.2).
            let accepted = answered.map_or(0, |answered| answered.wrapping_sub(first));
            let is_answered = answered.map_or(std::mem::take(&mut is_first), |_| accepted <= segment.len);
            held.segment.truncate(accepted);
            is_answered
        });
        held
    }

    fn take_all(&mut self, key: &Key) -> Vec<Held> {
        self.young.take(key).or_else(|| self.old.take(key)).unwrap_or_default()
    }

    /// Forgets connections that have not been accepted in time.
    pub(crate) fn expire(&mut self, at: Instant) {
        if at.saturating_duration_since(*self.turned.get_or_insert(at)) >= PERIOD {
            self.turned = Some(at);
            self.turn();
            self.charge().ok();
        }
    }

    fn turn(&mut self) {
        self.old = std::mem::take(&mut self.young);
    }

    fn charge(&mut self) -> Result<(), ()> {
        self.share.hold(self.young.held() + self.old.held()).map_err(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use tokometer_observe::budget::Budget;

    use crate::tests::log::Log;
    use crate::tests::packets::{ACK, RST, SYN, Tcp};
    use crate::tests::talk::{GET, Talk};

    /// More than the table of connections holds.
    const FLOOD: u32 = 70_000;

    /// Sends these segments of the client and answers of the server from many addresses, then observes a new connection.
    fn check(flags: u8, payload: &str, answer: u8) {
        let budget = Budget::new(64 << 20);
        let held = budget.clone();
        let mut talk = Talk::with(Log::new(), |limits| limits.budget = budget);
        let (client, up, down) = (talk.client, talk.up, talk.down);
        let mut most = 0;
        for n in 0..FLOOD {
            talk.client = ((0x0a00_0000 + n).to_be_bytes(), 40_000).into();
            let tcp = talk.client_segment(flags, payload.as_bytes());
            talk.capture(&tcp);
            if answer != 0 {
                let tcp = talk.server_segment(answer, b"");
                talk.capture(&Tcp { ack: tcp.ack.wrapping_add(1), ..tcp });
            }
            most = most.max(held.held());
        }
        assert!(most < 16 << 20, "{most}");
        (talk.client, talk.up, talk.down) = (client, up, down);
        talk.client.set_port(41_000);
        talk.open().c(GET).s("x");
        assert_eq!(talk.calls().len(), 2);
        let stats = talk.tap.stats();
        assert_eq!((stats.opened.get(), stats.attached.get(), stats.shed.get()), (1, 0, 0));
        // A connection in progress is found, too.
        talk.client.set_port(41_001);
        talk.c(GET).s("x");
        assert_eq!(talk.calls().len(), 2);
        talk.wait(31_000).tick().wait(31_000).tick().wait(31_000).tick().end();
        assert_eq!(held.held(), 0);
    }

    #[test]
    fn unanswered_and_half_open_connections_hold_no_place() {
        check(SYN, "", 0);
        check(SYN, "", SYN | ACK);
        check(SYN, GET, SYN | ACK);
    }

    #[test]
    fn data_of_no_connection_creates_no_record() {
        check(ACK, GET, 0);
        check(ACK, GET, RST);
    }
}
