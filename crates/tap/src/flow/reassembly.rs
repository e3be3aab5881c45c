//! One direction of a connection: puts its segments in order.

use std::collections::BTreeMap;

use tokometer_observe::budget::{Budget, Share};

use crate::segment::Endpoint;

/// Maximum distance between two sequence numbers of a connection (RFC 7323, section 2.3). Beyond it, earlier and later
/// numbers cannot be distinguished reliably.
const MAX_DISTANCE: i32 = 1 << 30;

/// Memory charged for a waiting segment in addition to its bytes.
const PIECE_BYTES: usize = 64;

/// Limits on the memory for segments that wait for earlier ones.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    pub(crate) budget: &'a Budget,
    /// The client; clients share the budget fairly.
    pub(crate) client: Endpoint,
    /// Maximum number of waiting bytes.
    pub(crate) bytes: usize,
}

/// What a segment contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The next bytes, possibly preceded by known bytes.
    Next,
    /// Bytes after a hole.
    Early,
    /// Nothing new: a retransmission.
    Old,
    /// A keep-alive or window probe: at most one byte, the last byte sent (RFC 9293, section 3.8.4).
    Probe,
    /// Nothing: a pure acknowledgement.
    Empty,
    /// Bytes after a hole that exceed the limits.
    Full,
}

/// Puts the captured segments of one direction in sequence order. Only segments after a hole are stored.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// Sequence number of the next byte, once known.
    next: Option<u32>,
    /// The number of bytes before `next`, counted from the first captured byte.
    position: u64,
    /// Position of FIN.
    fin: Option<u64>,
    waiting: Option<Box<Waiting>>,
}

/// Segments after a hole.
#[derive(Debug)]
struct Waiting {
    /// The segments by position, without overlaps.
    pieces: BTreeMap<u64, Box<[u8]>>,
    bytes: usize,
    share: Share,
}

impl Reassembly {
    /// Starts, or restarts, with this sequence number.
    pub(crate) fn start(&mut self, next: u32) {
        *self = Reassembly { next: Some(next), ..Reassembly::default() };
    }

    /// True once a sequence number is known.
    pub(crate) fn is_started(&self) -> bool {
        self.next.is_some()
    }

    /// True if this is the sequence number of the direction's first byte.
    pub(crate) fn began_at(&self, sequence: u32) -> bool {
        self.distance(sequence).and_then(|distance| self.at(distance)) == Some(0)
    }

    /// Drops the bytes after holes.
    pub(crate) fn forget_waiting(&mut self) {
        self.waiting = None;
    }

    /// True once FIN has arrived, even if earlier bytes have not.
    pub(crate) fn has_fin(&self) -> bool {
        self.fin.is_some()
    }

    /// True once all bytes and FIN have arrived.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| fin <= self.position)
    }

    /// Number of bytes that wait for earlier bytes.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.bytes)
    }

    /// Distance of a sequence number from `next`; `None` if it cannot belong to the connection now.
    pub(crate) fn distance(&self, sequence: u32) -> Option<i32> {
        let distance = sequence.wrapping_sub(self.next?) as i32;
        (-MAX_DISTANCE..=MAX_DISTANCE).contains(&distance).then_some(distance)
    }

    /// True if an acknowledgement of this sequence number covers bytes that were not captured.
    pub(crate) fn lacks(&self, acknowledged: u32) -> bool {
        let distance = self.distance(acknowledged);
        self.is_started() && distance.is_none_or(|missing| missing > i32::from(self.is_finished()))
    }

    /// Skips all bytes up to `end`, as if they had arrived. For unobserved connections.
    pub(crate) fn skip_to(&mut self, end: u32) {
        if self.distance(end).is_none_or(|distance| distance > 0) {
            self.start(end);
        }
    }

    /// Records a FIN with this sequence number. Later FINs are ignored.
    pub(crate) fn finish(&mut self, sequence: u32) {
        if let Some(position) = self.distance(sequence).and_then(|distance| self.at(distance)) {
            self.fin.get_or_insert(position);
        }
    }

    /// The position at this distance; `None` if it is before the first captured byte.
    fn at(&self, distance: i32) -> Option<u64> {
        self.position.checked_add_signed(distance.into())
    }

    /// Adds the bytes of a segment, which had `len` bytes on the wire, and delivers bytes that are in order. Bytes that
    /// arrived earlier take precedence, because the receiver has already read them.
    pub(crate) fn take(
        &mut self,
        sequence: u32,
        bytes: &[u8],
        len: u32,
        room: &Room<'_>,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Arrival {
        let Some(distance) = self.distance(sequence) else { return Arrival::Empty };
        if len == 0 {
            return if distance == -1 { Arrival::Probe } else { Arrival::Empty };
        }
        if distance > 0 {
            return self.take_early(distance, bytes, room);
        }
        let old = distance.unsigned_abs();
        if old >= len {
            return if (old, len) == (1, 1) { Arrival::Probe } else { Arrival::Old };
        }
        let fresh = self.before_fin(bytes.get(old as usize..).unwrap_or_default());
        if self.waiting.is_none() {
            // The usual case.
            self.pass(fresh, deliver);
        } else {
            self.fill(fresh, deliver);
        }
        Arrival::Next
    }

    /// The part of the next bytes that is before FIN.
    fn before_fin<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let room = self.fin.map(|fin| usize::try_from(fin.saturating_sub(self.position)).unwrap_or(usize::MAX));
        room.and_then(|room| bytes.get(..room)).unwrap_or(bytes)
    }

    /// Delivers the next bytes.
    fn pass(&mut self, bytes: &[u8], deliver: &mut impl FnMut(&[u8])) {
        if !bytes.is_empty() {
            self.position += bytes.len() as u64;
            // Modulo 2^32, as sequence numbers are.
            self.next = self.next.map(|next| next.wrapping_add(bytes.len() as u32));
            deliver(bytes);
        }
    }

    fn take_early(&mut self, distance: i32, bytes: &[u8], room: &Room<'_>) -> Arrival {
        let Some(start) = self.at(distance).filter(|_| !bytes.is_empty()) else { return Arrival::Early };
        let waiting = self.waiting.get_or_insert_with(|| {
            let share = room.budget.account(Some(room.client.address()), 0).share();
            Box::new(Waiting { pieces: BTreeMap::new(), bytes: 0, share })
        });
        match waiting.insert(start, bytes, room.bytes) {
            Ok(false) => Arrival::Old,
            Ok(true) => Arrival::Early,
            Err(Full) => Arrival::Full,
        }
    }

    /// Delivers the next bytes and the waiting bytes that follow.
    fn fill(&mut self, mut bytes: &[u8], deliver: &mut impl FnMut(&[u8])) {
        loop {
            let first = self.waiting.as_ref().and_then(|waiting| waiting.pieces.first_key_value());
            let until = first.map_or(u64::MAX, |(start, _)| start.saturating_sub(self.position));
            let until = usize::try_from(until).unwrap_or(usize::MAX);
            let before = bytes.get(..until).unwrap_or(bytes);
            self.pass(before, deliver);
            if before.len() < until {
                break;
            }
            let Some(piece) = self.waiting.as_mut().and_then(|waiting| waiting.pop()) else { break };
            bytes = bytes.get(until + piece.len()..).unwrap_or_default();
            let piece = self.before_fin(&piece);
            self.pass(piece, deliver);
        }
        if self.waiting_bytes() == 0 {
            self.waiting = None;
        }
    }
}

/// A segment would exceed the limits.
struct Full;

impl Waiting {
    /// Adds those of the bytes that are not stored yet. True if there are any.
    fn insert(&mut self, start: u64, bytes: &[u8], max: usize) -> Result<bool, Full> {
        let end = start + bytes.len() as u64;
        let before = self.pieces.range(..start).next_back();
        let mut at = before.map_or(start, |(first, piece)| start.max(first + piece.len() as u64));
        let mut inserted = false;
        while at < end {
            let next = self.pieces.range(at..).next();
            let until = match next {
                Some((next, piece)) if *next == at => {
                    at += piece.len() as u64;
                    continue;
                }
                Some((next, _)) => end.min(*next),
                None => end,
            };
            // In bounds: `at` and `until` are between `start` and `end`.
            let part = bytes.get((at - start) as usize..(until - start) as usize).unwrap_or_default();
            self.hold(self.bytes + part.len(), self.pieces.len() + 1, max)?;
            self.pieces.insert(at, part.into());
            inserted = true;
            at = until;
        }
        Ok(inserted)
    }

    fn hold(&mut self, bytes: usize, pieces: usize, max: usize) -> Result<(), Full> {
        let held = bytes + pieces * PIECE_BYTES;
        if held > max || self.share.hold(held).is_err() {
            return Err(Full);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn pop(&mut self) -> Option<Box<[u8]>> {
        let (_, piece) = self.pieces.pop_first()?;
        self.bytes -= piece.len();
        // Cannot fail: the share only shrinks.
        self.share.hold(self.bytes + self.pieces.len() * PIECE_BYTES).ok();
        Some(piece)
    }
}
