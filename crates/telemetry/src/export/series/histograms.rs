//! Histograms with attributes chosen by their owner.

use std::sync::Arc;

use crate::export::series::{Families, Series};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Attributes, Value};

/// Creates series of the catalogue's histograms. Never used by the data path.
#[derive(Clone, Debug)]
pub struct Histograms(Arc<Families>);

/// One series of a histogram. Its values are exported until it is dropped and [`Histograms::remove_unused`] is called.
#[derive(Debug)]
pub struct Histogram(Arc<Series>);

impl Histograms {
    pub(crate) fn new(families: Arc<Families>) -> Histograms {
        Histograms(families)
    }

    /// The series with these attributes; `None` when the metric is not exported.
    pub fn get(&self, id: Id, attributes: &[(Key, Value)]) -> Option<Histogram> {
        self.0.get(id, |metric| Attributes::of(metric, attributes, &[])).map(Histogram)
    }

    /// Removes dropped series. A series that is created again starts at zero.
    pub fn remove_unused(&self) {
        self.0.remove_unused();
    }
}

impl Histogram {
    /// Adds a value in the metric's unit.
    pub fn observe(&self, value: f64) {
        self.0.observe(value, None);
    }
}
