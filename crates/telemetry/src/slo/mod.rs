//! SLO objectives, and the evaluation of every request against them: counters of good and bad requests rather than
//! histogram quantiles.
//!
//! A request without a first token has no time to first token, so a histogram of these times looks best during an
//! outage. Each request is therefore evaluated at the source, with its own limits.

mod evaluator;
mod settings;
mod verdict;
mod window;

pub use evaluator::{Counts, Evaluated, Evaluator, Pending};
pub use settings::{Goal, Objective, ReadingSpeed, RuleSettings, Scope, Settings};
pub use verdict::{Exclusion, Reason, Verdict, concerns, verdict};
pub use window::{ObjectiveState, Window, sums};
