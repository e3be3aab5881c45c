//! Gaps between token-bearing events. They are forwarded in batches, so that locks are rarely taken.

use std::hint::black_box;
use std::time::Duration;

use crate::measure::request::cadence::{Cadence, TOGETHER, patience};
use crate::measure::request::times::{Since, nanos};
use crate::measure::{Count, Gap, Live, TokenCounts, TokenGaps};

/// Maximum number of buffered gaps.
const BATCH: usize = 8;
/// Number of choices whose gaps are tracked separately; events of other choices have no gap.
const CHOICES: usize = 4;
/// Maximum time between two batches while tokens arrive, so that counters are also updated for slow streams.
const PERIOD: Duration = Duration::from_secs(1);

/// Marks an unknown number of tokens.
const UNKNOWN: u32 = u32::MAX;

/// Gaps of one response. Times are nanoseconds since the request began, which take half the size of a [`Duration`].
#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    last: [Since; CHOICES],
    /// Buffered gaps, in nanoseconds.
    batch: [u64; BATCH],
    /// Tokens in the event after each buffered gap, or [`UNKNOWN`]. Two arrays take half the memory of an array of
    /// [`Gap`].
    batch_tokens: [u32; BATCH],
    len: u8,
    tokens: u32,
    /// Tokens forwarded so far.
    forwarded: u32,
    /// Time of the last forwarded batch.
    forwarded_at: u64,
    /// The longest gap.
    longest: Since,
    /// Tokens in the event after the longest gap, [`UNKNOWN`] if unknown.
    longest_tokens: u32,
    /// The longest pause (gap that the cadence does not explain) in microseconds; 0 if there is none.
    longest_pause: u32,
    stalls: u32,
    /// A gap may hide a stall of the engine, because this thread was late.
    unmeasured: bool,
    cadence: Cadence,
    /// Total delay of this thread during the request, in milliseconds.
    late_ms: u32,
    /// `late_ms` at the last token of each choice.
    late_before: [u32; CHOICES],
    /// The events being read had waited for this thread or for the client, so the gaps between them are not the
    /// engine's.
    catching_up: bool,
    /// One bit per choice, set if delivery was blocked on the client since the choice's last token. The next gap is
    /// then not the engine's.
    interrupted: u8,
}

impl Gaps {
    /// Adds an event with tokens of `choice` that arrived at `at`. An unknown number of tokens (`None`) counts as one.
    /// Returns the usual gap if watches need an update.
    pub(super) fn token(
        &mut self,
        choice: u32,
        at: Duration,
        tokens: Option<u64>,
        stall: Duration,
        live: Option<&dyn Live>,
    ) -> Option<Duration> {
        if tokens == Some(0) {
            return None;
        }
        let at = nanos(at);
        let known = tokens.map(|n| u32::try_from(n).unwrap_or(UNKNOWN));
        self.tokens = self.tokens.saturating_add(known.unwrap_or(1));
        let usual = self.gap(choice, at, stall).and_then(|gap| self.add(gap, known, stall, live));
        if usize::from(self.len) == BATCH || at.saturating_sub(self.forwarded_at) >= nanos(PERIOD) {
            self.forward(live);
            self.forwarded_at = at;
        }
        usual
    }

    /// Returns the gap before the event of `choice` at `at`, without the delay of this thread. `None` for the first
    /// event, and if the client or (mostly) this thread caused the gap.
    fn gap(&mut self, choice: u32, at: u64, stall: Duration) -> Option<u64> {
        let (last, late_before) = (self.last.get_mut(choice as usize)?, self.late_before.get_mut(choice as usize)?);
        let before = std::mem::replace(last, Since::at_nanos(at)).nanos();
        let late = self.late_ms.saturating_sub(std::mem::replace(late_before, self.late_ms));
        let late = u64::from(late) * 1_000_000;
        let gap = before.map(|before| at.saturating_sub(before));
        let bit = 1 << choice;
        let interrupted = self.interrupted & bit != 0;
        self.interrupted &= !bit;
        self.catching_up = match gap {
            _ if interrupted => true,
            // Events that arrived while the thread was late or the client did not read are read in one batch.
            Some(gap) if late == 0 => self.catching_up && gap < nanos(TOGETHER),
            Some(gap) => late >= gap / 2,
            None => late > 0,
        };
        let gap = gap?;
        let engine = if self.catching_up { 0 } else { gap.saturating_sub(late) };
        // The engine was silent for at least `engine` and at most `gap`.
        self.unmeasured |= late > 0 && !interrupted && engine <= nanos(stall) && gap > nanos(stall) && {
            gap > nanos(patience(stall, self.cadence.usual()))
        };
        (!self.catching_up).then_some(engine)
    }

    /// Adds an engine gap.
    fn add(&mut self, gap: u64, known: Option<u32>, stall: Duration, live: Option<&dyn Live>) -> Option<Duration> {
        let counted = known.unwrap_or(UNKNOWN);
        if self.longest.nanos().is_none_or(|longest| gap > longest) {
            (self.longest, self.longest_tokens) = (Since::at_nanos(gap), counted);
        }
        let place = usize::from(self.len);
        if let (Some(kept), Some(of)) = (self.batch.get_mut(place), self.batch_tokens.get_mut(place)) {
            (*kept, *of) = (gap, counted);
            self.len += 1;
        }
        let (longest, stalls) = (&mut self.longest_pause, &mut self.stalls);
        self.cadence.add(gap, known, &mut |gap| note(gap, longest, stalls, stall, live))
    }

    /// Adds a delay of this thread.
    pub(super) fn late(&mut self, by: Duration) {
        self.late_ms = self.late_ms.saturating_add(u32::try_from(by.as_millis()).unwrap_or(u32::MAX));
    }

    /// Prefetches the memory that the next token needs.
    pub(super) fn warm(&self) {
        black_box((self.last[0], self.batch[0], self.batch_tokens[0], self.tokens, self.len));
        self.cadence.warm();
    }

    /// Delivery was blocked on the client.
    pub(super) fn interrupt(&mut self) {
        self.interrupted = (1 << CHOICES) - 1;
    }

    /// Forwards the buffered gaps and tokens to `live`, if set.
    pub(super) fn forward(&mut self, live: Option<&dyn Live>) {
        if let Some(live) = live
            && (self.len > 0 || self.tokens > 0)
        {
            let kept: [Gap; BATCH] = std::array::from_fn(|place| Gap {
                gap: Duration::from_nanos(self.batch[place]),
                tokens: Some(self.batch_tokens[place]).filter(|tokens| *tokens != UNKNOWN),
            });
            live.progress(kept.get(..usize::from(self.len)).unwrap_or_default(), self.tokens.into());
            self.forwarded = self.forwarded.saturating_add(self.tokens);
            self.len = 0;
            self.tokens = 0;
        }
    }

    /// Tokens forwarded so far.
    pub(super) fn forwarded(&self) -> u64 {
        self.forwarded.into()
    }

    /// Ends the stream, and returns the values for the record.
    pub(super) fn end(&mut self, tokens: &TokenCounts, stall: Duration, live: Option<&dyn Live>) -> TokenGaps {
        // The engine may count the end-of-text token, which has no event.
        let one_each = tokens.output.and_then(Count::exact).is_some_and(|count| count <= tokens.chunks + 1);
        let (longest, stalls) = (&mut self.longest_pause, &mut self.stalls);
        self.cadence.end(one_each, &mut |gap| note(gap, longest, stalls, stall, live));
        let pause = Duration::from_micros(self.longest_pause.into());
        let longest = self.longest.get();
        TokenGaps {
            longest,
            longest_tokens: Some(self.longest_tokens).filter(|tokens| longest.is_some() && *tokens != UNKNOWN),
            longest_pause: Some(pause).filter(|pause| !pause.is_zero()),
            usual: self.cadence.usual(),
            stalls: Some(self.stalls).filter(|_| !self.unmeasured),
            late: Duration::from_millis(self.late_ms.into()),
        }
    }
}

/// Records a pause: a gap that the cadence does not explain.
fn note(gap: u64, longest: &mut u32, stalls: &mut u32, stall: Duration, live: Option<&dyn Live>) {
    *longest = u32::try_from(gap / 1000).unwrap_or(u32::MAX).max(*longest);
    if gap > nanos(stall) {
        *stalls += 1;
        live.inspect(|live| live.stalled());
    }
}
