//! SLO objectives, and the evaluation of every request against them: counters of good and bad requests rather than
//! histogram quantiles.
//!
//! A request without a first token is missing from a histogram of times to first token, so the histogram improves
//! during an outage. Each request is therefore evaluated here, with its own limits.

mod evaluator;
mod lost;
mod settings;
mod verdict;
mod window;

pub use evaluator::{Counts, Evaluated, Evaluator, Pending};
pub use lost::Down;
pub use settings::{Goal, Objective, ReadingSpeed, RuleSettings, Scope, Settings};
pub use verdict::{Exclusion, Reason, Verdict, concerns, verdict};
pub use window::{ObjectiveState, Window, sums};
