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
    /// Position of a byte that the receiver does not read with the others.
    urgent: Option<u64>,
    waiting: Option<Box<Waiting>>,
}

/// Segments after a hole.
#[derive(Debug)]
struct Waiting {
    /// The segments by position. They may overlap, but none contains another.
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

    /// End of the last segment after a hole.
    pub(crate) fn waiting_end(&self) -> Option<u32> {
        let (start, piece) = self.waiting.as_ref()?.pieces.last_key_value()?;
        let distance = start + piece.len() as u64 - self.position;
        self.next.map(|next| next.wrapping_add(distance as u32))
    }

    /// Skips all bytes up to `end`, as if they had arrived. For unobserved connections.
    pub(crate) fn skip_to(&mut self, end: u32) {
        if self.distance(end).is_none_or(|distance| distance > 0) {
            self.start(end);
        }
    }

    /// Records a FIN with this sequence number. As in Linux (`tcp_data_queue_ofo`, `tcp_ofo_queue`), it has no effect if
    /// bytes with this number or later ones have arrived.
    pub(crate) fn finish(&mut self, sequence: u32) {
        let Some(position) = self.distance(sequence).and_then(|distance| self.at(distance)) else { return };
        let is_covered = self.waiting.as_ref().is_some_and(|waiting| waiting.covers(position));
        if position >= self.position && !is_covered && !self.is_finished() {
            self.fin = Some(position);
        }
    }

    /// Records that the byte with this sequence number is urgent. Linux does not pass such a byte to the application
    /// with the others (`tcp_check_urg`, `tcp_recvmsg_locked`), unless the socket has the option `SO_OOBINLINE`.
    pub(crate) fn mark_urgent(&mut self, sequence: u32) {
        let position = self.distance(sequence).and_then(|distance| self.at(distance));
        if position.is_some_and(|position| position >= self.position) && position > self.urgent {
            self.urgent = position;
        }
    }

    /// The position at this distance; `None` if it is before the first captured byte.
    fn at(&self, distance: i32) -> Option<u64> {
        self.position.checked_add_signed(distance.into())
    }

    /// Adds the bytes of a segment, which had `len` bytes on the wire, and delivers bytes that are in order. Bytes that
    /// were delivered earlier take precedence, because the receiver has already read them.
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
        if self.is_finished() {
            // The receiver ignores bytes after FIN (RFC 9293, section 3.10.7.4).
            return Arrival::Empty;
        }
        self.pass(bytes.get(old as usize..).unwrap_or_default(), deliver);
        if self.waiting.is_some() {
            self.pass_waiting(deliver);
        }
        Arrival::Next
    }

    /// Delivers the next bytes.
    fn pass(&mut self, bytes: &[u8], deliver: &mut impl FnMut(&[u8])) {
        if bytes.is_empty() {
            return;
        }
        let before = self.position;
        self.position += bytes.len() as u64;
        // Modulo 2^32, as sequence numbers are.
        self.next = self.next.map(|next| next.wrapping_add(bytes.len() as u32));
        // A FIN before bytes that the receiver accepts has no effect.
        self.fin = self.fin.filter(|fin| *fin >= self.position);
        match self.urgent.and_then(|urgent| bytes.split_at_checked((urgent - before) as usize)) {
            Some((bytes, [_, rest @ ..])) => {
                self.urgent = None;
                [bytes, rest].into_iter().filter(|bytes| !bytes.is_empty()).for_each(deliver);
            }
            _ => deliver(bytes),
        }
    }

    fn take_early(&mut self, distance: i32, bytes: &[u8], room: &Room<'_>) -> Arrival {
        let Some(start) = self.at(distance).filter(|_| !bytes.is_empty()) else { return Arrival::Early };
        if self.is_finished() {
            return Arrival::Empty;
        }
        let waiting = self.waiting.get_or_insert_with(|| {
            let share = room.budget.account(Some(room.client.address()), 0).share();
            Box::new(Waiting { pieces: BTreeMap::new(), bytes: 0, share })
        });
        let arrival = match waiting.insert(start, bytes, room.bytes) {
            Ok(false) => Arrival::Old,
            Ok(true) => Arrival::Early,
            Err(Full) => Arrival::Full,
        };
        self.fin = self.fin.filter(|fin| !waiting.covers(*fin));
        arrival
    }

    /// Delivers the waiting bytes that are next.
    fn pass_waiting(&mut self, deliver: &mut impl FnMut(&[u8])) {
        while !self.is_finished()
            && let Some((start, piece)) = self.waiting.as_mut().and_then(|waiting| waiting.pop(self.position))
        {
            let known = (self.position - start) as usize;
            self.pass(piece.get(known..).unwrap_or_default(), deliver);
        }
        if self.waiting_bytes() == 0 {
            self.waiting = None;
        }
    }
}

/// A segment would exceed the limits.
struct Full;

impl Waiting {
    /// Adds a segment; false if its bytes are all stored already. Of two segments with different bytes at the same
    /// position, the one that begins earlier counts, or else the longer one: Linux keeps both, unless one contains the
    /// other, and reads them in order (`tcp_data_queue_ofo`).
    fn insert(&mut self, start: u64, bytes: &[u8], max: usize) -> Result<bool, Full> {
        let end = start + bytes.len() as u64;
        let before = self.pieces.range(..=start).next_back();
        if before.is_some_and(|(first, piece)| end <= first + piece.len() as u64) {
            return Ok(false);
        }
        while let Some((first, piece)) = self.pieces.range(start..).next()
            && first + piece.len() as u64 <= end
        {
            let first = *first;
            self.remove(first);
        }
        self.hold(self.bytes + bytes.len(), self.pieces.len() + 1, max)?;
        self.pieces.insert(start, bytes.into());
        Ok(true)
    }

    /// True if a stored segment contains this position.
    fn covers(&self, position: u64) -> bool {
        // Segments do not contain each other, so only the last one before the position can reach it.
        let last = self.pieces.range(..=position).next_back();
        last.is_some_and(|(first, piece)| position < first + piece.len() as u64)
    }

    fn hold(&mut self, bytes: usize, pieces: usize, max: usize) -> Result<(), Full> {
        let held = bytes + pieces * PIECE_BYTES;
        if held > max || self.share.hold(held).is_err() {
            return Err(Full);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Removes the first segment if it begins at or before this position.
    fn pop(&mut self, position: u64) -> Option<(u64, Box<[u8]>)> {
        let first = *self.pieces.first_key_value()?.0;
        if first > position { None } else { self.remove(first).map(|piece| (first, piece)) }
    }

    fn remove(&mut self, start: u64) -> Option<Box<[u8]>> {
        let piece = self.pieces.remove(&start)?;
        self.bytes -= piece.len();
        // Cannot fail: the share only shrinks.
        self.share.hold(self.bytes + self.pieces.len() * PIECE_BYTES).ok();
        Some(piece)
    }
}
