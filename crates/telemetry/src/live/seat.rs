//! A request's handle to its slot in the table, used by the request's own thread.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use crate::live::recent::Finished;
use crate::live::recent::Queue;
use crate::live::slot::ANSWERED;
use crate::live::slot::CONVERSES;
use crate::live::slot::Doing;
use crate::live::slot::GENERATES;
use crate::live::slot::HEADED;
use crate::live::slot::NEVER;
use crate::live::slot::REFUSED;
use crate::live::slot::STREAMS;
use crate::live::slot::Seen;
use crate::live::slot::Slot;
use crate::live::table::Table;
use crate::live::table::nanos;
use tokometer_decode::Route;
use tokometer_observe::measure::Opening;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Requested;
use tokometer_observe::measure::TimeLine;
use tokometer_observe::measure::Watch;

/// Writes the state of its request to the slot.
pub(super) struct Seat {
    table: Arc<Table>,
    /// `None` when finished requests are not kept.
    recent: Option<Queue>,
    place: u32,
    pair: u16,
    /// The request is counted as pending at its listener.
    owed: bool,
    /// Start of the request, nanoseconds since the table was created.
    started: u64,
    /// Tokens so far, `None` before the first. A copy of the slot's value, so that a token only writes to the slot:
    /// reading it would wait for a cache miss.
    tokens: Option<u64>,
    /// Created with the headers of a streamed response. Kept here for the same reason.
    line: Option<TimeLine>,
}

impl Seat {
    /// Takes a slot; `None` when none is free.
    pub(super) fn take(table: &Arc<Table>, recent: Option<Queue>, opening: &Opening) -> Option<Seat> {
        let place = table.take()?;
        let started = table.nanos(opening.started);
        let pair = u16::try_from(opening.pair).unwrap_or(u16::MAX);
        if let Some(slot) = table.slot(place) {
            slot.enter(|slot| {
                slot.pair.store(pair, Relaxed);
                slot.model.store(None);
                slot.route.store(opening.route as u8, Relaxed);
                slot.flags.store(kind(opening.route), Relaxed);
                slot.sequence.store(opening.sequence, Relaxed);
                slot.connection.store(opening.connection, Relaxed);
                slot.started.store(started, Relaxed);
            });
        }
        Some(Seat { table: Arc::clone(table), recent, place, pair, owed: false, started, tokens: None, line: None })
    }

    fn slot(&self) -> Option<&Slot> {
        self.table.slot(self.place)
    }

    fn time(&self, at: Duration) -> u64 {
        self.started.saturating_add(nanos(at)).min(NEVER - 1)
    }

    /// Must be called before the slot shows a pending request: a reader of the slot must find it counted at its
    /// listener.
    fn may_owe(&mut self, at: u64) {
        if !self.owed
            && let Some(pair) = self.table.pairs.get(usize::from(self.pair))
        {
            pair.owe(at);
            self.owed = true;
        }
    }

    /// Must be called after the slot has changed: if the request is no longer pending, its listener is updated.
    fn settle(&mut self) {
        let owes = |seen: Seen| !matches!(seen.doing(), Doing::Nothing | Doing::HeldUp);
        if self.owed
            && !self.slot().and_then(Slot::look).is_some_and(owes)
            && let Some(pair) = self.table.pairs.get(usize::from(self.pair))
        {
            pair.settle();
            self.owed = false;
        }
    }

    fn begin(&mut self, at: u64) {
        self.may_owe(at);
        if let Some(slot) = self.slot() {
            slot.first_token.store(at, Release);
        }
        self.settle();
    }

    fn flag(&self, flag: u8, set: bool) {
        if let Some(slot) = self.slot() {
            let flags = slot.flags.load(Relaxed);
            slot.flags.store(if set { flags | flag } else { flags & !flag }, Relaxed);
        }
    }
}

fn kind(route: Route) -> u8 {
    match route {
        // WebSocket responses (vLLM continues one while the client speaks), and a stream of requests in one call.
        Route::Realtime | Route::TritonInferStream => GENERATES | CONVERSES,
        route if route.generates() => GENERATES,
        _ => 0,
    }
}

impl Watch for Seat {
    fn requested(&mut self, request: &Requested<'_>, at: Duration) {
        let at = self.time(at);
        self.may_owe(at);
        // The response headers may arrive before the end of the request; they take precedence.
        if self.slot().is_some_and(|slot| slot.flags.load(Relaxed) & HEADED == 0) {
            self.flag(STREAMS, request.streaming == Some(true));
        }
        if let Some(slot) = self.slot() {
            slot.model.store(request.model);
            slot.max_tokens.store(request.max_tokens.unwrap_or(NEVER), Relaxed);
            slot.request_bytes.store(request.bytes, Relaxed);
            slot.requested.store(at, Release);
        }
        self.settle();
    }

    fn answering(&mut self, status: u16, streaming: bool) {
        self.flag(HEADED, true);
        self.flag(STREAMS, streaming);
        self.flag(REFUSED, status >= 400);
        // Created here rather than at the first token, which must not allocate.
        if streaming && status < 400 && self.recent.is_some() {
            self.line.get_or_insert_default();
        }
        self.settle();
    }

    fn prefilling(&mut self, at: Duration) {
        if let Some(slot) = self.slot() {
            slot.progressed.store(self.time(at), Relaxed);
        }
    }

    fn token(&mut self, at: Duration, tokens: u64) -> bool {
        let time = self.time(at);
        let first = self.tokens.is_none();
        let sum = self.tokens.unwrap_or(0).saturating_add(tokens);
        self.tokens = Some(sum);
        let Some(slot) = self.table.slot(self.place) else { return false };
        slot.progressed.store(time, Relaxed);
        slot.tokens.store(sum, Relaxed);
        if let Some(line) = &mut self.line {
            line.push(at, tokens);
        }
        if first {
            self.begin(time);
        }
        true
    }

    fn warm(&self) {
        black_box((self.started, self.tokens));
        if let Some(line) = &self.line {
            line.warm();
        }
    }

    fn held_up(&mut self, at: Duration) {
        let at = self.time(at);
        if let Some(slot) = self.slot() {
            slot.held_up.store(at, Relaxed);
        }
        self.settle();
    }

    fn resumed(&mut self, at: Duration) {
        let at = self.time(at);
        self.may_owe(at);
        if let Some(slot) = self.slot() {
            slot.resumed.store(at, Relaxed);
            slot.held_up.store(NEVER, Release);
        }
        self.settle();
    }

    fn answered(&mut self) {
        self.flag(ANSWERED, true);
        self.settle();
    }

    fn ended(mut self: Box<Self>, record: &Record) {
        let read = record.labels.route.is_read();
        if read && record.outcome.is_ok() {
            // A non-streamed response shows engine progress only when it ends.
            if let Some(pair) = self.table.pairs.get(usize::from(self.pair)) {
                pair.progress(self.time(record.ended));
            }
        }
        if read && let Some(recent) = self.recent.take() {
            let line = self.line.take().filter(|line| line.points().next().is_some());
            recent.add(|| Finished::new(record, line.map(Box::new)));
        }
    }
}

/// Releases the slot, also when the request is dropped without a record.
impl Drop for Seat {
    fn drop(&mut self) {
        let Some(slot) = self.table.slot(self.place) else { return };
        if let Some(pair) = self.table.pairs.get(usize::from(self.pair)) {
            let progressed = slot.progressed.load(Relaxed);
            if progressed != NEVER {
                pair.progress(progressed);
            }
            if self.owed {
                pair.settle();
            }
        }
        slot.leave();
        self.table.give_back(self.place);
    }
}
