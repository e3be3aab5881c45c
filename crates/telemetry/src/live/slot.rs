//! A slot of the table: a request in flight as atomics, written by one thread and read by any.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::fence;

use crate::live::model_name::Bytes;
use crate::live::model_name::ModelName;

/// A time not reached yet, or an unknown number.
pub(super) const NEVER: u64 = u64::MAX;

/// The response headers have arrived.
pub(super) const HEADED: u8 = 1;
/// The response is streamed, or the request asks for a stream.
pub(super) const STREAMS: u8 = 1 << 1;
/// The response status is an error.
pub(super) const REFUSED: u8 = 1 << 2;
/// The response's end marker has arrived.
pub(super) const ANSWERED: u8 = 1 << 3;

/// The request generates tokens; otherwise it takes tokens and returns numbers, such as embeddings.
pub(super) const GENERATES: u8 = 1 << 4;

/// A session in which the engine may be silent for long while it waits for client input.
pub(super) const CONVERSES: u8 = 1 << 5;

/// A slot. Times are nanoseconds since the table was created.
///
/// The fields written per token share a cache line with the fields that identify the request: there are many slow
/// streams, so every token finds its slot evicted from the cache.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// Odd while a request holds the slot; incremented whenever it is taken or released.
    turn: AtomicU32,
    /// The free slot below this one.
    pub(super) link: AtomicU32,
    pub(super) pair: AtomicU16,
    pub(super) route: AtomicU8,
    pub(super) flags: AtomicU8,
    pub(super) first_token: AtomicU64,
    /// Time of the last token, or of the last prompt progress report.
    pub(super) progressed: AtomicU64,
    pub(super) tokens: AtomicU64,
    /// Start of the backpressure from the client; [`NEVER`] without backpressure.
    pub(super) held_up: AtomicU64,
    /// When backpressure last ended.
    pub(super) resumed: AtomicU64,
    pub(super) requested: AtomicU64,
    pub(super) sequence: AtomicU64,
    pub(super) connection: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) request_bytes: AtomicU64,
    pub(super) max_tokens: AtomicU64,
    pub(super) model: ModelName,
}

/// Values of a slot at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) pair: u16,
    pub(super) route: u8,
    pub(super) flags: u8,
    pub(super) sequence: u64,
    pub(super) connection: u64,
    pub(super) started: u64,
    pub(super) requested: u64,
    pub(super) request_bytes: u64,
    pub(super) max_tokens: u64,
    pub(super) first_token: u64,
    pub(super) progressed: u64,
    pub(super) tokens: u64,
    pub(super) held_up: u64,
    pub(super) resumed: u64,
    pub(super) model: Bytes,
}

impl Slot {
    /// Takes the slot; `fill` overwrites the values of the previous request.
    pub(super) fn enter(&self, fill: impl FnOnce(&Slot)) {
        // A reader of any new value also sees that the previous request has left.
        fence(Release);
        for never in
            [&self.requested, &self.max_tokens, &self.first_token, &self.progressed, &self.held_up, &self.resumed]
        {
            never.store(NEVER, Relaxed);
        }
        for nothing in [&self.request_bytes, &self.tokens] {
            nothing.store(0, Relaxed);
        }
        self.flags.store(0, Relaxed);
        fill(self);
        self.turn.fetch_add(1, Release);
    }

    /// Releases the slot.
    pub(super) fn leave(&self) {
        self.turn.fetch_add(1, Release);
    }

    /// The values of the current request; `None` when the slot is free or changes hands during the read. Values may be
    /// from different moments within the read.
    pub(super) fn look(&self) -> Option<Seen> {
        let turn = self.turn.load(Acquire);
        if turn.is_multiple_of(2) {
            return None;
        }
        let seen = Seen {
            pair: self.pair.load(Relaxed),
            route: self.route.load(Relaxed),
            flags: self.flags.load(Relaxed),
            sequence: self.sequence.load(Relaxed),
            connection: self.connection.load(Relaxed),
            started: self.started.load(Relaxed),
            requested: self.requested.load(Relaxed),
            request_bytes: self.request_bytes.load(Relaxed),
            max_tokens: self.max_tokens.load(Relaxed),
            first_token: self.first_token.load(Relaxed),
            progressed: self.progressed.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            held_up: self.held_up.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
            model: self.model.load(),
        };
        fence(Acquire);
        (self.turn.load(Relaxed) == turn).then_some(seen)
    }
}

/// Request state as far as the engine is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Not pending at the engine: the request is incomplete or refused, or the response is complete.
    Nothing,
    /// Blocked on the client (backpressure).
    HeldUp,
    /// A stream without a token yet.
    Prefilling,
    /// A stream with tokens.
    Decoding,
    /// A non-streamed response.
    Whole,
}

impl Seen {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The request's state.
    pub(super) fn doing(&self) -> Doing {
        match self {
            _ if self.held_up != NEVER => Doing::HeldUp,
            _ if self.requested == NEVER && self.first_token == NEVER => Doing::Nothing,
            _ if self.has(REFUSED) || self.has(ANSWERED) || self.has(CONVERSES) => Doing::Nothing,
            _ if self.first_token != NEVER => Doing::Decoding,
            _ if self.has(STREAMS) => Doing::Prefilling,
            _ => Doing::Whole,
        }
    }

    /// Start of the wait for the next token: the latest of request complete, last token and end of backpressure.
    pub(super) fn waits_since(&self) -> u64 {
        let came = |time| Some(time).filter(|time| *time != NEVER);
        let times = [came(self.requested), came(self.progressed), came(self.resumed)];
        times.into_iter().flatten().max().unwrap_or(self.started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_visible_while_taken_and_reset_on_reuse() {
        let slot = Slot::default();
        assert_eq!(slot.look(), None);
        slot.enter(|slot| {
            slot.started.store(7, Relaxed);
            slot.tokens.store(3, Relaxed);
            slot.flags.store(HEADED | REFUSED, Relaxed);
        });
        assert_eq!(slot.look().map(|seen| (seen.started, seen.tokens)), Some((7, 3)));
        slot.leave();
        assert_eq!(slot.look(), None);
        slot.enter(|slot| slot.started.store(9, Relaxed));
        let seen = slot.look().unwrap();
        assert_eq!((seen.started, seen.tokens, seen.flags, seen.doing()), (9, 0, 0, Doing::Nothing));
    }

    #[test]
    fn read_never_mixes_two_requests() {
        let slot = Slot::default();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..50_000 {
                    slot.enter(|slot| {
                        for number in [&slot.started, &slot.connection, &slot.sequence, &slot.request_bytes] {
                            number.store(n, Relaxed);
                        }
                    });
                    slot.leave();
                }
                done.store(true, Relaxed);
            });
            while !done.load(Relaxed) {
                if let Some(seen) = slot.look() {
                    let numbers = [seen.connection, seen.sequence, seen.request_bytes];
                    assert_eq!(numbers, [seen.started; 3]);
                }
            }
        });
    }
}
