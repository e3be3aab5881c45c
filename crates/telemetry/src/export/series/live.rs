//! Live counts: values that change while a stream runs. The data path gathers them without blocking; other threads add
//! them to the series.

use std::hint::spin_loop;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use crate::export::series::Series;
use crate::export::series::distribution::{Exemplar, State};
use tokometer_metrics::table::{Id, metric};
use tokometer_observe::measure::{Gap, Live};

/// Number of attempts to lock one of the two halves before the thread yields its core.
const SPINS: u32 = 64;

/// Gaps gathered as histograms.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// Gaps before events with one token. Each is both an inter-token latency and a chunk gap.
    single: State,
    /// Inter-token latencies before events with several tokens.
    latency: State,
    /// Chunk gaps before events with several tokens.
    chunk: State,
    chunk_tokens: State,
}

impl Gaps {
    /// `native`: also gather native buckets.
    pub(crate) fn new(native: bool) -> Gaps {
        let state = |id| State::new(metric(id).buckets, native, false);
        let (latency, chunk) = (Id::InterTokenLatency, Id::ChunkGap);
        Gaps {
            single: state(latency),
            latency: state(latency),
            chunk: state(chunk),
            chunk_tokens: state(Id::ChunkTokens),
        }
    }

    fn take(&mut self, gaps: &[Gap]) {
        for Gap { gap, tokens } in gaps {
            let seconds = gap.as_secs_f64();
            // An unknown number of tokens counts as one. An event with k tokens adds k observations of gap/k.
            match tokens.unwrap_or(1).max(1) {
                1 => self.single.observe(seconds, 1),
                k => {
                    self.latency.observe(seconds / f64::from(k), u64::from(k));
                    self.chunk.observe(seconds, 1);
                }
            }
            if let Some(tokens) = tokens {
                self.chunk_tokens.observe(f64::from(*tokens), 1);
            }
        }
    }

    fn is_empty(&self) -> bool {
        [&self.single, &self.chunk, &self.chunk_tokens].iter().all(|state| state.count == 0)
    }

    fn clear(&mut self) {
        [&mut self.single, &mut self.latency, &mut self.chunk, &mut self.chunk_tokens]
            .into_iter()
            .for_each(State::clear);
    }
}

/// Live counts of one label set that are not in the series yet. Written by the data path, drained by one other thread
/// at a time.
#[derive(Debug)]
pub(crate) struct LiveCounts {
    native: bool,
    tokens: AtomicU64,
    stalls: AtomicU64,
    /// True once a stream uses these counts. Their series are created only then.
    used: AtomicBool,
    /// The data path locks whichever half is free. The draining thread holds one half at a time, so the data path only
    /// ever waits for other data path threads. Allocated on first use.
    halves: [Mutex<Option<Box<Gaps>>>; 2],
}

impl LiveCounts {
    pub(crate) fn new(native: bool) -> LiveCounts {
        LiveCounts {
            native,
            tokens: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            used: AtomicBool::new(false),
            halves: Default::default(),
        }
    }

    /// Marks the counts as used and returns them for a stream.
    pub(crate) fn for_stream(self: &Arc<Self>) -> Arc<LiveCounts> {
        if !self.is_used() {
            self.used.store(true, Relaxed);
        }
        Arc::clone(self)
    }

    fn free_half(&self) -> MutexGuard<'_, Option<Box<Gaps>>> {
        let mut tries = 0;
        loop {
            if let Some(half) = self.halves.iter().find_map(try_lock) {
                return half;
            }
            // Another data path thread holds a half, for less than a microsecond.
            tries += 1;
            if tries % SPINS == 0 { thread::yield_now() } else { spin_loop() }
        }
    }

    /// True once a stream uses these counts.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    /// Adds the gathered counts to these series. Returns true if there were any. `spare` is a buffer that is empty
    /// before and after the call. Call from one thread at a time, and never from the data path.
    pub(crate) fn drain(&self, series: &LiveSeries, spare: &mut Gaps) -> bool {
        let (tokens, stalls) = (self.tokens.swap(0, Relaxed), self.stalls.swap(0, Relaxed));
        for (counter, n) in [(&series.tokens, tokens), (&series.stalls, stalls)] {
            if let Some(counter) = counter.as_ref().filter(|_| n > 0) {
                counter.add(n);
            }
        }
        let mut some = tokens > 0 || stalls > 0;
        for half in &self.halves {
            let mut half = loop {
                match try_lock(half) {
                    Some(half) => break half,
                    None => thread::yield_now(),
                }
            };
            let Some(gaps) = half.as_mut().filter(|gaps| !gaps.is_empty()) else { continue };
            std::mem::swap(&mut **gaps, spare);
            drop(half);
            series.add(spare);
            spare.clear();
            some = true;
        }
        some
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Live for LiveCounts {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
        if !gaps.is_empty() {
            self.free_half().get_or_insert_with(|| Box::new(Gaps::new(self.native))).take(gaps);
        }
    }

    fn stalled(&self) {
        self.stalls.fetch_add(1, Relaxed);
    }

    fn reconcile(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }
}

/// The series of one label set to which live counts are added.
#[derive(Debug)]
pub(crate) struct LiveSeries {
    inter_token_latency: Option<Arc<Series>>,
    chunk_gap: Option<Arc<Series>>,
    chunk_tokens: Option<Arc<Series>>,
    tokens: Option<Arc<Series>>,
    stalls: Option<Arc<Series>>,
}

impl LiveSeries {
    pub(crate) fn new(mut series: impl FnMut(Id) -> Option<Arc<Series>>) -> LiveSeries {
        LiveSeries {
            inter_token_latency: series(Id::InterTokenLatency),
            chunk_gap: series(Id::ChunkGap),
            chunk_tokens: series(Id::ChunkTokens),
            tokens: series(Id::LiveTokens),
            stalls: series(Id::Stalls),
        }
    }

    fn add(&self, gaps: &Gaps) {
        let parts = [
            (&self.inter_token_latency, &gaps.single),
            (&self.inter_token_latency, &gaps.latency),
            (&self.chunk_gap, &gaps.single),
            (&self.chunk_gap, &gaps.chunk),
            (&self.chunk_tokens, &gaps.chunk_tokens),
        ];
        for (histogram, state) in parts {
            if let Some(histogram) = histogram.as_ref().filter(|_| state.count > 0) {
                histogram.merge(state);
            }
        }
    }

    /// Attaches an exemplar for the longest gap of an ended request. The gap was counted while the request ran.
    pub(crate) fn longest(&self, gap: Duration, tokens: Option<u32>, exemplar: Exemplar) {
        let seconds = gap.as_secs_f64();
        if let Some(chunk_gap) = &self.chunk_gap {
            chunk_gap.attach_exemplar(seconds, exemplar);
        }
        if let Some(latency) = &self.inter_token_latency {
            latency.attach_exemplar(seconds / f64::from(tokens.unwrap_or(1).max(1)), exemplar);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Settings;
    use crate::export::series::Families;
    use tokometer_metrics::Attributes;

    fn series() -> LiveSeries {
        let families = Families::new(&Settings::default());
        LiveSeries::new(|id| families.get(id, |_| Attributes::default()))
    }

    fn gap(millis: u64, tokens: u32) -> Gap {
        Gap { gap: Duration::from_millis(millis), tokens: Some(tokens) }
    }

    #[test]
    fn held_half_neither_blocks_nor_loses_gaps() {
        let counts = Arc::new(LiveCounts::new(false)).for_stream();
        for half in &counts.halves {
            // Simulates a draining thread that is descheduled while it holds the lock.
            let held = half.lock().unwrap();
            counts.progress(&[gap(10, 1), gap(30, 3)], 4);
            drop(held);
        }
        let series = series();
        let mut spare = Gaps::new(counts.native);
        assert!(counts.drain(&series, &mut spare) && !counts.drain(&series, &mut spare));
        let count = |histogram: &Option<Arc<Series>>| histogram.as_ref().unwrap().count();
        assert_eq!(
            [count(&series.inter_token_latency), count(&series.chunk_gap), count(&series.chunk_tokens)],
            [8, 4, 4]
        );
    }

    #[test]
    fn gaps_added_during_a_drain_are_counted_once() {
        const EACH: u64 = 20_000;
        let counts = Arc::new(LiveCounts::new(true)).for_stream();
        let series = series();
        let mut spare = Gaps::new(counts.native);
        thread::scope(|scope| {
            let add = || (0..EACH).for_each(|n| counts.progress(&[gap(n % 50, 1)], 1));
            let threads = [scope.spawn(add), scope.spawn(add)];
            while !threads.iter().all(|thread| thread.is_finished()) {
                counts.drain(&series, &mut spare);
            }
        });
        counts.drain(&series, &mut spare);
        let gaps = series.chunk_gap.as_ref().unwrap().count();
        let tokens = series.tokens.as_ref().unwrap().count();
        assert_eq!((gaps, tokens), (2 * EACH, 2 * EACH));
    }

    #[test]
    fn single_gaps_have_the_buckets_of_both_gap_histograms() {
        assert_eq!(metric(Id::InterTokenLatency).buckets, metric(Id::ChunkGap).buckets);
    }
}
