//! Who knows whether an exchange broke an objective.

use std::sync::OnceLock;

use tokometer_observe::measure::Record;

/// Judges an exchange that has ended. Called from the data path's threads: must not block.
type Judge = Box<dyn Fn(&Record) -> bool + Send + Sync>;

/// A judge, once there is one.
#[derive(Default)]
pub(crate) struct Objectives(OnceLock<Judge>);

impl std::fmt::Debug for Objectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objectives").field("judged", &self.0.get().is_some()).finish()
    }
}

impl Objectives {
    /// Sets the judge; a second one is not taken.
    pub(crate) fn set(&self, judge: Judge) {
        self.0.set(judge).ok();
    }

    /// True when a judge says that this exchange broke an objective.
    pub(crate) fn are_broken(&self, record: &Record) -> bool {
        self.0.get().is_some_and(|judge| judge(record))
    }
}
