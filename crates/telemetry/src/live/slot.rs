//! One place of the table: an exchange in flight as numbers that one thread writes and any may read.

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

/// A time that has not come, or a number that is not known.
pub(super) const NEVER: u64 = u64::MAX;

/// The response head has come.
pub(super) const HEADED: u8 = 1;
/// The answer is a stream, or is to be one.
pub(super) const STREAMS: u8 = 1 << 1;
/// The server refused it: its status is that of an error.
pub(super) const REFUSED: u8 = 1 << 2;
/// The answer's own end mark has come.
pub(super) const ANSWERED: u8 = 1 << 3;

/// It generates tokens; else it takes tokens in and answers with numbers.
pub(super) const GENERATES: u8 = 1 << 4;

/// A conversation in which the engine may rightly be silent for long: it waits for the client's next word.
pub(super) const CONVERSES: u8 = 1 << 5;

/// The place. Times are nanoseconds since the table was made.
///
/// What a token changes is in one cache line with what says whose place it is: streams are many and slow, so each of their
/// tokens finds its memory cold.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    /// Odd while an exchange has it; rises by one whenever it is taken or left.
    turn: AtomicU32,
    /// The free place below this one.
    pub(super) link: AtomicU32,
    pub(super) pair: AtomicU16,
    pub(super) route: AtomicU8,
    pub(super) flags: AtomicU8,
    pub(super) first_token: AtomicU64,
    /// The last token, or the last word on the prompt's progress.
    pub(super) progressed: AtomicU64,
    pub(super) tokens: AtomicU64,
    /// Since when its client takes no bytes; [`NEVER`] while it does.
    pub(super) held_up: AtomicU64,
    /// When its client last began to take bytes again.
    pub(super) resumed: AtomicU64,
    pub(super) requested: AtomicU64,
    pub(super) sequence: AtomicU64,
    pub(super) connection: AtomicU64,
    pub(super) started: AtomicU64,
    pub(super) request_bytes: AtomicU64,
    pub(super) max_tokens: AtomicU64,
    pub(super) model: ModelName,
}

/// What a place said at one moment.
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
    /// An exchange takes the place: `fill` writes its numbers over what the last one left.
    pub(super) fn enter(&self, fill: impl FnOnce(&Slot)) {
        // Whoever reads a number of the new exchange also sees that the old one has left.
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

    /// The exchange leaves.
    pub(super) fn leave(&self) {
        self.turn.fetch_add(1, Release);
    }

    /// The numbers of the exchange that has the place; `None` when none has, or it changed hands meanwhile. Numbers that
    /// change while they are read are each as they were at some moment of it.
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

/// What an exchange is doing, as far as the engine is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// The engine owes nothing: the request is not complete, it was refused, or the answer is.
    Nothing,
    /// Its client takes no bytes.
    HeldUp,
    /// A stream without a token yet.
    Prefilling,
    /// A stream with tokens.
    Decoding,
    /// An answer that comes in one piece.
    Whole,
}

impl Seen {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// What it is doing.
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

    /// Since when its next token is waited for: its request, its last token, or that its client takes bytes again.
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
    fn a_place_is_seen_while_it_is_taken_and_holds_nothing_of_the_one_before() {
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
    fn what_is_seen_is_never_of_two_exchanges() {
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
