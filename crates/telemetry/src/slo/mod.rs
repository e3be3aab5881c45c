//! Objectives, and the judgement of every exchange by them: counters of good and bad, never quantiles of histograms.
//!
//! An exchange without a first token has no time to one, so a histogram of these times looks best while nothing works. Here
//! each exchange is judged by itself, at the source, with its own limits.

mod judge;
mod open;
mod settings;
mod tally;
mod verdict;
mod waiting;
mod window;

pub use judge::{Judge, Judged};
pub use settings::{Goal, Objective, RuleSettings, Scope, Settings};
pub use tally::Counts;
pub use verdict::{Exclusion, Reason, Verdict, concerns, verdict};
pub use waiting::{Wait, Waiting};
pub use window::{Standing, Sum, Window, sums};
