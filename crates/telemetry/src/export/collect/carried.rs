//! Converts the server's counters to sums of their increases, for delta temporality.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tokometer_metrics::Attributes;
use tokometer_metrics::Values;
use tokometer_metrics::table::{Kind, Scope, TABLE};

/// The server's counters that have been observed so far.
///
/// With delta temporality, the SDK sends the difference from the last collection. For a series that was missing in the
/// last collection, it sends the whole total. A failed scrape would therefore count the server's total twice, and a
/// server restart would send a negative number.
#[derive(Debug, Default)]
pub(crate) struct Carried(HashMap<(usize, Attributes), Counter>);

#[derive(Clone, Copy, Debug)]
struct Counter {
    /// The latest total that the server reported.
    latest: f64,
    /// Sum of the increases since the first observation.
    sum: f64,
    /// True if the current values include the counter.
    present: bool,
}

impl Carried {
    /// Replaces the totals of the server's counters with their increase since they were first observed. Missing
    /// counters keep their value.
    pub(crate) fn replace(&mut self, values: &mut Values) {
        let counters = || TABLE.iter().filter(|metric| metric.scope == Scope::Server && metric.kind == Kind::Counter);
        self.0.values_mut().for_each(|counter| counter.present = false);
        for metric in counters() {
            let id = metric.id as usize;
            for (attributes, value) in values.get_mut(id).into_iter().flatten() {
                let counter = match self.0.entry((id, attributes.clone())) {
                    Entry::Occupied(entry) => entry.into_mut().advance(*value),
                    // The first total was accumulated before the first observation, so it is not included.
                    Entry::Vacant(entry) => entry.insert(Counter { latest: *value, sum: 0.0, present: true }),
                };
                *value = counter.sum;
            }
        }
        for ((id, attributes), counter) in self.0.iter().filter(|(_, counter)| !counter.present) {
            if let Some(values) = values.get_mut(*id) {
                values.push((attributes.clone(), counter.sum));
            }
        }
    }
}

impl Counter {
    fn advance(&mut self, total: f64) -> &mut Counter {
        // A lower total means that the server restarted.
        self.sum += if total < self.latest { total } else { total - self.latest };
        (self.latest, self.present) = (total, true);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokometer_metrics::table::metric;

    #[test]
    fn counters_survive_failed_scrapes_and_restarts() {
        let counter = TABLE.iter().find(|metric| metric.scope == Scope::Server && metric.kind == Kind::Counter);
        let id = counter.expect("the server has counters").id;
        let gauge = TABLE.iter().find(|metric| metric.scope == Scope::Server && metric.kind == Kind::Gauge);
        let gauge = gauge.expect("the server has gauges").id;
        let mut carried = Carried::default();
        let mut after = |total: Option<f64>| {
            let mut values: Values = TABLE.iter().map(|_| Vec::new()).collect();
            let attributes = |id| Attributes::of(metric(id), &[], &[]);
            values[id as usize].extend(total.map(|total| (attributes(id), total)));
            values[gauge as usize].extend(total.map(|total| (attributes(gauge), total)));
            carried.replace(&mut values);
            let only = |id: tokometer_metrics::table::Id| values[id as usize].first().map(|(_, value)| *value);
            assert_eq!(only(gauge), total, "a gauge is absent or as it is");
            only(id)
        };
        assert_eq!(after(None), None);
        assert_eq!(after(Some(1000.0)), Some(0.0), "the total from before this process");
        assert_eq!(after(Some(1030.0)), Some(30.0));
        assert_eq!(after(None), Some(30.0), "a failed scrape");
        assert_eq!(after(Some(1050.0)), Some(50.0));
        assert_eq!(after(Some(7.0)), Some(57.0), "the server restarted");
    }
}
