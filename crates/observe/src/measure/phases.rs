//! Splits the time of a request into adjacent intervals, from the first byte to the end.
//!
//! Engine-reported times are placed between observed moments; values that do not fit are ignored. Time that cannot be
//! split is one interval of kind `waiting` or `processing`.

use std::ops::Deref;
use std::time::Duration;

use crate::measure::{QueueSource, Record};
use tokometer_metrics::closed_enum;

closed_enum! {
    /// Kind of a phase.
    pub enum PhaseKind {
        /// The client sent its request.
        Request = "request",
        /// The model was loaded (Ollama).
        Load = "load",
        /// Part of the wait for the first token that is neither queue nor prefill: templating, tokenizing, handover.
        /// Known if the engine reports both queue time and prefill time.
        Preprocessing = "preprocessing",
        /// Time in the server's queue, from the record. For [`QueueSource::Remainder`], only the part that fits before
        /// the first token; the rest was spent on forwarding tokens.
        Queue = "queue",
        /// From the end of the queue to the first token; the engine's own value if reported. Otherwise it includes
        /// preprocessing, except with a queue time from the headers (llama.cpp), which already includes preprocessing.
        Prefill = "prefill",
        /// Time before the first token that cannot be split: preprocessing, queue and prefill.
        Waiting = "waiting",
        /// Non-streamed response: all time not covered by engine-reported values.
        Processing = "processing",
        /// From the first to the last token.
        Decode = "decode",
        /// From the last token to the end: usage, end marker, or silence until the connection closed.
        Finish = "finish",
        /// Delivery blocked on the client. This time is excluded from the other kinds, although it overlaps their
        /// intervals.
        DeliveryBlocked = "delivery_blocked",
    }
}

/// One phase of a request. Times are relative to the first byte of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Kind of the phase.
    pub kind: PhaseKind,
    /// Start of the phase, which is the end of the previous phase.
    pub from: Duration,
    /// End of the phase.
    pub to: Duration,
    /// Part of the phase that was blocked on the client.
    pub blocked: Duration,
}

impl Interval {
    /// Length of the phase without the blocked part.
    pub fn active(&self) -> Duration {
        self.to.saturating_sub(self.from).saturating_sub(self.blocked)
    }
}

/// Maximum number of intervals of one request: request, load, preprocessing, queue, prefill, decode, finish.
const MAX: usize = 7;

/// Phases of one request, in order. They start at 0, are adjacent, and end with the request. The sum of all
/// [`Interval::active`] and [`Phases::blocked`] is the request's duration.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    intervals: [Interval; MAX],
    len: usize,
}

impl Deref for Phases {
    type Target = [Interval];

    fn deref(&self) -> &[Interval] {
        self.intervals.get(..self.len).unwrap_or_default()
    }
}

impl Phases {
    /// Phases of a request that has ended.
    pub fn of(record: &Record) -> Phases {
        let nothing =
            Interval { kind: PhaseKind::Request, from: Duration::ZERO, to: Duration::ZERO, blocked: Duration::ZERO };
        let mut phases = Phases { intervals: [nothing; MAX], len: 0 };
        // A request that was not fully received has only this phase.
        let requested =
            record.times.requested.map_or(record.times.ended, |requested| requested.min(record.times.ended));
        phases.until(PhaseKind::Request, requested);
        if record.times.requested.is_none() {
            phases.block(0, record.blocked.total());
        } else if record.labels.streaming == Some(true) {
            phases.stream(record);
        } else {
            phases.whole(record);
            phases.block(1, record.blocked.total());
        }
        phases
    }

    /// Time blocked on the client within the request.
    pub fn blocked(&self) -> Duration {
        self.iter().map(|interval| interval.blocked).sum()
    }

    fn at(&self) -> Duration {
        self.last().map_or(Duration::ZERO, |last| last.to)
    }

    /// Appends an interval from the end of the last one to `to`; it is empty if `to` is earlier.
    fn until(&mut self, kind: PhaseKind, to: Duration) {
        let from = self.at();
        if let Some(place) = self.intervals.get_mut(self.len) {
            *place = Interval { kind, from, to: to.max(from), blocked: Duration::ZERO };
            self.len += 1;
        }
    }

    /// Appends an interval of this length.
    fn lasting(&mut self, kind: PhaseKind, length: Duration) {
        self.until(kind, self.at() + length);
    }

    /// Assigns `blocked` to the intervals from index `first` on, the last interval first.
    fn block(&mut self, first: usize, mut blocked: Duration) {
        for interval in self.intervals.iter_mut().take(self.len).skip(first).rev() {
            let part = blocked.min(interval.active());
            interval.blocked += part;
            blocked -= part;
        }
    }

    fn stream(&mut self, record: &Record) {
        // A response may start before the request is complete.
        let first = record.times.first_token.map(|first| first.clamp(self.at(), record.times.ended.max(self.at())));
        let place = self.len;
        self.wait(record, first.unwrap_or(record.times.ended), first.is_some());
        self.block(place, record.blocked.waiting);
        if first.is_some() {
            let last = record.times.last_token.unwrap_or(record.times.ended).min(record.times.ended);
            for (kind, to, blocked) in [
                (PhaseKind::Decode, last, record.blocked.decoding),
                (PhaseKind::Finish, record.times.ended, record.blocked.finishing),
            ] {
                let place = self.len;
                self.until(kind, to);
                self.block(place, blocked);
            }
        }
    }

    /// Appends the phases from the end of the request to `until`: the first token, or the end if no token arrived
    /// (`has_first_token` is false).
    fn wait(&mut self, record: &Record, until: Duration, has_first_token: bool) {
        let span = until.saturating_sub(self.at());
        let reported = EngineTimes::of(record);
        let source = record.engine.queue.map(|queue| queue.source);
        let fitting = if source == Some(QueueSource::Remainder) {
            let others = reported.load.unwrap_or_default().saturating_add(reported.prefill.unwrap_or_default());
            reported.queue.map(|queue| queue.min(span.saturating_sub(others)))
        } else {
            reported.queue.filter(|queue| *queue <= span)
        };
        let Some(queue) = fitting else {
            let prefill = reported.prefill.filter(|prefill| has_first_token && *prefill <= span);
            self.until(PhaseKind::Waiting, until.saturating_sub(prefill.unwrap_or_default()));
            if prefill.is_some() {
                self.until(PhaseKind::Prefill, until);
            }
            return;
        };
        // In this case, the response headers mark the end of the queue.
        let from_headers = source == Some(QueueSource::HeaderTiming);
        let load = reported.load.filter(|load| !from_headers && queue.saturating_add(*load) <= span);
        if let Some(load) = load {
            self.lasting(PhaseKind::Load, load);
        }
        let rest = span.saturating_sub(queue.saturating_add(load.unwrap_or_default()));
        let before =
            reported.prefill.filter(|_| has_first_token && !from_headers).and_then(|prefill| rest.checked_sub(prefill));
        if let Some(before) = before {
            self.lasting(PhaseKind::Preprocessing, before);
        }
        self.lasting(PhaseKind::Queue, queue);
        self.until(PhaseKind::Prefill, until);
    }

    /// Appends the phases of a non-streamed response. Only its start and end were observed, so engine-reported prefill
    /// and decode times are placed at the end.
    fn whole(&mut self, record: &Record) {
        let span = record.times.ended.saturating_sub(self.at());
        let all = EngineTimes::of(record);
        let queue_alone = EngineTimes { queue: all.queue, ..EngineTimes::default() };
        let EngineTimes { queue, load, prefill, decode } =
            [all, queue_alone].into_iter().find(|times| times.sum() <= span).unwrap_or_default();
        let parts = [(PhaseKind::Queue, queue), (PhaseKind::Prefill, prefill), (PhaseKind::Decode, decode)];
        let rest = span.saturating_sub(EngineTimes { queue, load, prefill, decode }.sum());
        if let Some(load) = load {
            self.lasting(PhaseKind::Load, load);
        }
        if queue.is_some() && prefill.is_none() && decode.is_none() {
            self.lasting(PhaseKind::Queue, queue.unwrap_or_default());
            self.until(PhaseKind::Processing, record.times.ended);
            return;
        }
        self.lasting(PhaseKind::Processing, rest);
        for (kind, length) in parts.into_iter().filter_map(|(kind, length)| Some((kind, length?))) {
            self.lasting(kind, length);
        }
    }
}

/// Times reported by the engine.
#[derive(Clone, Copy, Debug, Default)]
struct EngineTimes {
    queue: Option<Duration>,
    load: Option<Duration>,
    prefill: Option<Duration>,
    decode: Option<Duration>,
}

impl EngineTimes {
    fn of(record: &Record) -> EngineTimes {
        let timing = record.engine.timing;
        let time = |ms: Option<f64>| ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        EngineTimes {
            queue: record.engine.queue.map(|queue| queue.value),
            load: time(timing.load_ms),
            // vLLM reports prefill as time to first token, measured from scheduling.
            prefill: time(timing.prefill_ms.or(timing.prompt_ms)),
            decode: time(timing.decode_ms),
        }
    }

    fn sum(&self) -> Duration {
        let parts = [self.queue, self.load, self.prefill, self.decode];
        parts.into_iter().flatten().fold(Duration::ZERO, Duration::saturating_add)
    }
}
