//! Compares the causes of long gaps with the engine's log.

use std::collections::BTreeMap;

use tokometer_steps::{Cause, Delay};

use super::align::align;
use super::recording::{Recording, Run, Truth};

/// Gaps that are compared.
const LONG: u64 = 250_000_000;

/// Number of long gaps by the log's cause and the reported one.
#[derive(Debug, Default)]
pub(crate) struct Confusion {
    pub(crate) cells: BTreeMap<(&'static str, &'static str), usize>,
}

/// What the log shows in a gap. `steps` are the engine's steps during it; the stream had `tokens` of them.
fn cause(delay: &Delay, steps: &[Truth], merged: u32) -> &'static str {
    let gap = (delay.to - delay.from) as f64 / 1e6;
    let longest = steps.iter().max_by(|a, b| a.ms.total_cmp(&b.ms)).unwrap();
    let total: f64 = steps.iter().map(|step| step.ms).sum();
    if steps.len() >= merged.max(delay.tokens) as usize + 3 {
        return if steps.iter().any(|step| step.recomputed > 0) { "preempted" } else { "alone" };
    }
    if longest.ms * 2.0 > gap {
        return if longest.prompt_tokens >= 400 { "prefill" } else { "engine_pause" };
    }
    // Where the steps do not fill the gap, the engine did not run between them.
    if total * 2.0 > gap { "delivery" } else { "engine_pause" }
}

impl Confusion {
    pub(crate) fn of(run: &Run, recording: &Recording) -> Self {
        let pairs = align(&run.steps, &recording.truth);
        let mut confusion = Confusion::default();
        let own = [Cause::Batch, Cause::Interval, Cause::Client];
        for delay in run.delays.iter().filter(|delay| delay.to - delay.from >= LONG && !own.contains(&delay.cause)) {
            let ends = |at: usize| run.steps[at].start + run.steps[at].duration;
            let slack = 2_000_000;
            let during: Vec<Truth> = pairs
                .iter()
                .filter(|&&(at, _)| ends(at) > delay.from + slack && run.steps[at].start + slack < delay.to)
                .map(|&(_, truth)| recording.truth[truth])
                .collect();
            if during.is_empty() {
                continue;
            }
            let last = pairs.iter().rev().find(|&&(at, _)| run.steps[at].start + slack < delay.to).unwrap().0;
            let logged = cause(delay, &during, run.steps[last].merged);
            *confusion.cells.entry((logged, delay.cause.as_str())).or_default() += 1;
        }
        confusion
    }

    /// Gaps of which the log shows `logged` and the analysis `reported`.
    pub(crate) fn count(&self, logged: &str, reported: &str) -> usize {
        let cell = |&(&(one, other), _): &(&(&str, &str), &usize)| one == logged && other == reported;
        self.cells.iter().filter(cell).map(|(_, count)| count).sum()
    }

    /// Gaps, those under the right cause in percent, and those under a wrong one, which is not `unknown`.
    pub(crate) fn summary(&self) -> (usize, f64, usize) {
        let sum = |of: &dyn Fn(&str, &str) -> bool| -> usize {
            self.cells.iter().filter(|((one, other), _)| of(one, other)).map(|(_, count)| count).sum()
        };
        let all = sum(&|_, _| true);
        let right = sum(&|one, other| one == other);
        (all, 100.0 * right as f64 / all.max(1) as f64, sum(&|one, other| one != other && other != "unknown"))
    }

    /// Whether all gaps of this cause are reported as it or as unknown.
    pub(crate) fn never_wrong(&self, logged: &str) -> bool {
        self.cells.keys().all(|&(one, other)| one != logged || other == logged || other == "unknown")
    }
}
