//! Delays of streams: gaps above the expected one, each with one cause.

use std::collections::VecDeque;

use crate::advance::{Advances, CULPRITS, Verdict, tolerance};
use crate::expected::PrefillTimes;
use crate::types::{Cause, Culprit, Delay, Nanos, Sink};

/// Intervals of evidence that are kept, per kind.
const EVIDENCE: usize = 128;

/// What decides about a waiting delay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Basis {
    /// All streams waited: the advance with this number.
    Advance(u64),
    /// This stream waited while others went on.
    Stream {
        /// It did not get the tokens of these steps later; it may have been preempted.
        missed: bool,
        /// The advance that lasted most of the gap: the cause if the stream was not preempted.
        by_all: Option<u64>,
    },
    /// Several streams waited while others went on, and got the tokens of these steps at once.
    FrontEnd,
    /// Nothing explains it.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    /// `None`: all streams.
    slot: Option<u32>,
    from: Nanos,
    to: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    from: Nanos,
    to: Nanos,
    left: u32,
}

/// Delays that wait for evidence, and the evidence.
#[derive(Debug)]
pub(crate) struct Delays {
    waiting: VecDeque<(Delay, Nanos, Basis)>,
    capacity: usize,
    late: VecDeque<Interval>,
    charged: VecDeque<Interval>,
    readings: VecDeque<Reading>,
}

fn keep<T>(queue: &mut VecDeque<T>, value: T) {
    if queue.len() == EVIDENCE {
        queue.pop_front();
    }
    queue.push_back(value);
}

fn overlap(queue: &VecDeque<Interval>, slot: u32, from: Nanos, to: Nanos) -> Nanos {
    let own = queue.iter().filter(|held| held.slot.is_none_or(|other| other == slot));
    own.map(|held| held.to.min(to).saturating_sub(held.from.max(from))).sum()
}

impl Delays {
    pub(crate) fn new(capacity: usize) -> Self {
        let evidence = || VecDeque::with_capacity(EVIDENCE);
        Delays {
            waiting: VecDeque::with_capacity(capacity),
            capacity: capacity.max(1),
            late: evidence(),
            charged: evidence(),
            readings: VecDeque::with_capacity(EVIDENCE),
        }
    }

    /// The proxy was late.
    pub(crate) fn late(&mut self, from: Nanos, to: Nanos) {
        keep(&mut self.late, Interval { slot: None, from, to });
    }

    /// The client or the network held back a stream; that delay is reported already.
    pub(crate) fn charged(&mut self, slot: u32, from: Nanos, to: Nanos) {
        keep(&mut self.charged, Interval { slot: Some(slot), from, to });
    }

    /// Time from `from` to `to` that is reported as delay of the stream already.
    pub(crate) fn already_charged(&self, slot: u32, from: Nanos, to: Nanos) -> Nanos {
        overlap(&self.charged, slot, from, to)
    }

    pub(crate) fn reading(&mut self, from: Nanos, to: Nanos, count: u32) {
        keep(&mut self.readings, Reading { from, to, left: count });
    }

    /// Adds a delay of a gap whose usual length is `expected`; its cause is decided later.
    pub(crate) fn push(
        &mut self,
        delay: Delay,
        expected: Nanos,
        basis: Basis,
        advances: &Advances,
        times: &PrefillTimes,
        sink: &mut impl Sink,
    ) {
        if self.waiting.len() == self.capacity {
            self.decide_oldest(true, advances, times, sink);
        }
        self.waiting.push_back((delay, expected, basis));
    }

    /// Decides the delays whose evidence is complete, in order.
    pub(crate) fn decide(&mut self, advances: &Advances, times: &PrefillTimes, sink: &mut impl Sink) {
        while self.decide_oldest(false, advances, times, sink) {}
    }

    /// Decides the delays that ended before `before`.
    pub(crate) fn decide_overdue(
        &mut self,
        before: Nanos,
        advances: &Advances,
        times: &PrefillTimes,
        sink: &mut impl Sink,
    ) {
        while self.waiting.front().is_some_and(|(delay, ..)| delay.to < before) {
            self.decide_oldest(true, advances, times, sink);
        }
    }

    fn decide_oldest(
        &mut self,
        overdue: bool,
        advances: &Advances,
        times: &PrefillTimes,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(&(delay, _, basis)) = self.waiting.front() else { return false };
        let mut culprits = [None; CULPRITS];
        let late = overlap(&self.late, delay.slot, delay.from, delay.to);
        let cause = if late * 2 >= delay.excess {
            Cause::Tokometer
        } else {
            let by_all = match basis {
                Basis::Advance(number) => Some(number),
                Basis::Nothing => None,
                Basis::FrontEnd => return self.report(delay, Cause::Delivery, culprits, sink),
                Basis::Stream { missed, by_all } => {
                    match if missed { self.preempted(&delay, overdue) } else { Some(false) } {
                        None => return false,
                        Some(true) => return self.report(delay, Cause::Preempted, culprits, sink),
                        Some(false) if by_all.is_none() => {
                            return self.report(delay, Cause::StreamOnly, culprits, sink);
                        }
                        Some(false) => by_all,
                    }
                }
            };
            let newest = by_all.is_some_and(|number| number == advances.newest());
            if newest && !overdue {
                return false;
            }
            match by_all.and_then(|number| advances.get(number)) {
                None => Cause::Unknown,
                Some(advance) => match advances.verdict(advance, times, overdue) {
                    Verdict::Open => return false,
                    Verdict::Final(Cause::Prefill) => {
                        culprits = advance.culprits();
                        Cause::Prefill
                    }
                    Verdict::Final(cause) => cause,
                },
            }
        };
        self.report(delay, cause, culprits, sink)
    }

    fn report(
        &mut self,
        mut delay: Delay,
        cause: Cause,
        culprits: [Option<Culprit>; CULPRITS],
        sink: &mut impl Sink,
    ) -> bool {
        let small = self.waiting.pop_front().is_some_and(|(_, expected, _)| delay.excess <= tolerance(expected));
        if small && cause != Cause::Prefill {
            return true;
        }
        delay.cause = cause;
        delay.culprit = culprits[0];
        sink.delay(&delay);
        charge(&culprits, &delay, sink);
        true
    }

    /// A stream that waited alone was preempted if the counter rose when it went on (vLLM counts then) or when it stopped.
    /// Each counted preemption explains one delay.
    /// `None`: a reading is awaited.
    fn preempted(&mut self, delay: &Delay, overdue: bool) -> Option<bool> {
        let complete = self.readings.back().is_some_and(|reading| reading.to > delay.to);
        if !complete && !overdue {
            return None;
        }
        let rose = |at: Nanos| move |reading: &&mut Reading| reading.left > 0 && reading.from <= at && at < reading.to;
        for at in [delay.to, delay.from] {
            if let Some(reading) = self.readings.iter_mut().find(rose(at)) {
                reading.left -= 1;
                return Some(true);
            }
        }
        Some(false)
    }
}

/// Splits the delay by prompt tokens.
fn charge(culprits: &[Option<Culprit>; CULPRITS], delay: &Delay, sink: &mut impl Sink) {
    let weight = |culprit: &Culprit| u128::from(culprit.prompt_tokens.max(1));
    let total: u128 = culprits.iter().flatten().map(weight).sum();
    let mut left = delay.excess;
    for culprit in culprits.iter().skip(1).flatten() {
        let share = (u128::from(delay.excess) * weight(culprit) / total) as u64;
        left -= share;
        sink.caused(*culprit, delay.slot, share);
    }
    if let Some(culprit) = culprits[0] {
        sink.caused(culprit, delay.slot, left);
    }
}
