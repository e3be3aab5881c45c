//! The cached series of one label set.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::export::labels::classes::Admitted;
use crate::export::labels::names::{Label, millis};
use crate::export::labels::{Extra, NONE};
use crate::export::series::distribution::Exemplar;
use crate::export::series::live::{Gaps, LiveCounts, LiveSeries};
use crate::export::series::{Families, Series};
use tokometer_metrics::table::{Id, Key, TABLE};
use tokometer_metrics::{Attributes, Value};
use tokometer_observe::measure::Usage;

/// The cached series of one label set, and its live counts.
#[derive(Debug)]
pub(crate) struct Handles {
    found: Mutex<SeriesCache>,
    live: OnceLock<LiveSeries>,
    /// Live counts of this label set's streams that are not in the series yet. Written by the data path.
    pub(crate) counts: Arc<LiveCounts>,
    /// The prompt classes admitted in this label set.
    pub(crate) admitted: Admitted,
    /// Labels of the model names in this label set. Using the label set also marks them as used.
    names: [Option<Arc<Label>>; 2],
    /// Times are in milliseconds, as in [`Label`].
    usage: Usage,
}

/// The series found so far.
#[derive(Debug)]
pub(crate) struct SeriesCache {
    families: Arc<Families>,
    known: Vec<(Key, Value)>,
    /// For each metric, in the order of the table: its series by further attributes. Each list is short, so a linear
    /// search is cheaper than hashing. `None` if the configured semantic conventions omit the metric.
    series: Vec<Vec<(Extra, Option<Arc<Series>>)>>,
}

impl Handles {
    pub(crate) fn new(
        families: Arc<Families>,
        known: Vec<(Key, Value)>,
        counts: Arc<LiveCounts>,
        names: [Option<Arc<Label>>; 2],
    ) -> Handles {
        let found = Mutex::new(SeriesCache { families, known, series: vec![Vec::new(); TABLE.len()] });
        let (live, admitted) = (OnceLock::new(), Admitted::default());
        let [request, response] = names;
        // A request counts once for a name.
        let response = response.filter(|name| !request.as_ref().is_some_and(|request| Arc::ptr_eq(request, name)));
        let names = [request, response];
        Handles { found, live, counts, admitted, names, usage: Usage::default() }
    }

    /// The series, locked for one record. Never called by the data path.
    pub(crate) fn found(&self) -> MutexGuard<'_, SeriesCache> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of the label set and its names.
    pub(crate) fn touch(&self, now: Duration) {
        self.usages().for_each(|usage| usage.touch(millis(now)));
    }

    /// Marks the label set and its names as used by an open stream.
    pub(crate) fn keep_open(&self, now: Duration) {
        self.usages().for_each(|usage| usage.keep_open(millis(now)));
    }

    fn usages(&self) -> impl Iterator<Item = &Usage> {
        self.names.iter().flatten().map(|name| &name.usage).chain([&self.usage])
    }

    /// The use of the label set.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// True if `name` is one of the model names in this label set.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.names.iter().flatten().any(|label| *label.text == *name)
    }

    /// Adds live counts of this label set's streams to the series, and marks the label set as used if there were any.
    /// `spare` is a buffer that is empty before and after the call. Call from one thread at a time, and never from the
    /// data path.
    pub(crate) fn drain(&self, counts: &LiveCounts, spare: &mut Gaps, now: Duration) {
        if counts.is_used() && counts.drain(self.live(), spare) {
            self.usages().for_each(|usage| usage.keep(millis(now)));
        }
    }

    /// The series to which the live counts are added.
    pub(crate) fn live(&self) -> &LiveSeries {
        self.live.get_or_init(|| {
            let found = &mut *self.found();
            LiveSeries::new(|id| found.series(id, NONE).cloned())
        })
    }
}

impl SeriesCache {
    /// `None` if the configured semantic conventions omit the metric.
    fn series(&mut self, id: Id, extra: Extra) -> Option<&Arc<Series>> {
        let found = self.series.get_mut(id as usize)?;
        let place = found.iter().position(|(known, _)| *known == extra).unwrap_or_else(|| {
            let further: Vec<(Key, Value)> = extra.iter().flatten().cloned().collect();
            let series = self.families.get(id, |metric| Attributes::of(metric, &self.known, &further));
            found.push((extra, series));
            found.len() - 1
        });
        found.get(place)?.1.as_ref()
    }

    pub(crate) fn add(&mut self, id: Id, extra: Extra, n: u64) {
        if let Some(series) = self.series(id, extra) {
            series.add(n);
        }
    }

    pub(crate) fn observe(&mut self, id: Id, extra: Extra, value: f64, exemplar: Option<Exemplar>) {
        if let Some(series) = self.series(id, extra) {
            series.observe(value, exemplar);
        }
    }
}
