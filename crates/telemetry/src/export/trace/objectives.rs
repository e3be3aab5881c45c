//! Holds the function that evaluates objectives.

use std::sync::OnceLock;

use tokometer_observe::measure::Record;

/// Evaluates an ended request. Called from the data path's threads, so it must not block.
type Judge = Box<dyn Fn(&Record) -> bool + Send + Sync>;

/// The evaluation function, once it is set.
#[derive(Default)]
pub(crate) struct Objectives(OnceLock<Judge>);

impl std::fmt::Debug for Objectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Objectives").field("judged", &self.0.get().is_some()).finish()
    }
}

impl Objectives {
    /// Sets the evaluation function; later calls have no effect.
    pub(crate) fn set(&self, judge: Judge) {
        self.0.set(judge).ok();
    }

    /// True when this request broke an objective.
    pub(crate) fn are_broken(&self, record: &Record) -> bool {
        self.0.get().is_some_and(|judge| judge(record))
    }
}
