//! Running medians of small rings, and the expected step time by batch size.

use crate::types::Nanos;

/// Median of the last `N` values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Median<const N: usize> {
    values: [u64; N],
    len: usize,
    next: usize,
    median: u64,
}

impl<const N: usize> Median<N> {
    pub(crate) const fn new() -> Self {
        Median { values: [0; N], len: 0, next: 0, median: 0 }
    }

    pub(crate) fn push(&mut self, value: u64) {
        self.values[self.next] = value;
        self.next = (self.next + 1) % N;
        self.len = (self.len + 1).min(N);
        let mut sorted = self.values;
        let sorted = &mut sorted[..self.len];
        let middle = (self.len - 1) / 2;
        self.median = *sorted.select_nth_unstable(middle).1;
    }

    /// Lower median; `None` before the first value.
    pub(crate) fn get(&self) -> Option<u64> {
        (self.len > 0).then_some(self.median)
    }

    /// Whether three of five values equal the median.
    pub(crate) fn is_usual(&self) -> bool {
        let equal = self.values[..self.len].iter().filter(|&&value| value == self.median).count();
        equal * 5 >= self.len * 3
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

const CLASSES: usize = 32;

/// Decode-only step time by class of batch size: medians of recent steps.
#[derive(Debug)]
pub(crate) struct StepTimes {
    classes: [Median<31>; CLASSES],
    recent: Median<31>,
}

/// Exact up to 8, then four classes per power of two.
fn class(batch: u32) -> usize {
    if batch <= 8 {
        return batch as usize;
    }
    let power = batch.ilog2();
    let quarter = (batch >> (power - 2)) & 3;
    (8 + (power - 3) * 4 + quarter).min(CLASSES as u32 - 1) as usize
}

impl StepTimes {
    pub(crate) fn new() -> Self {
        StepTimes { classes: [Median::new(); CLASSES], recent: Median::new() }
    }

    pub(crate) fn push(&mut self, batch: u32, duration: Nanos) {
        self.classes[class(batch)].push(duration);
        self.recent.push(duration);
    }

    /// Median step time whatever the batch size.
    pub(crate) fn any(&self) -> Option<Nanos> {
        self.recent.get()
    }

    /// Expected step time of a batch: that of its class, else of the nearest class with at least three values.
    pub(crate) fn get(&self, batch: u32) -> Option<Nanos> {
        let wanted = class(batch);
        (0..CLASSES)
            .flat_map(|distance| [wanted.checked_sub(distance), wanted.checked_add(distance)])
            .flatten()
            .filter_map(|class| self.classes.get(class))
            .find(|median| median.len() >= 3)
            .and_then(Median::get)
    }
}

const SIZES: usize = 24;
/// Prefill time per prompt token above which an unknown engine is not believed to prefill (100 tokens/s).
const SLOWEST: Nanos = 10_000_000;
/// A prefill that takes longer than this multiple of the usual time is not explained by its prompt.
const FITS: u64 = 3;

/// Prefill time per prompt token, by the binary order of magnitude of the prompt.
#[derive(Debug)]
pub(crate) struct PrefillTimes {
    sizes: [Median<15>; SIZES],
}

impl PrefillTimes {
    pub(crate) fn new() -> Self {
        PrefillTimes { sizes: [Median::new(); SIZES] }
    }

    fn size(tokens: u32) -> usize {
        (tokens.max(1).ilog2() as usize).min(SIZES - 1)
    }

    /// A step that ended the prefill of `tokens` prompt tokens took `excess` ns longer than one without prefill.
    pub(crate) fn push(&mut self, tokens: u32, excess: Nanos) {
        self.sizes[Self::size(tokens)].push(excess / u64::from(tokens.max(1)));
    }

    /// The usual time of `tokens` prompt tokens; 0 if unknown.
    pub(crate) fn usual(&self, tokens: u32) -> Nanos {
        self.known(Self::size(tokens)).map_or(0, |(_, usual)| usual.saturating_mul(u64::from(tokens)))
    }

    /// The nearest order of magnitude, downwards, of which there are values, and the time per token.
    fn known(&self, size: usize) -> Option<(usize, Nanos)> {
        let known = (0..=size).rev().find(|&size| self.sizes[size].len() >= 3)?;
        self.sizes[known].get().map(|usual| (known, usual))
    }

    /// Whether `tokens` prompt tokens explain `excess` ns: at most three times the usual time of such prompts, where known;
    /// scaled from shorter ones (attention is quadratic), else the slowest believable rate.
    pub(crate) fn fits(&self, tokens: u32, excess: Nanos) -> bool {
        let size = Self::size(tokens);
        let rate = match self.known(size) {
            Some((known, usual)) if known == size => usual.saturating_mul(FITS),
            Some((known, usual)) => usual.saturating_mul(FITS << (size - known)).min(SLOWEST),
            None => SLOWEST,
        };
        excess <= rate.saturating_mul(u64::from(tokens))
    }
}
