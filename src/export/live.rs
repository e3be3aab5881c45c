//! What moves while a stream runs.

use std::sync::Arc;
use std::time::Duration;

use crate::export::distribution::Exemplar;
use crate::export::handles::Handles;
use crate::export::handles::NONE;
use crate::export::series::Counter;
use crate::export::series::Histogram;
use crate::export::table::Id;
use crate::measure::Gap;
use crate::measure::Live;

/// The handles of one label set that are used per token.
#[derive(Debug)]
pub(crate) struct LiveHandles {
    inter_token_latency: Option<Arc<Histogram>>,
    chunk_gap: Option<Arc<Histogram>>,
    chunk_tokens: Option<Arc<Histogram>>,
    tokens: Option<Arc<Counter>>,
    stalls: Option<Arc<Counter>>,
}

impl LiveHandles {
    pub(crate) fn new(handles: &Handles) -> LiveHandles {
        LiveHandles {
            inter_token_latency: handles.histogram(Id::InterTokenLatency, NONE),
            chunk_gap: handles.histogram(Id::ChunkGap, NONE),
            chunk_tokens: handles.histogram(Id::ChunkTokens, NONE),
            tokens: handles.counter(Id::LiveTokens, NONE),
            stalls: handles.counter(Id::Stalls, NONE),
        }
    }
}

impl LiveHandles {
    /// The longest gap of an exchange that has ended points to its trace: the others were told while it ran.
    pub(crate) fn longest(&self, gap: Duration, tokens: Option<u32>, exemplar: Exemplar) {
        let seconds = gap.as_secs_f64();
        if let Some(chunk_gap) = &self.chunk_gap {
            chunk_gap.point(seconds, exemplar);
        }
        if let Some(latency) = &self.inter_token_latency {
            latency.point(seconds / f64::from(tokens.unwrap_or(1).max(1)), exemplar);
        }
    }
}

impl Live for LiveHandles {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        if let Some(counter) = &self.tokens {
            counter.add(tokens);
        }
        if gaps.is_empty() {
            return;
        }
        let tokens_of = |gap: &Gap| gap.tokens.unwrap_or(1).max(1);
        let seconds = |gap: &Gap| gap.gap.as_secs_f64();
        if let (Some(latency), Some(chunk_gap)) = (&self.inter_token_latency, &self.chunk_gap) {
            // One token in an event (of an unknown number it is at least one): its gap is both.
            latency.observe_with(chunk_gap, gaps.iter().filter(|gap| tokens_of(gap) == 1).map(seconds));
            let several = || gaps.iter().filter(|gap| tokens_of(gap) > 1);
            if several().next().is_some() {
                // k tokens in an event are k observations of gap/k.
                latency.observe_all(several().map(|gap| (seconds(gap) / f64::from(tokens_of(gap)), tokens_of(gap))));
                chunk_gap.observe_all(several().map(|gap| (seconds(gap), 1)));
            }
        }
        if let Some(histogram) = &self.chunk_tokens
            && gaps.iter().any(|gap| gap.tokens.is_some())
        {
            histogram.observe_all(gaps.iter().filter_map(|gap| Some((f64::from(gap.tokens?), 1))));
        }
    }

    fn stalled(&self) {
        if let Some(counter) = &self.stalls {
            counter.add(1);
        }
    }

    fn reconcile(&self, tokens: u64) {
        if let Some(counter) = &self.tokens {
            counter.add(tokens);
        }
    }
}
