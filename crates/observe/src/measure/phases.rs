//! Where the time of an exchange went: intervals that lie end to end from the first byte of the request to the end.
//!
//! What the engine told is laid between what was seen on the wire, and never across it: figures that do not fit are not
//! used. What nobody told apart stays in one interval, which says so by its name.

use std::ops::Deref;
use std::time::Duration;

use crate::measure::QueueSource;
use crate::measure::Record;

/// What a part of an exchange's time was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PhaseKind {
    /// The client sent its request.
    Request,
    /// The model was loaded (Ollama).
    Load,
    /// What of the wait for the first token was neither queue nor prefill: templating, tokenizing, handing over. Known
    /// where the engine tells both of the others.
    Preprocessing,
    /// In the server's queue, by [`Record::queue`]. Of [`QueueSource::Remainder`] only as much as fits before the first
    /// token: the engine spent the rest on passing tokens on.
    Queue,
    /// From the queue to the first token. With the engine's own figure it is that; else preprocessing is in it, except
    /// where the queue time is the head's (llama.cpp: preprocessing is in the queue time).
    Prefill,
    /// Before the first token, not told apart: preprocessing, queue and prefill.
    Waiting,
    /// Of an answer in one piece: all that the engine did not tell apart.
    Processing,
    /// From the first to the last token.
    Decode,
    /// From the last token to the end: usage, end mark, or silence until somebody closed.
    Finish,
    /// The client did not take bytes. Lies across the others, and is left out of theirs.
    DeliveryBlocked,
}

impl PhaseKind {
    /// Every kind, in the order of the documentation.
    pub const ALL: [PhaseKind; 10] = [
        PhaseKind::Request,
        PhaseKind::Load,
        PhaseKind::Preprocessing,
        PhaseKind::Queue,
        PhaseKind::Prefill,
        PhaseKind::Waiting,
        PhaseKind::Processing,
        PhaseKind::Decode,
        PhaseKind::Finish,
        PhaseKind::DeliveryBlocked,
    ];

    /// The value of the label `phase`, and the name of the span.
    pub fn as_str(self) -> &'static str {
        match self {
            PhaseKind::Request => "request",
            PhaseKind::Load => "load",
            PhaseKind::Preprocessing => "preprocessing",
            PhaseKind::Queue => "queue",
            PhaseKind::Prefill => "prefill",
            PhaseKind::Waiting => "waiting",
            PhaseKind::Processing => "processing",
            PhaseKind::Decode => "decode",
            PhaseKind::Finish => "finish",
            PhaseKind::DeliveryBlocked => "delivery_blocked",
        }
    }
}

/// One phase of an exchange. Times are counted from the first byte of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// What it was.
    pub kind: PhaseKind,
    /// Where it begins: where the one before ends.
    pub from: Duration,
    /// Where it ends.
    pub to: Duration,
    /// The part of it during which the client did not take bytes.
    pub blocked: Duration,
}

impl Interval {
    /// Its length without the part that the client caused.
    pub fn active(&self) -> Duration {
        self.to.saturating_sub(self.from).saturating_sub(self.blocked)
    }
}

/// Most intervals of one exchange: request, load, preprocessing, queue, prefill, decode, finish.
const MOST: usize = 7;

/// The phases of one exchange, in their order. They begin at 0, lie end to end, and end with the exchange, so that
/// [`Interval::active`] of all and [`Phases::blocked`] add up to its duration.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    intervals: [Interval; MOST],
    len: usize,
}

impl Deref for Phases {
    type Target = [Interval];

    fn deref(&self) -> &[Interval] {
        self.intervals.get(..self.len).unwrap_or_default()
    }
}

impl Phases {
    /// The phases of an exchange that has ended.
    pub fn of(record: &Record) -> Phases {
        let nothing =
            Interval { kind: PhaseKind::Request, from: Duration::ZERO, to: Duration::ZERO, blocked: Duration::ZERO };
        let mut phases = Phases { intervals: [nothing; MOST], len: 0 };
        // A request that never came to its end is all there was.
        let requested = record.requested.map_or(record.ended, |requested| requested.min(record.ended));
        phases.until(PhaseKind::Request, requested);
        if record.requested.is_none() {
            phases.block(0, record.blocked.total());
        } else if record.labels.streaming == Some(true) {
            phases.stream(record);
        } else {
            phases.whole(record);
            phases.block(1, record.blocked.total());
        }
        phases
    }

    /// Time during which the client did not take bytes, as far as it lies in the exchange.
    pub fn blocked(&self) -> Duration {
        self.iter().map(|interval| interval.blocked).sum()
    }

    fn at(&self) -> Duration {
        self.last().map_or(Duration::ZERO, |last| last.to)
    }

    /// Adds an interval up to `to`, and never one that ends before it begins.
    fn until(&mut self, kind: PhaseKind, to: Duration) {
        let from = self.at();
        if let Some(place) = self.intervals.get_mut(self.len) {
            *place = Interval { kind, from, to: to.max(from), blocked: Duration::ZERO };
            self.len += 1;
        }
    }

    /// Adds an interval of this length.
    fn lasting(&mut self, kind: PhaseKind, length: Duration) {
        self.until(kind, self.at() + length);
    }

    /// Takes `blocked` off the intervals from the one at `first` on, the last one first.
    fn block(&mut self, first: usize, mut blocked: Duration) {
        for interval in self.intervals.iter_mut().take(self.len).skip(first).rev() {
            let part = blocked.min(interval.active());
            interval.blocked += part;
            blocked -= part;
        }
    }

    fn stream(&mut self, record: &Record) {
        // An answer may begin before its request has ended.
        let first = record.first_token.map(|first| first.clamp(self.at(), record.ended.max(self.at())));
        let place = self.len;
        self.wait(record, first.unwrap_or(record.ended), first.is_some());
        self.block(place, record.blocked.waiting);
        if first.is_some() {
            let last = record.last_token.unwrap_or(record.ended).min(record.ended);
            for (kind, to, blocked) in [
                (PhaseKind::Decode, last, record.blocked.decoding),
                (PhaseKind::Finish, record.ended, record.blocked.finishing),
            ] {
                let place = self.len;
                self.until(kind, to);
                self.block(place, blocked);
            }
        }
    }

    /// From the end of the request until the first token, or until the end where none came.
    fn wait(&mut self, record: &Record, until: Duration, came: bool) {
        let span = until.saturating_sub(self.at());
        let told = Told::of(record);
        let source = record.queue.map(|queue| queue.source);
        let fitting = if source == Some(QueueSource::Remainder) {
            let others = told.load.unwrap_or_default() + told.prefill.unwrap_or_default();
            told.queue.map(|queue| queue.min(span.saturating_sub(others)))
        } else {
            told.queue.filter(|queue| *queue <= span)
        };
        let Some(queue) = fitting else {
            let prefill = told.prefill.filter(|prefill| came && *prefill <= span);
            self.until(PhaseKind::Waiting, until.saturating_sub(prefill.unwrap_or_default()));
            if prefill.is_some() {
                self.until(PhaseKind::Prefill, until);
            }
            return;
        };
        // The head marks the place where the queue ends.
        let seen = source == Some(QueueSource::HeaderTiming);
        let load = told.load.filter(|load| !seen && queue + *load <= span);
        if let Some(load) = load {
            self.lasting(PhaseKind::Load, load);
        }
        let rest = span.saturating_sub(queue + load.unwrap_or_default());
        let before = told.prefill.filter(|_| came && !seen).and_then(|prefill| rest.checked_sub(prefill));
        if let Some(before) = before {
            self.lasting(PhaseKind::Preprocessing, before);
        }
        self.lasting(PhaseKind::Queue, queue);
        self.until(PhaseKind::Prefill, until);
    }

    /// An answer in one piece: nothing was seen between the request and the end, and what the engine told is laid back
    /// from there.
    fn whole(&mut self, record: &Record) {
        let span = record.ended.saturating_sub(self.at());
        let all = Told::of(record);
        let queue_alone = Told { queue: all.queue, ..Told::default() };
        let Told { queue, load, prefill, decode } =
            [all, queue_alone].into_iter().find(|told| told.sum() <= span).unwrap_or_default();
        let parts = [(PhaseKind::Queue, queue), (PhaseKind::Prefill, prefill), (PhaseKind::Decode, decode)];
        let told = |told: Option<Duration>| told.unwrap_or_default();
        let rest = span.saturating_sub(told(load) + told(queue) + told(prefill) + told(decode));
        if let Some(load) = load {
            self.lasting(PhaseKind::Load, load);
        }
        if queue.is_some() && prefill.is_none() && decode.is_none() {
            self.lasting(PhaseKind::Queue, told(queue));
            self.until(PhaseKind::Processing, record.ended);
            return;
        }
        self.lasting(PhaseKind::Processing, rest);
        for (kind, length) in parts.into_iter().filter_map(|(kind, length)| Some((kind, length?))) {
            self.lasting(kind, length);
        }
    }
}

/// What the engine told of its own times.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    queue: Option<Duration>,
    load: Option<Duration>,
    prefill: Option<Duration>,
    decode: Option<Duration>,
}

impl Told {
    fn of(record: &Record) -> Told {
        let timing = record.timing.unwrap_or_default();
        let time = |ms: Option<f64>| ms.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        Told {
            queue: record.queue.map(|queue| queue.value),
            load: time(timing.load_ms),
            // vLLM calls it the time to the first token, and counts it from when the request was scheduled.
            prefill: time(timing.prefill_ms.or(timing.prompt_ms)),
            decode: time(timing.decode_ms),
        }
    }

    fn sum(&self) -> Duration {
        let parts = [self.queue, self.load, self.prefill, self.decode];
        parts.into_iter().flatten().fold(Duration::ZERO, Duration::saturating_add)
    }
}
