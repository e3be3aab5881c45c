//! Aligns reconstructed steps with the engine's log. The log has no times, so the alignment is that of least edit distance.

use tokometer_steps::Step;

use super::recording::Truth;

const BAND: usize = 60;
const GAP: u32 = 3;

fn cost(step: &Step, truth: &Truth) -> u32 {
    let batch = step.decoding.abs_diff(truth.decoding).min(2);
    batch + 2 * u32::from(step.prefill != (truth.prefilling > 0))
}

/// Pairs of positions in `steps` and `truth`; steps without a partner are left out.
pub(crate) fn align(steps: &[Step], truth: &[Truth]) -> Vec<(usize, usize)> {
    let width = 2 * BAND + 1;
    let rows = steps.len() + 1;
    let centre = |row: usize| row * truth.len() / steps.len().max(1);
    let column = |row: usize, at: usize| (at + BAND).checked_sub(centre(row)).filter(|&column| column < width);
    let far = u32::MAX / 2;
    let mut costs = vec![far; rows * width];
    let at = |costs: &[u32], row: usize, to: usize| column(row, to).map_or(far, |column| costs[row * width + column]);
    for row in 0..rows {
        for to in centre(row).saturating_sub(BAND)..=(centre(row) + BAND).min(truth.len()) {
            let mut best = if row == 0 && to == 0 { 0 } else { far };
            if row > 0 {
                best = best.min(at(&costs, row - 1, to) + GAP);
            }
            if to > 0 {
                best = best.min(at(&costs, row, to - 1) + GAP);
            }
            if row > 0 && to > 0 {
                best = best.min(at(&costs, row - 1, to - 1) + cost(&steps[row - 1], &truth[to - 1]));
            }
            let column = column(row, to).unwrap();
            costs[row * width + column] = best;
        }
    }
    let (mut row, mut to) = (steps.len(), truth.len());
    let mut pairs = Vec::new();
    while row > 0 && to > 0 {
        let here = at(&costs, row, to);
        if here == at(&costs, row - 1, to - 1) + cost(&steps[row - 1], &truth[to - 1]) {
            row -= 1;
            to -= 1;
            pairs.push((row, to));
        } else if here == at(&costs, row - 1, to) + GAP {
            row -= 1;
        } else {
            to -= 1;
        }
    }
    pairs.reverse();
    pairs
}

/// Shares in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Score {
    pub(crate) steps: usize,
    pub(crate) of: usize,
    pub(crate) number: f64,
    pub(crate) batch: f64,
    pub(crate) precision: f64,
    pub(crate) recall: f64,
}

impl Score {
    pub(crate) fn of(steps: &[Step], truth: &[Truth]) -> Self {
        let pairs = align(steps, truth);
        let share = |part: usize, all: usize| 100.0 * part as f64 / all.max(1) as f64;
        let exact = pairs.iter().filter(|&&(s, t)| steps[s].decoding == truth[t].decoding).count();
        let both = pairs.iter().filter(|&&(s, t)| steps[s].prefill && truth[t].prefilling > 0).count();
        Score {
            steps: steps.len(),
            of: truth.len(),
            number: share(steps.len(), truth.len()) - 100.0,
            batch: share(exact, truth.len()),
            precision: share(both, steps.iter().filter(|step| step.prefill).count()),
            recall: share(both, truth.iter().filter(|truth| truth.prefilling > 0).count()),
        }
    }
}
