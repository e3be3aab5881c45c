//! Matches spans with requests. Input: records and spans in any order, with the current time. Output: completed
//! records.
//!
//! A request and a span match if they have the same id, and no other request or span has this id within [`MEMORY`]. If
//! ids cannot be compared, the caller's `traceparent` decides, after the record's full waiting time. By then, all other
//! spans below the caller's span have arrived. Uncertain matches are not joined.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokometer_observe::measure::Record;

use crate::engine_spans::interpret::{RequestSpan, comparable_id, is_number};
use crate::engine_spans::stats::{Join, Lost, Measurements};

/// How long an id is remembered. A span may arrive long before a slow client has received the end of its response.
/// Requests or spans with the same id within this time are ambiguous.
const MEMORY: Duration = Duration::from_secs(60);

/// After this many consecutive records without a span, records of the listener no longer wait, except for probes.
const PATIENCE: u32 = 32;

/// One record in this many is a probe: it waits, to detect whether spans arrive again.
const PROBE: u32 = 32;

/// Maximum time by which a span may be longer than its request (clock differences). A longer span belongs to another
/// request.
const TOLERANCE: Duration = Duration::from_millis(100);

/// Queue times of the span and of the response count as equal if they differ by less than this (rounding).
const SAME: Duration = Duration::from_millis(1);

/// Lookup key of requests and spans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// The id of the response.
    Id(Arc<str>),
    /// Trace and span id of the caller.
    Caller(u128, u64),
}

/// Requests and spans with one key.
#[derive(Debug, Default)]
struct Slot {
    records: u32,
    spans: u32,
    /// Trace and span id of the first span; the same ids again mean a retransmission.
    first: Option<(u128, u64)>,
    record: Option<u64>,
    span: Option<u64>,
    /// Set if the request was passed on without waiting. The inner value is its in-band queue time, if known.
    passed: Option<Option<Duration>>,
}

impl Slot {
    /// True for exactly one request and one span so far.
    fn is_certain(&self) -> bool {
        self.records == 1 && self.spans == 1
    }
}

/// Data of a request that does not wait, kept to match its span when it arrives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecordedRequest {
    pub(crate) id: Option<Box<str>>,
    pub(crate) caller: Option<(u128, u64)>,
    /// The queue time, if reported in band.
    pub(crate) queue: Option<Duration>,
}

impl RecordedRequest {
    pub(crate) fn of(record: &Record) -> RecordedRequest {
        RecordedRequest {
            id: record.response.id.as_deref().and_then(comparable_id).map(Box::from),
            caller: record.server_trace().map(|caller| (caller.trace_id, caller.span_id)),
            queue: record.engine.queue.map(|queue| queue.value),
        }
    }
}

/// Matches records and spans. Limits the number of records, spans and keys that it keeps.
#[derive(Debug)]
pub(crate) struct Joiner {
    wait: Duration,
    most: usize,
    slots: HashMap<Key, Slot>,
    /// Waiting records and spans by ticket, with their expiry times, which are in ticket order.
    records: BTreeMap<u64, (Instant, Arc<Record>)>,
    spans: BTreeMap<u64, (Instant, Box<RequestSpan>)>,
    /// Expiry times of the keys, earliest first.
    remembered: VecDeque<(Instant, Key)>,
    next: u64,
    /// Consecutive records without a span, by listener.
    misses: Vec<u32>,
    done: Vec<Arc<Record>>,
    measurements: Arc<Measurements>,
}

impl Joiner {
    pub(crate) fn new(wait: Duration, most: usize, measurements: Arc<Measurements>) -> Joiner {
        Joiner {
            wait,
            most: most.max(1),
            slots: HashMap::new(),
            records: BTreeMap::new(),
            spans: BTreeMap::new(),
            remembered: VecDeque::new(),
            next: 0,
            misses: Vec::new(),
            done: Vec::new(),
            measurements,
        }
    }

    /// Takes the records that are ready to be passed on, with or without a span.
    pub(crate) fn take(&mut self) -> Vec<Arc<Record>> {
        self.measurements.held.store(self.records.len(), Relaxed);
        mem::take(&mut self.done)
    }

    /// When [`Joiner::pass_time`] must be called next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let record = self.records.first_key_value().map(|(_, (until, _))| *until);
        let span = self.spans.first_key_value().map(|(_, (until, _))| *until);
        let key = self.remembered.front().map(|(until, _)| *until);
        [record, span, key].into_iter().flatten().min()
    }

    /// Adds an ended request that may wait for its span.
    pub(crate) fn record(&mut self, record: Arc<Record>, now: Instant) {
        let passed = RecordedRequest::of(&record);
        let keys = keys(passed.id.as_deref(), passed.caller);
        let mut ambiguous = false;
        for key in keys.iter().flatten() {
            let slot = self.slot(key, now);
            slot.records += 1;
            // Several requests may have the same caller span, but not the same response id.
            ambiguous |= slot.records > 1 && matches!(key, Key::Id(_));
        }
        if let [Some(id), _] = &keys {
            if ambiguous {
                self.release(id, Join::Ambiguous);
                return self.pass(record, Join::Ambiguous);
            }
            let slot = self.slot(id, now);
            let (spans, span) = (slot.spans, slot.span.take());
            if spans > 1 {
                return self.pass(record, Join::Ambiguous);
            }
            if let Some(span) = self.take_span(span) {
                return self.join(record, span, Join::Id);
            }
        }
        if !self.is_worth_waiting(record.labels.listener) {
            return self.pass(record, Join::Silent);
        }
        if self.records.len() >= self.most {
            return self.pass(record, Join::Full);
        }
        let ticket = self.ticket();
        for key in keys.iter().flatten() {
            self.slot(key, now).record = Some(ticket);
        }
        self.records.insert(ticket, (now + self.wait, record));
    }

    /// Adds a request that was passed on without waiting.
    pub(crate) fn passed(&mut self, passed: &RecordedRequest, now: Instant) {
        let keys = keys(passed.id.as_deref(), passed.caller);
        for key in keys.iter().flatten() {
            let slot = self.slot(key, now);
            slot.records += 1;
            slot.passed = Some(passed.queue);
        }
        let Some(id) = &keys[0] else { return };
        if self.slot(id, now).records > 1 {
            return self.release(id, Join::Ambiguous);
        }
        let slot = self.slot(id, now);
        let ticket = if slot.is_certain() { slot.span.take() } else { None };
        if let Some(span) = self.take_span(ticket) {
            self.compare(passed.queue, &span);
        }
    }

    /// Adds a request's span.
    pub(crate) fn span(&mut self, span: Box<RequestSpan>, now: Instant) {
        let identity = (span.reported.trace_id, span.reported.span_id);
        let keys = keys(span.id.as_deref(), span.parent.map(|parent| (span.reported.trace_id, parent)));
        for key in keys.iter().flatten() {
            let slot = self.slot(key, now);
            if slot.first == Some(identity) {
                // A retransmission: the engine did not receive the first response.
                return;
            }
            slot.first.get_or_insert(identity);
            slot.spans += 1;
        }
        if let [Some(id), _] = &keys {
            let slot = self.slot(id, now);
            if slot.spans > 1 {
                let ticket = slot.span.take();
                let other = self.take_span(ticket);
                self.measurements.lost(Lost::Ambiguous).add(1 + u64::from(other.is_some()));
                return self.release(id, Join::Ambiguous);
            }
            let (certain, passed, ticket) = (slot.is_certain(), slot.passed, slot.record);
            if let Some(queue) = passed.filter(|_| certain) {
                return self.compare(queue, &span);
            }
            if let Some(record) = self.take_record(ticket.filter(|_| certain)) {
                return self.join(record, span, Join::Id);
            }
        }
        while self.spans.len() >= self.most {
            self.drop_oldest_span();
        }
        let ticket = self.ticket();
        for key in keys.iter().flatten() {
            self.slot(key, now).span = Some(ticket);
        }
        self.spans.insert(ticket, (now + MEMORY, span));
    }

    /// Releases all records, spans and keys whose time has expired.
    pub(crate) fn pass_time(&mut self, now: Instant) {
        while self.records.first_key_value().is_some_and(|(_, (until, _))| *until <= now)
            && let Some((_, (_, record))) = self.records.pop_first()
        {
            self.settle(record);
        }
        while self.spans.first_key_value().is_some_and(|(_, (until, _))| *until <= now) {
            self.drop_oldest_span();
        }
        while self.remembered.front().is_some_and(|(until, _)| *until <= now)
            && let Some((_, key)) = self.remembered.pop_front()
        {
            self.forget(key, Some(now));
        }
    }

    /// Releases all waiting records at shutdown.
    pub(crate) fn close(&mut self) {
        for (_, record) in mem::take(&mut self.records).into_values() {
            self.pass(record, Join::NoSpan);
        }
    }

    fn take_record(&mut self, ticket: Option<u64>) -> Option<Arc<Record>> {
        self.records.remove(&ticket?).map(|(_, record)| record)
    }

    fn take_span(&mut self, ticket: Option<u64>) -> Option<Box<RequestSpan>> {
        self.spans.remove(&ticket?).map(|(_, span)| span)
    }

    fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn slot(&mut self, key: &Key, now: Instant) -> &mut Slot {
        if !self.slots.contains_key(key) {
            // At most `most` records and `most` spans are kept, with two keys each.
            if self.slots.len() >= self.most.saturating_mul(4)
                && let Some((_, oldest)) = self.remembered.pop_front()
            {
                self.forget(oldest, None);
            }
            self.remembered.push_back((now + MEMORY, key.clone()));
        }
        self.slots.entry(key.clone()).or_default()
    }

    /// Forgets a key. If `now` is given and a record still waits with this key, the key is kept for another [`MEMORY`].
    fn forget(&mut self, key: Key, now: Option<Instant>) {
        let waits = self.slots.get(&key).and_then(|slot| slot.record).is_some_and(|t| self.records.contains_key(&t));
        match now.filter(|_| waits) {
            Some(now) => self.remembered.push_back((now + MEMORY, key)),
            None => drop(self.slots.remove(&key)),
        }
    }

    fn drop_oldest_span(&mut self) {
        if self.spans.pop_first().is_some() {
            self.measurements.lost(Lost::NoRequest).add(1);
        }
    }

    fn is_worth_waiting(&mut self, listener: usize) -> bool {
        let misses = self.misses_of(listener);
        if *misses < PATIENCE {
            return true;
        }
        *misses = misses.wrapping_add(1).max(PATIENCE);
        misses.is_multiple_of(PROBE)
    }

    fn misses_of(&mut self, listener: usize) -> &mut u32 {
        if self.misses.len() <= listener {
            self.misses.resize(listener + 1, 0);
        }
        &mut self.misses[listener]
    }

    /// Releases a record that has waited its full time. If ids could not be compared, joins the span below the caller's
    /// span.
    fn settle(&mut self, record: Arc<Record>) {
        let passed = RecordedRequest::of(&record);
        let caller = passed.caller.map(|(trace, span)| Key::Caller(trace, span));
        let slot = caller.and_then(|caller| self.slots.get_mut(&caller)).filter(|slot| slot.is_certain());
        let ticket = slot.and_then(|slot| slot.span);
        let comparable = |span: &RequestSpan| is_comparable(span.id.as_deref(), passed.id.as_deref());
        let ticket = ticket.filter(|ticket| self.spans.get(ticket).is_some_and(|(_, span)| !comparable(span)));
        if let Some(span) = self.take_span(ticket) {
            return self.join(record, span, Join::Trace);
        }
        let misses = self.misses_of(record.labels.listener);
        *misses = misses.saturating_add(u32::from(*misses < PATIENCE));
        self.pass(record, Join::NoSpan);
    }

    fn join(&mut self, mut record: Arc<Record>, span: Box<RequestSpan>, by: Join) {
        // A span cannot be longer than its request or, if the engine continued after a cancellation, than the response.
        if span.duration() > record.times.ended.max(record.times.closed) + TOLERANCE {
            self.measurements.lost(Lost::Contradicted).add(1);
            return self.pass(record, Join::Contradicted);
        }
        *self.misses_of(record.labels.listener) = 0;
        Arc::make_mut(&mut record).complete(span.reported);
        self.pass(record, by);
    }

    fn compare(&self, in_band: Option<Duration>, span: &RequestSpan) {
        let join = match in_band.zip(span.reported.queue) {
            Some((in_band, by_span)) if in_band.abs_diff(by_span) < SAME => Join::Confirmed,
            Some(_) => Join::Differs,
            None => Join::Late,
        };
        self.measurements.joins(join).add(1);
    }

    /// Releases the record that waits with this key, if any, without a span.
    fn release(&mut self, key: &Key, why: Join) {
        let ticket = self.slots.get_mut(key).and_then(|slot| slot.record.take());
        if let Some(record) = self.take_record(ticket) {
            self.pass(record, why);
        }
    }

    fn pass(&mut self, record: Arc<Record>, why: Join) {
        self.measurements.joins(why).add(1);
        self.done.push(record);
    }
}

fn keys(id: Option<&str>, caller: Option<(u128, u64)>) -> [Option<Key>; 2] {
    [id.map(|id| Key::Id(id.into())), caller.map(|(trace, span)| Key::Caller(trace, span))]
}

/// True if both ids are of the same kind, so that ids of the same request would be equal.
fn is_comparable(span: Option<&str>, response: Option<&str>) -> bool {
    span.zip(response).is_some_and(|(span, response)| is_number(span) == is_number(response))
}
