//! Latency histograms by tenant and priority class.

use std::collections::HashMap;
use std::sync::Arc;

use tokometer_observe::measure::{Placed, Record, Slots};

use crate::accounting::price::is_accepted;
use crate::accounting::tenants::{OTHER, readable};
use crate::export::{Histogram, Histograms};
use tokometer_metrics::table::{Id, Key};

/// Label of a tenant or priority class; `None` if the request has none.
type Name = Option<Arc<str>>;

/// Tenant and priority class.
type Pair = (Name, Name);

/// The histograms of all tenant and priority class pairs.
#[derive(Debug)]
pub(super) struct Latencies {
    /// `None` until [`Latencies::record_in`] is called; nothing is recorded before.
    histograms: Option<Histograms>,
    by_pair: HashMap<Pair, Timings>,
    /// The pairs whose class has a separate label.
    in_use: Slots<Pair>,
    /// Requests whose class was counted as `other`.
    pub(super) folded: u64,
}

/// The histograms of one pair.
#[derive(Debug)]
struct Timings {
    first_token: Option<Histogram>,
    per_token: Option<Histogram>,
    duration: Option<Histogram>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { histograms: None, by_pair: HashMap::new(), in_use: Slots::new(0), folded: 0 }
    }
}

impl Latencies {
    /// From now on, records latencies in these histograms.
    pub(super) fn record_in(&mut self, histograms: Histograms) {
        self.histograms = Some(histograms);
    }

    /// Adds a request of this tenant. At most `max_pairs` pairs have a separate class label; further classes are
    /// counted as `other`.
    pub(super) fn add(&mut self, tenant: &Name, record: &Record, max_pairs: usize, now: u64) {
        let Some(histograms) = self.histograms.clone() else { return };
        let class = record.request.targets.as_ref().and_then(|targets| targets.priority_class.as_deref());
        let mut pair = (tenant.clone(), class.map(|class| readable(class).into()));
        if pair.1.is_some() {
            self.in_use.limit(max_pairs);
            match self.in_use.place(&pair, is_accepted(record), now) {
                Placed::Known | Placed::Added { replaces: None } => {}
                Placed::Added { replaces: Some(gone) } => self.forget(|pair| *pair == gone),
                Placed::Refused => {
                    self.folded += 1;
                    pair.1 = Some(OTHER.into());
                }
            }
        }
        let timings = self.by_pair.entry(pair).or_insert_with_key(|pair| Timings::new(&histograms, pair));
        timings.add(record);
    }

    /// Removes the series of a tenant.
    pub(super) fn forget_tenant(&mut self, gone: &Arc<str>) {
        self.forget(|(tenant, _)| tenant.as_ref() == Some(gone));
    }

    fn forget(&mut self, is_gone: impl Fn(&Pair) -> bool) {
        self.by_pair.retain(|pair, _| !is_gone(pair));
        self.in_use.remove(&is_gone);
        if let Some(histograms) = &self.histograms {
            histograms.remove_unused();
        }
    }
}

impl Timings {
    fn new(histograms: &Histograms, (tenant, class): &Pair) -> Timings {
        let attributes = [(Key::Tenant, tenant.clone().into()), (Key::PriorityClass, class.clone().into())];
        let of = |id| histograms.get(id, &attributes);
        Timings {
            first_token: of(Id::TenantTimeToFirstToken),
            per_token: of(Id::TenantTimePerOutputToken),
            duration: of(Id::TenantRequestDuration),
        }
    }

    fn add(&self, record: &Record) {
        let add = |histogram: &Option<Histogram>, seconds: Option<f64>| {
            if let (Some(histogram), Some(seconds)) = (histogram, seconds) {
                histogram.observe(seconds);
            }
        };
        let streaming = record.labels.streaming == Some(true);
        let first_token = record.time_to_first_token().filter(|_| streaming);
        add(&self.first_token, first_token.map(|time| time.as_secs_f64()));
        if record.outcome.is_ok() {
            add(&self.per_token, record.time_per_output_token().filter(|_| streaming));
            let generates = record.labels.route.generates();
            let duration = record.since_requested(Some(record.times.ended)).filter(|_| generates);
            add(&self.duration, duration.map(|time| time.as_secs_f64()));
        }
    }
}
