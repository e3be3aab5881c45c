//! The time between two steps as all streams see it, and its cause.

use std::collections::VecDeque;

use crate::expected::PrefillTimes;
use crate::types::{Cause, Culprit, Nanos};

/// Prompt tokens from which a request can take several steps to prefill.
pub(crate) const LONG_PROMPT: u32 = 400;
/// Steps of usual size that must arrive at once to prove that the engine ran on.
pub(crate) const BURST: u32 = 3;
/// Steps of usual length in a row that prove that no prefill was under way before them.
const USUAL_AGAIN: usize = 2;
/// Slow steps in a row that prove chunked prefill before the first token of the request in question.
const CHUNKS: usize = 3;
/// A chunk that takes longer than this multiple of the mean of the others is not explained by prefill alone.
const OUTLIER: Nanos = 3;
const KEPT: usize = 256;
/// Requests that one step's prefill is charged to; those with the shortest prompts are left out.
pub(crate) const CULPRITS: usize = 4;

/// The time up to the first token of a new step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advance {
    pub(crate) number: u64,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
    /// Newest step it led to, and how many steps.
    pub(crate) step: u64,
    pub(crate) new: u32,
    /// Expected time of one step; 0 if unknown.
    pub(crate) expected: Nanos,
    /// Tokens per event that the server usually sends.
    pub(crate) usual: u32,
    /// Prompt tokens of the streams that began here, in all and in the step that had most of them.
    pub(crate) prompt_tokens: u32,
    pub(crate) most_prompt_tokens: u32,
    /// The streams that began here, that with the longest prompt first.
    pub(crate) begun: [Option<Culprit>; CULPRITS],
    /// Excess of the steps before this one that may have carried their earlier chunks.
    pub(crate) chunks: Nanos,
    /// A long prompt that waited for its first token since before `from`.
    pub(crate) waiting: Option<Culprit>,
    /// The long prompt of which a chunk was processed here, as a later first token proves.
    pub(crate) chunk: Option<Culprit>,
    /// It lasted far longer than the other chunks of the same prompt.
    pub(crate) mixed: bool,
    /// Streams that got tokens, and streams that had begun and not ended.
    pub(crate) served: u32,
    pub(crate) streams: u32,
}

impl Advance {
    pub(crate) fn excess(&self) -> Nanos {
        if self.expected == 0 { 0 } else { (self.to - self.from).saturating_sub(self.expected) }
    }

    pub(crate) fn slow(&self) -> bool {
        self.excess() > tolerance(self.expected)
    }

    /// Whom its prefill is charged to.
    pub(crate) fn culprits(&self) -> [Option<Culprit>; CULPRITS] {
        let one = |culprit| {
            let mut culprits = [None; CULPRITS];
            culprits[0] = culprit;
            culprits
        };
        match (self.chunk, self.begun[0]) {
            (None, Some(_)) => self.begun,
            (chunk, _) => one(chunk.or(self.waiting)),
        }
    }

    pub(crate) fn begin(&mut self, culprit: Culprit) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(culprit.prompt_tokens);
        let order = |entry: &Option<Culprit>| entry.map(|c| (std::cmp::Reverse(c.prompt_tokens), c.slot));
        let mut new = Some(culprit);
        for entry in &mut self.begun {
            if entry.is_none() || order(&new) < order(entry) {
                std::mem::swap(entry, &mut new);
            }
            if new.is_none() {
                break;
            }
        }
    }
}

/// Excess that is not reported as delay, except for prefill.
pub(crate) fn tolerance(expected: Nanos) -> Nanos {
    (expected / 2).max(1_000_000)
}

/// Excess that is not reported as delay even if the step carried prefill.
pub(crate) fn prefill_tolerance(expected: Nanos) -> Nanos {
    expected / 16
}

/// The last advances.
#[derive(Debug)]
pub(crate) struct Advances {
    kept: VecDeque<Advance>,
}

/// The cause of an advance, as far as it is proven.
pub(crate) enum Verdict {
    Final(Cause),
    /// Chunked prefill is possible and a later first token can prove it.
    Open,
}

impl Advances {
    pub(crate) fn new() -> Self {
        Advances { kept: VecDeque::with_capacity(KEPT) }
    }

    pub(crate) fn push(&mut self, advance: Advance) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(advance);
    }

    pub(crate) fn last(&mut self) -> Option<&mut Advance> {
        self.kept.back_mut()
    }

    pub(crate) fn newest(&self) -> u64 {
        self.kept.back().map_or(0, |advance| advance.number)
    }

    fn position(&self, number: u64) -> Option<usize> {
        let first = self.kept.front()?.number;
        usize::try_from(number.checked_sub(first)?).ok().filter(|&at| at < self.kept.len())
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Advance> {
        self.position(number).and_then(|at| self.kept.get(at))
    }

    /// The slowest advance that ended after `from`.
    pub(crate) fn slowest_since(&self, from: Nanos) -> Option<&Advance> {
        self.kept.iter().rev().take_while(|advance| advance.to > from).max_by_key(|advance| advance.excess())
    }

    /// The first token of a long prompt arrived in the newest advance: the slow advances right before it carried its chunks, as
    /// far back as they look alike, if the prompt explains their excess.
    pub(crate) fn prove_chunks(&mut self, culprit: Culprit, opened: Nanos, times: &PrefillTimes) {
        let Some(last) = self.kept.back().map(Advance::excess) else { return };
        let (mut chunks, mut longest) = (0, last);
        let mut count = 0;
        for advance in self.kept.iter().rev().skip(1) {
            // The chunks of a prompt are of one size, except that the last one may be smaller.
            let alike = advance.slow() && advance.excess() >= longest / 3;
            longest = longest.max(advance.excess());
            let possible = alike && advance.to > opened && advance.chunk.is_none();
            if !possible || advance.prompt_tokens >= LONG_PROMPT {
                break;
            }
            chunks += advance.excess();
            count += 1;
        }
        if let Some(newest) = self.kept.back_mut() {
            newest.chunks = newest.chunks.max(chunks);
        }
        if count == 0 || !times.fits(culprit.prompt_tokens, last + chunks) {
            return;
        }
        let others = (count as Nanos).saturating_sub(1);
        for advance in self.kept.iter_mut().rev().skip(1).take(count) {
            advance.chunk = Some(culprit);
            advance.mixed = others > 0 && advance.excess() * others > OUTLIER * (chunks - advance.excess());
        }
    }

    /// Whether this step carried a chunk of prefill, as a first token or a row of slow steps proves.
    pub(crate) fn chunked(&self, step: u64) -> bool {
        let at = self.kept.partition_point(|advance| advance.step < step);
        self.kept.get(at).is_some_and(|advance| {
            let row =
                || advance.waiting.is_some() && matches!(self.in_a_row(advance), Row::Goes(slow) if slow >= CHUNKS);
            advance.chunk.is_some() || row()
        })
    }

    /// `overdue`: no later evidence is awaited.
    pub(crate) fn verdict(&self, advance: &Advance, times: &PrefillTimes, overdue: bool) -> Verdict {
        let at_once = advance.new >= BURST * advance.usual;
        let ran_on = u64::from(advance.new) * advance.expected >= (advance.to - advance.from) / 2;
        if at_once && ran_on {
            // A prefill that lasts a good part of the gap is a second explanation.
            let tokens = advance.most_prompt_tokens;
            let prefill = tokens >= LONG_PROMPT && times.usual(tokens) * 4 > advance.to - advance.from;
            return Verdict::Final(if prefill { Cause::Unknown } else { Cause::Delivery });
        }
        if advance.mixed {
            return Verdict::Final(Cause::Unknown);
        }
        if advance.begun[0].is_some() && times.fits(advance.prompt_tokens, advance.excess()) || advance.chunk.is_some()
        {
            return Verdict::Final(Cause::Prefill);
        }
        if advance.waiting.is_some() {
            // Once begun, a prefill goes on in every step.
            match self.in_a_row(advance) {
                Row::Ended => {}
                Row::Goes(_) if !overdue => return Verdict::Open,
                Row::Goes(slow) if slow >= CHUNKS => return Verdict::Final(Cause::Prefill),
                Row::Goes(_) => return Verdict::Final(Cause::Unknown),
            }
        }
        // The engine ran on for two steps at least, or most streams went on silently.
        let ran_on = ran_on && advance.new > advance.usual;
        if ran_on || advance.served * 2 < advance.streams {
            return Verdict::Final(Cause::Unknown);
        }
        Verdict::Final(Cause::EnginePause)
    }

    /// Slow advances around `advance` during which the same long prompt waited.
    fn in_a_row(&self, advance: &Advance) -> Row {
        let Some(at) = self.position(advance.number) else { return Row::Ended };
        let like = |other: &&Advance| other.slow() && other.waiting == advance.waiting;
        let after = self.kept.range(at..).take_while(like).count();
        let mut next = self.kept.range(at + after..).take(USUAL_AGAIN);
        if next.len() == USUAL_AGAIN && next.all(|other| !other.slow()) {
            return Row::Ended;
        }
        let before = self.kept.range(..at).rev().take(CHUNKS).take_while(like).count();
        Row::Goes(before + after)
    }
}

/// A sequence of slow advances while a long prompt waits.
enum Row {
    /// Steps became usual again although the prompt still waits.
    Ended,
    /// It has this many so far.
    Goes(usize),
}
