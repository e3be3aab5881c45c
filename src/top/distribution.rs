//! A distribution as a row of heights.

use crate::top::glyphs::Glyphs;
use tokometer_telemetry::live::snapshot::Distribution;

/// Heights of a distribution over at most `cells` cells, from its lowest bucket to its highest; empty without values.
/// All cells cover the same number of buckets.
pub(super) fn heights(distribution: &Distribution, cells: usize, glyphs: &Glyphs) -> String {
    let places: Vec<(i64, u64)> =
        distribution.buckets.iter().map(|(lower, upper, count)| (place(*lower, *upper), *count)).collect();
    let (Some(first), Some(last)) =
        (places.iter().map(|(place, _)| *place).min(), places.iter().map(|(place, _)| *place).max())
    else {
        return String::new();
    };
    if cells == 0 {
        return String::new();
    }
    let per_cell = ((last - first) as usize / cells) + 1;
    let mut counts = vec![0; (last - first) as usize / per_cell + 1];
    for (place, count) in places {
        if let Some(cell) = counts.get_mut((place - first) as usize / per_cell) {
            *cell += count;
        }
    }
    let highest = counts.iter().copied().max().unwrap_or(0) as f64;
    counts.iter().map(|count| glyphs.height(*count as f64, highest).unwrap_or(' ')).collect()
}

/// The index of a bucket: buckets are a quarter of an octave wide, the first starts at 0 and the last is unbounded.
fn place(lower: f64, upper: Option<f64>) -> i64 {
    let quarter = |value: f64| (value.log2() * 4.0).round() as i64;
    match (lower > 0.0, upper) {
        (true, _) => quarter(lower),
        (false, Some(upper)) if upper > 0.0 => quarter(upper) - 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(list: &[(i32, u64)]) -> Distribution {
        let edge = |place: i32| (f64::from(place) / 4.0).exp2();
        let buckets = list.iter().map(|(place, count)| (edge(*place), Some(edge(place + 1)), *count)).collect();
        Distribution { buckets, ..Distribution::default() }
    }

    #[test]
    fn buckets_keep_their_position_and_gaps() {
        let shown = |list: &[(i32, u64)], cells| heights(&buckets(list), cells, &Glyphs::BLOCKS);
        assert_eq!(shown(&[(-8, 4), (-7, 8), (-4, 1)], 10), "▄█  ▁");
        // Two buckets in each cell.
        assert_eq!(shown(&[(-8, 4), (-7, 8), (-4, 3)], 4), "█ ▂");
        assert_eq!(shown(&[(3, 1)], 10), "█");
        assert_eq!((shown(&[], 10), shown(&[(3, 1)], 0)), (String::new(), String::new()));
    }

    #[test]
    fn unbounded_buckets_are_next_to_their_neighbours() {
        let mut distribution = buckets(&[(0, 2), (1, 2)]);
        distribution.buckets.insert(0, (0.0, Some(1.0), 2));
        distribution.buckets.push((2f64.sqrt(), None, 2));
        assert_eq!(heights(&distribution, 10, &Glyphs::BLOCKS), "████");
    }
}
