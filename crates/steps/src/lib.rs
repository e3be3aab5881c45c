//! Engine steps from the token times of a server's streams, and the cause of every delay.
//!
//! Engines with continuous batching run one step at a time, and every stream that decodes gets one token per step. The
//! arrival times of the tokens of all streams of a server therefore show its scheduler. An [`Analyzer`] receives what was
//! seen of one server in order of time and reports each [`Step`] and each [`Delay`] once, at most [`Limits::lag`]
//! later. It does no I/O, has no clock and no threads; its memory is bounded and nearly all allocated when it is created.
//!
//! - Events that arrive close together, relative to the step time, form a burst (`burst` in the code).
//! - Tokens of a burst are assigned to steps by counting the tokens of each stream: see `chain`.
//! - The time between two steps, above the usual time of decode-only steps of that batch size, is delay: see `advance`
//!   for delays of all streams and `delays` for those of one stream.

mod advance;
mod chain;
mod delays;
mod expected;
mod gaps;
mod readable;
mod streams;
#[cfg(test)]
mod tests;
mod types;

pub use types::{Cause, Culprit, Delay, Event, Kind, Limits, Nanos, Readable, Sink, Step};

use advance::{Advances, BURST, LONG_PROMPT};
use chain::{Chain, Part};
use delays::Delays;
use expected::{PrefillTimes, StepTimes};
use readable::Structure;
use streams::Stream;

/// Longest silence within a burst.
const GAP: Nanos = 2_000_000;
/// Shortest silence that ends a burst: a front end writes streams 20 to 50 us apart.
const SHORTEST_GAP: Nanos = 60_000;
/// Most tokens in one event that are believed.
const MOST_TOKENS: u32 = 4096;

/// Events that were not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Events of slots outside [`Limits::streams`] or of streams that were not open.
    pub unknown_streams: u64,
    /// Events older than their predecessor; they count as simultaneous with it.
    pub out_of_order: u64,
}

/// The analysis of one server.
#[derive(Debug)]
pub struct Analyzer {
    limits: Limits,
    streams: Vec<Stream>,
    /// Events with the same time, to be sorted.
    same: Vec<Event>,
    burst: Vec<Part>,
    burst_end: Nanos,
    now: Nanos,
    chain: Chain,
    step_times: StepTimes,
    prefill_times: PrefillTimes,
    advances: Advances,
    delays: Delays,
    structure: Structure,
    /// Long prompts without a first token.
    waiting: Vec<u32>,
    /// Streams that have not ended.
    opened: u32,
    /// Streams with a first token that have not ended.
    started: u32,
    ignored: Ignored,
}

impl Analyzer {
    /// An analysis without events. Allocates about 250 bytes per stream and 150 bytes per pending delay.
    pub fn new(limits: Limits) -> Self {
        let streams = limits.streams as usize;
        Analyzer {
            limits,
            streams: vec![Stream::default(); streams],
            same: Vec::with_capacity(2 * streams.max(1)),
            burst: Vec::with_capacity(streams),
            burst_end: 0,
            now: 0,
            chain: Chain::new(),
            step_times: StepTimes::new(),
            prefill_times: PrefillTimes::new(),
            advances: Advances::new(),
            delays: Delays::new(limits.pending),
            structure: Structure::new(),
            waiting: Vec::with_capacity(streams),
            opened: 0,
            started: 0,
            ignored: Ignored::default(),
        }
    }

    /// Whether the steps can be believed.
    pub fn readable(&self) -> Readable {
        self.structure.verdict()
    }

    /// Events that were not used.
    pub fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// The usual time of a decode-only step with this many streams, from recent steps.
    pub fn expected_step(&self, batch: u32) -> Option<Nanos> {
        self.step_times.get(batch)
    }

    /// Adds an event.
    pub fn push(&mut self, mut event: Event, sink: &mut impl Sink) {
        if event.at < self.now {
            self.ignored.out_of_order += 1;
            event.at = self.now;
        }
        self.advance(event.at, sink);
        if self.same.len() == self.same.capacity() {
            self.process_same(sink);
        }
        self.same.push(event);
    }

    /// Declares that no event before `now` will follow. Results become final in silence, too.
    pub fn advance(&mut self, now: Nanos, sink: &mut impl Sink) {
        if now <= self.now {
            return;
        }
        self.process_same(sink);
        self.now = now;
        if !self.burst.is_empty() && now > self.burst_end + self.gap() {
            self.close_burst(sink);
        }
        self.settle(now.saturating_sub(self.limits.lag), sink);
    }

    /// Reports everything that is still open.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        self.process_same(sink);
        self.close_burst(sink);
        self.settle(Nanos::MAX, sink);
        while let Some(step) = self.chain.take_rest() {
            self.report(step, sink);
        }
    }

    fn process_same(&mut self, sink: &mut impl Sink) {
        let mut same = std::mem::take(&mut self.same);
        same.sort_unstable_by_key(order);
        for event in same.drain(..) {
            self.process(event, sink);
        }
        self.same = same;
    }

    fn process(&mut self, event: Event, sink: &mut impl Sink) {
        match event.kind {
            Kind::Preemptions { from, count } => return self.delays.reading(from, event.at, count),
            Kind::Held { cause: Cause::Tokometer, from } => return self.delays.late(from, event.at),
            _ => {}
        }
        let Some(&stream) = self.streams.get(event.slot as usize) else {
            self.ignored.unknown_streams += 1;
            return;
        };
        match event.kind {
            Kind::Open { tag, prompt_tokens, choices } => {
                if stream.part.is_some() {
                    self.close_burst(sink);
                }
                self.end(event, sink);
                self.structure.opened(choices);
                let excluded = choices > 1;
                let opened_at = event.at;
                let new = Stream { open: true, tag, prompt_tokens, opened_at, excluded, ..Stream::default() };
                self.streams[event.slot as usize] = new;
                self.opened += 1;
                if prompt_tokens >= LONG_PROMPT {
                    self.waiting.push(event.slot);
                }
            }
            Kind::Tokens { count } => {
                if !stream.open || count == 0 {
                    self.ignored.unknown_streams += u64::from(!stream.open);
                } else if stream.excluded {
                    // The tokens of its choices are no steps, but its prefill delays others.
                    if !stream.started && stream.part.is_none() {
                        self.tokens(event, 1, sink);
                    }
                } else {
                    let counted = &mut self.streams[event.slot as usize].counted;
                    *counted = counted.saturating_add(count);
                    self.tokens(event, count.min(MOST_TOKENS), sink);
                }
            }
            Kind::End { tokens } => {
                if stream.open && !stream.excluded {
                    self.structure.ended(stream.counted, tokens);
                }
                self.end(event, sink);
            }
            Kind::Blocked(blocked) => {
                // Its tokens so far arrived while the client was reading.
                if stream.part.is_some() {
                    self.close_burst(sink);
                }
                let stream = &mut self.streams[event.slot as usize];
                stream.blocked = blocked;
                stream.rejoins = true;
            }
            Kind::Held { cause, from } => {
                if stream.open && from < event.at && matches!(cause, Cause::Client | Cause::Network) {
                    self.delays.charged(event.slot, from, event.at);
                    let excess = event.at - from;
                    let (slot, tag, streams) = (event.slot, stream.tag, self.started);
                    let to = event.at;
                    sink.delay(&Delay { slot, tag, from, to, excess, tokens: 0, streams, cause, culprit: None });
                }
            }
            Kind::Preemptions { .. } => {}
        }
    }

    fn tokens(&mut self, event: Event, count: u32, sink: &mut impl Sink) {
        let bunch = self.bunch();
        let (at, slot) = (event.at, event.slot);
        let stream = &mut self.streams[slot as usize];
        if stream.blocked {
            // Its tokens come when the client reads, not when the engine sends.
            if !stream.started {
                stream.started = true;
                self.started += 1;
                self.waiting.retain(|&other| other != slot);
            }
            stream.last_at = at;
            return;
        }
        if let Some(part) = stream.part.and_then(|part| self.burst.get_mut(part as usize)) {
            if at - part.last_at <= bunch {
                part.tokens = part.tokens.saturating_add(count).min(MOST_TOKENS);
                part.last_at = at;
                self.burst_end = at;
                return;
            }
            self.close_burst(sink);
        }
        let stream = &mut self.streams[slot as usize];
        stream.part = Some(self.burst.len() as u32);
        let first = !stream.started;
        let (before, step_before) = (stream.last_at, stream.last_step);
        let rejoins = stream.rejoins;
        self.burst.push(Part {
            slot,
            tokens: count,
            at,
            last_at: at,
            before,
            step_before,
            first,
            rejoins,
            ended: false,
        });
        self.burst_end = at;
        if first {
            self.started += 1;
        }
    }

    fn end(&mut self, event: Event, sink: &mut impl Sink) {
        let slot = event.slot;
        let stream = &mut self.streams[slot as usize];
        if !stream.open {
            return;
        }
        self.opened -= 1;
        if let Some(part) = stream.part {
            if matches!(event.kind, Kind::End { .. }) {
                if let Some(part) = self.burst.get_mut(part as usize) {
                    part.ended = true;
                }
                stream.open = false;
                self.started = self.started.saturating_sub(1);
                return;
            }
            self.close_burst(sink);
        }
        let stream = &mut self.streams[slot as usize];
        self.chain.ended(stream);
        stream.open = false;
        if stream.started {
            self.started = self.started.saturating_sub(1);
        } else if stream.prompt_tokens >= LONG_PROMPT {
            self.waiting.retain(|&other| other != slot);
        }
    }

    fn expected(&self) -> Option<Nanos> {
        self.step_times.get(self.started).or(self.step_times.any())
    }

    fn gap(&self) -> Nanos {
        self.expected().map_or(GAP, |expected| (expected / 8).clamp(SHORTEST_GAP, GAP))
    }

    fn bunch(&self) -> Nanos {
        self.expected().map_or(SHORTEST_GAP, |expected| expected / 4)
    }

    fn close_burst(&mut self, sink: &mut impl Sink) {
        if self.burst.is_empty() {
            return;
        }
        let burst = std::mem::take(&mut self.burst);
        let (expected, bunch) = (self.expected(), self.bunch());
        let placed = self.chain.place(&burst, &mut self.streams, expected, bunch);
        if placed.new > 0 {
            self.learn();
            self.begin_advance(&placed);
        }
        let several = BURST * self.structure.interval();
        let held = burst.iter().filter(|part| part.tokens >= several).count();
        let mut skipped = 0;
        for part in burst.iter().filter(|part| part.first) {
            self.streams[part.slot as usize].part = None;
            self.begun(part);
        }
        for part in burst.iter().filter(|part| !part.first) {
            let stream = &mut self.streams[part.slot as usize];
            stream.part = None;
            if let Some(advance) = self.advances.last() {
                advance.served += 1;
            }
            if part.rejoins {
                continue;
            }
            let missed = (stream.last_step - part.step_before).saturating_sub(u64::from(part.tokens));
            skipped += if missed <= 2 { missed } else { 0 };
            self.gap_of(part, held, sink);
        }
        let apart = placed.new == 0 && expected.is_some_and(|expected| placed.silence > expected / 4);
        self.structure.burst(&burst, apart, skipped);
        self.burst = burst;
        self.burst.clear();
        self.delays.decide(&self.advances, &self.prefill_times, sink);
    }

    fn settle(&mut self, before: Nanos, sink: &mut impl Sink) {
        self.delays.decide_overdue(before, &self.advances, &self.prefill_times, sink);
        while let Some(step) = self.chain.take_final(before) {
            self.report(step, sink);
        }
    }

    fn report(&self, mut step: Step, sink: &mut impl Sink) {
        step.prefill |= self.advances.chunked(step.index);
        sink.step(&step);
    }
}

/// The order of events with equal times.
fn order(event: &Event) -> (u32, u8, u64, u64) {
    let (rank, first, second) = match event.kind {
        Kind::Preemptions { from, count } => return (0, 0, from, u64::from(count)),
        Kind::Open { tag, prompt_tokens, .. } => (1, tag, u64::from(prompt_tokens)),
        Kind::Held { cause, from } => (2, from, cause as u64),
        Kind::Blocked(blocked) => (3, u64::from(blocked), 0),
        Kind::Tokens { count } => (4, u64::from(count), 0),
        Kind::End { tokens } => (5, u64::from(tokens), 0),
    };
    (event.slot, rank, first, second)
}
