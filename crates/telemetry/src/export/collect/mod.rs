//! Metrics that are observed rather than recorded: their owners report the values at each scrape or export.

mod process;
pub(crate) mod telemetry;

use std::sync::{Arc, PoisonError, RwLock};

use tokometer_metrics::{Collect, Points, Servers, Values};

pub use process::{Process, open_descriptors};

/// Every owner of observed values.
pub(crate) struct Owners {
    servers: Servers,
    all: RwLock<Vec<Arc<dyn Collect>>>,
}

impl Owners {
    pub(crate) fn new(servers: Servers) -> Owners {
        Owners { servers, all: RwLock::default() }
    }

    pub(crate) fn add(&self, owner: Arc<dyn Collect>) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(owner);
    }

    /// The current values of all owners.
    pub(crate) fn collect(&self) -> Values {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner).clone();
        Points::of(all.iter().map(|owner| &**owner), &self.servers)
    }
}
