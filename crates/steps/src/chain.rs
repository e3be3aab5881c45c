//! Assigns the tokens of bursts to steps.
//!
//! A burst is a set of events that arrived close together, at most one per stream. On a calm machine it is one step. A
//! front end that falls behind merges the tokens of several steps into one event, at different times for different streams;
//! so does `stream_interval`. Both cases follow from one rule: a stream gets at most one token per step, in order. Tokens of a burst
//! therefore fill steps in which their stream is still missing, and only what does not fit creates new steps.

use std::collections::VecDeque;

use crate::streams::{Stream, WINDOW};
use crate::types::{Nanos, Step};

/// Tokens of one stream in a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) slot: u32,
    pub(crate) tokens: u32,
    /// Arrival of the first and of the last of its events.
    pub(crate) at: Nanos,
    pub(crate) last_at: Nanos,
    /// Last token and its step before this burst.
    pub(crate) before: Nanos,
    pub(crate) step_before: u64,
    pub(crate) first: bool,
    /// Its client was blocked before.
    pub(crate) rejoins: bool,
    pub(crate) ended: bool,
}

/// What a burst added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// New steps; 0 if the burst completed earlier ones.
    pub(crate) new: u32,
    /// End of the previous step (or start of the work after idle time), and first arrival of the burst.
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// Silence before the burst, since the last token of the newest step.
    pub(crate) silence: Nanos,
}

/// The sequence of steps, of which the last ones are open.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Index of the newest step.
    pub(crate) frontier: u64,
    /// Open steps, oldest first; the newest has index `frontier`.
    steps: VecDeque<Step>,
    /// End of the newest step: first arrival of its tokens.
    end: Nanos,
    /// Last arrival of a token of the newest step.
    last_arrival: Nanos,
    /// Streams of the newest step that have not ended.
    alive: u32,
}

impl Chain {
    pub(crate) fn new() -> Self {
        Chain { frontier: 0, steps: VecDeque::with_capacity(2 * WINDOW as usize), end: 0, last_arrival: 0, alive: 0 }
    }

    /// Places a burst. `expected` is the expected step time, `bunch` the time within which tokens of one stream cannot be of
    /// different steps unless they were held back.
    pub(crate) fn place(
        &mut self,
        parts: &[Part],
        streams: &mut [Stream],
        expected: Option<Nanos>,
        bunch: Nanos,
    ) -> Placed {
        let to = parts.iter().map(|part| part.at).min().unwrap_or(self.end);
        let silence = to.saturating_sub(self.last_arrival);
        let new = self.new_steps(parts, streams, to, expected, bunch);
        let from = self.start(parts, streams, to);
        if new > 0 {
            let duration = to.saturating_sub(from) / u64::from(new);
            for nth in 0..u64::from(new) {
                self.frontier += 1;
                let start = from + nth * duration;
                self.steps.push_back(Step { index: self.frontier, start, duration, merged: new, ..Step::default() });
            }
            self.end = to;
            self.last_arrival = to;
            self.alive = 0;
        }
        for part in parts {
            self.fill(part, &mut streams[part.slot as usize], u64::from(new));
            self.last_arrival = self.last_arrival.max(part.last_at);
        }
        Placed { new, from, to, silence }
    }

    /// The least number of new steps that explains the burst.
    fn new_steps(
        &self,
        parts: &[Part],
        streams: &mut [Stream],
        to: Nanos,
        expected: Option<Nanos>,
        bunch: Nanos,
    ) -> u32 {
        let mut new = 0;
        let mut repeated = false;
        let mut continued = false;
        for part in parts {
            let stream = &mut streams[part.slot as usize];
            if part.first {
                let since = self.steps.iter().rev().take_while(|step| step.start + step.duration > stream.opened_at);
                new = new.max(part.tokens.saturating_sub(since.take(part.tokens as usize).count() as u32));
                continue;
            }
            continued = true;
            let attendance = stream.attendance(self.frontier);
            let free = (!attendance & self.open_steps()).count_ones();
            if !part.rejoins {
                new = new.max(part.tokens.saturating_sub(free));
            }
            let held = part.at.saturating_sub(stream.last_at) < bunch && free >= part.tokens;
            repeated |= attendance & 1 == 1 && !held;
        }
        if new > 0 {
            return self.within_window(parts, streams, new);
        }
        let since = to.saturating_sub(self.last_arrival);
        // Streams that are missing in the newest step complete it while its own streams are silent.
        let rest = match expected {
            Some(expected) if continued && self.alive > 0 => 4 * expected,
            Some(expected) => expected / 2,
            None => 2_000_000,
        };
        u32::from(repeated || self.steps.is_empty() || since > rest)
    }

    /// New steps push old ones out of the window; tokens that would have filled those need new steps as well.
    fn within_window(&self, parts: &[Part], streams: &[Stream], mut new: u32) -> u32 {
        loop {
            let kept = u64::MAX.checked_shr(new).unwrap_or(0);
            let lacking = parts.iter().filter(|part| !part.first && !part.rejoins).map(|part| {
                let free = (!streams[part.slot as usize].seen & self.open_steps() & kept).count_ones();
                part.tokens.saturating_sub(new + free)
            });
            match lacking.max() {
                None | Some(0) => return new,
                Some(lacking) => new += lacking,
            }
        }
    }

    fn start(&self, parts: &[Part], streams: &[Stream], to: Nanos) -> Nanos {
        let continues = parts.iter().any(|part| !part.first);
        if continues {
            return self.end.min(to);
        }
        let opened = parts.iter().map(|part| streams[part.slot as usize].opened_at).min().unwrap_or(to);
        self.end.max(opened).min(to)
    }

    /// Adds the tokens of a part to the `new` newest steps, and what does not fit there to the newest steps without this
    /// stream.
    fn fill(&mut self, part: &Part, stream: &mut Stream, new: u64) {
        let frontier = self.frontier;
        let counted = !part.first && stream.attendance(frontier) & 1 == 1;
        let mut left = u64::from(part.tokens);
        let fresh = left.min(new);
        // A stream that ended in a merged burst had its tokens in the first steps, another one in the last.
        let newest = if part.ended && !part.first { new - fresh } else { 0 };
        let mut earliest = newest;
        for back in newest..newest + fresh {
            self.count(back, stream);
            earliest = back;
        }
        left -= fresh;
        if part.first {
            // Its first token may have arrived late, as part of steps that others already had.
            for back in new..self.steps.len() as u64 {
                let behind = self.step(back).is_none_or(|step| step.start + step.duration <= stream.opened_at);
                if left == 0 || behind {
                    break;
                }
                self.count(back, stream);
                earliest = back;
                left -= 1;
            }
            stream.attend_all(frontier);
            let prompt_tokens = stream.prompt_tokens;
            if let Some(step) = self.step(earliest) {
                step.decoding = step.decoding.saturating_sub(1);
                step.first_tokens += 1;
                step.prompt_tokens = step.prompt_tokens.saturating_add(prompt_tokens);
                step.prefill = true;
            }
        } else {
            let mut free = !stream.attendance(frontier) & self.open_steps();
            while left > 0 && free != 0 {
                let back = u64::from(free.trailing_zeros());
                free &= free - 1;
                self.count(back, stream);
                left -= 1;
            }
        }
        stream.started = true;
        stream.rejoins = false;
        stream.last_step = frontier - newest;
        stream.last_at = part.last_at;
        if !part.ended && !counted && stream.attendance(frontier) & 1 == 1 {
            self.alive += 1;
        }
    }

    /// One bit per open step, the newest lowest.
    fn open_steps(&self) -> u64 {
        if self.steps.len() >= WINDOW as usize { u64::MAX } else { (1 << self.steps.len()) - 1 }
    }

    fn step(&mut self, back: u64) -> Option<&mut Step> {
        let position = (self.steps.len() as u64).checked_sub(back + 1)?;
        self.steps.get_mut(position as usize)
    }

    fn count(&mut self, back: u64, stream: &mut Stream) {
        if let Some(step) = self.step(back) {
            step.decoding += 1;
        }
        if back < WINDOW {
            stream.attend(self.frontier, back);
        }
    }

    /// A stream of the newest step ended.
    pub(crate) fn ended(&mut self, stream: &mut Stream) {
        if stream.started && stream.attendance(self.frontier) & 1 == 1 {
            self.alive = self.alive.saturating_sub(1);
        }
    }

    /// An open step by index.
    pub(crate) fn get(&self, index: u64) -> Option<&Step> {
        let back = self.frontier.checked_sub(index)? as usize;
        self.steps.get(self.steps.len().checked_sub(back + 1)?)
    }

    /// Takes the oldest step if it is final: outside the window, or ended before `before`.
    pub(crate) fn take_final(&mut self, before: Nanos) -> Option<Step> {
        let oldest = self.steps.front()?;
        let last = self.steps.len() == 1;
        let due = self.steps.len() as u64 > WINDOW || oldest.start + oldest.duration < before && !last;
        if due { self.steps.pop_front() } else { None }
    }

    /// Takes the remaining steps.
    pub(crate) fn take_rest(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }
}
