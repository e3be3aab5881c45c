//! Gaps between steps and between the tokens of a stream, as delays with what decides about their cause.

use crate::Analyzer;
use crate::advance::{Advance, BURST, CULPRITS, LONG_PROMPT, prefill_tolerance, tolerance};
use crate::chain::{Part, Placed};
use crate::delays::Basis;
use crate::types::{Cause, Delay, Sink};

/// Waiting long prompts that are looked at when a step was slow.
const LOOKED_AT: usize = 64;
/// Steps of other streams during a gap from which a stream waited alone.
const OTHERS_WENT_ON: u64 = 3;

impl Analyzer {
    /// The newest advance is complete: its step time is learned.
    pub(crate) fn learn(&mut self) {
        let Some(advance) = self.advances.last() else { return };
        let steps = (0..u64::from(advance.new)).map_while(|back| self.chain.get(advance.step - back));
        advance.most_prompt_tokens = steps.map(|step| step.prompt_tokens).max().unwrap_or(0);
        let Some(step) = self.chain.get(advance.step) else { return };
        let duration = (advance.to - advance.from) / u64::from(advance.new);
        if advance.begun[0].is_some() {
            if advance.expected > 0 {
                self.prefill_times.push(advance.prompt_tokens, advance.excess() + advance.chunks);
            }
        } else if advance.waiting.is_none() || duration < 2 * advance.expected {
            self.step_times.push(step.decoding, duration);
        }
    }

    pub(crate) fn begin_advance(&mut self, placed: &Placed) {
        let frontier = self.chain.frontier;
        let batch = self.chain.get(frontier).map_or(1, |step| step.tokens());
        let mut advance = Advance {
            number: self.advances.newest() + 1,
            from: placed.from,
            to: placed.to,
            step: frontier,
            new: placed.new,
            expected: self.step_times.get(batch).unwrap_or(0),
            usual: self.structure.interval(),
            prompt_tokens: 0,
            most_prompt_tokens: 0,
            begun: [None; CULPRITS],
            chunks: 0,
            waiting: None,
            chunk: None,
            mixed: false,
            served: 0,
            streams: self.started,
        };
        if advance.slow() {
            let streams = &self.streams;
            let waited = self.waiting.iter().take(LOOKED_AT).filter(|&&slot| {
                let stream = &streams[slot as usize];
                stream.opened_at <= placed.from && stream.part.is_none()
            });
            let oldest = waited.min_by_key(|&&slot| (streams[slot as usize].opened_at, slot));
            advance.waiting = oldest.map(|&slot| streams[slot as usize].as_culprit(slot));
        }
        self.advances.push(advance);
    }

    /// A stream got its first token.
    pub(crate) fn begun(&mut self, part: &Part) {
        let stream = self.streams[part.slot as usize];
        let culprit = stream.as_culprit(part.slot);
        if let Some(advance) = self.advances.last() {
            advance.begin(culprit);
        }
        if culprit.prompt_tokens >= LONG_PROMPT {
            self.waiting.retain(|&other| other != part.slot);
            self.advances.prove_chunks(culprit, stream.opened_at, &self.prefill_times);
        }
    }

    /// Judges the gap of a stream that ended with this part, one of `held` in its burst that got tokens of several steps.
    pub(crate) fn gap_of(&mut self, part: &Part, held: usize, sink: &mut impl Sink) {
        let Some(advance) = self.advances.last() else { return };
        let (expected, usual) = (advance.expected, advance.usual);
        if expected == 0 || part.before == 0 || part.at <= part.before {
            return;
        }
        let (number, new) = (advance.number, u64::from(advance.new));
        let begun = advance.begun[0].is_some();
        let slot = part.slot;
        let (tag, step) = (self.streams[slot as usize].tag, self.streams[slot as usize].last_step);
        let (from, to) = (part.before, part.at);
        let mut delay = Delay {
            slot,
            tag,
            from,
            to,
            excess: 0,
            tokens: part.tokens,
            streams: self.started,
            cause: Cause::Unknown,
            culprit: None,
        };
        let steps = u64::from(part.tokens.min(usual).max(1));
        let alone = self.step_times.get(1).unwrap_or(expected);
        let longer = expected.saturating_sub(alone);
        if longer > expected / 8 {
            delay.excess = steps * longer;
            delay.cause = Cause::Batch;
            sink.delay(&delay);
        }
        if steps > 1 {
            delay.excess = (steps - 1) * alone.min(expected);
            delay.cause = Cause::Interval;
            sink.delay(&delay);
        }
        let usual_gap = steps * expected;
        // A neighbour's first token of this step may arrive later.
        let prefill = begun || self.opened > self.started;
        let tolerance = if prefill { prefill_tolerance(usual_gap) } else { tolerance(usual_gap) };
        let excess = (to - from).saturating_sub(usual_gap);
        if excess <= tolerance {
            return;
        }
        delay.excess = excess.saturating_sub(self.delays.already_charged(slot, from, to));
        if delay.excess <= tolerance {
            return;
        }
        let slowest = self.advances.slowest_since(from);
        let by_all = slowest.filter(|advance| advance.excess() * 2 >= delay.excess);
        let steps_since = step.saturating_sub(part.step_before);
        let others = steps_since.saturating_sub(new.min(u64::from(part.tokens)));
        let by_all = by_all.map(|advance| advance.number);
        let basis = if others >= OTHERS_WENT_ON + steps - 1 {
            let missed = steps_since.saturating_sub(u64::from(part.tokens)) >= OTHERS_WENT_ON;
            if !missed && part.tokens >= BURST * usual && held > 1 {
                Basis::FrontEnd
            } else {
                Basis::Stream { missed, by_all }
            }
        } else if let Some(number) = by_all {
            Basis::Advance(number)
        } else if steps_since <= new {
            Basis::Advance(number)
        } else {
            Basis::Nothing
        };
        self.delays.push(delay, usual_gap, basis, &self.advances, &self.prefill_times, sink);
    }
}
