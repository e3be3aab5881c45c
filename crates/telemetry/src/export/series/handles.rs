//! The series of one label set, looked up once and cached.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::export::labels::Attributes;
use crate::export::labels::Value;
use crate::export::labels::classes::Admitted;
use crate::export::labels::names::Label;
use crate::export::labels::names::millis;
use crate::export::series::Counter;
use crate::export::series::Families;
use crate::export::series::Histogram;
use crate::export::series::Series;
use crate::export::series::distribution::Exemplar;
use crate::export::series::live::LiveCounts;
use crate::export::series::live::LiveSeries;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::TABLE;

/// At most three attributes in addition to those of the label set.
pub(crate) type Extra = [Option<(Key, Value)>; 3];

/// No further attributes.
pub(crate) const NONE: Extra = [None, None, None];

/// One further attribute.
pub(crate) fn one(key: Key, value: impl Into<Value>) -> Extra {
    [Some((key, value.into())), None, None]
}

/// The series of one label set.
#[derive(Debug)]
pub(crate) struct Handles {
    found: Mutex<Found>,
    live: OnceLock<LiveSeries>,
    /// Live counts that are in no series yet.
    counts: Arc<LiveCounts>,
    admitted: Admitted,
    /// The places of its model names, which are marked as used together with it.
    names: [Option<Arc<Label>>; 2],
    /// Time of the last use, in milliseconds as in [`Label`].
    used: AtomicU64,
}

/// The series found so far.
#[derive(Debug)]
pub(crate) struct Found {
    families: Arc<Families>,
    known: Vec<(Key, Value)>,
    /// By metric, in the order of the table, and by further attributes: there are only a few, so comparing them is
    /// cheaper than hashing one. `None` when this generation has no such metric.
    series: Vec<Vec<(Extra, Option<Series>)>>,
}

impl Handles {
    pub(crate) fn new(
        families: Arc<Families>,
        known: Vec<(Key, Value)>,
        counts: Arc<LiveCounts>,
        names: [Option<Arc<Label>>; 2],
    ) -> Handles {
        let found = Mutex::new(Found { families, known, series: TABLE.iter().map(|_| Vec::new()).collect() });
        let (live, admitted, used) = (OnceLock::new(), Admitted::default(), AtomicU64::new(0));
        Handles { found, live, counts, admitted, names, used }
    }

    /// Its series, locked for one record. Never called by the data path.
    pub(crate) fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the label set and its names as used now.
    pub(crate) fn touch(&self, now: Duration) {
        self.used.fetch_max(millis(now), Ordering::Relaxed);
        self.names.iter().flatten().for_each(|name| name.touch(now));
    }

    /// Time of the last use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// True when one of its model names is `name`.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.names.iter().flatten().any(|label| *label.text == *name)
    }

    /// Live counts of its streams, written by the data path.
    pub(crate) fn counts(&self) -> &Arc<LiveCounts> {
        &self.counts
    }

    /// The prompt classes that have a place in this label set.
    pub(crate) fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Attaches an exemplar for the longest gap of a request.
    pub(crate) fn longest_gap(&self, gap: Duration, tokens: Option<u32>, exemplar: Exemplar) {
        if let Some(live) = self.live.get() {
            live.longest(gap, tokens, exemplar);
        }
    }

    /// The series of its live counts.
    pub(crate) fn live(&self) -> &LiveSeries {
        self.live.get_or_init(|| LiveSeries::new(&mut self.found()))
    }
}

impl Found {
    fn series(&mut self, id: Id, extra: Extra) -> Option<&Series> {
        let found = self.series.get_mut(id as usize)?;
        let place = found.iter().position(|(known, _)| *known == extra).unwrap_or_else(|| {
            let further: Vec<(Key, Value)> = extra.iter().flatten().cloned().collect();
            let series = self.families.get(id, |metric| Attributes::of(metric, &self.known, &further));
            found.push((extra, series));
            found.len() - 1
        });
        found.get(place)?.1.as_ref()
    }

    /// The series of a counter; `None` when this generation has no such metric.
    pub(crate) fn counter(&mut self, id: Id) -> Option<Arc<Counter>> {
        self.series(id, NONE)?.counter()
    }

    /// The series of a histogram; `None` when this generation has no such metric.
    pub(crate) fn histogram(&mut self, id: Id) -> Option<Arc<Histogram>> {
        self.series(id, NONE)?.histogram()
    }

    pub(crate) fn add(&mut self, id: Id, extra: Extra, n: u64) {
        if let Some(Series::Counter(counter)) = self.series(id, extra) {
            counter.add(n);
        }
    }

    pub(crate) fn observe(&mut self, id: Id, extra: Extra, value: f64, exemplar: Option<Exemplar>) {
        if let Some(Series::Histogram(histogram)) = self.series(id, extra) {
            histogram.observe(value, exemplar);
        }
    }
}
