//! Characters, styles, bars and charts.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use tokometer_telemetry::live::snapshot::Distribution;
use tokometer_telemetry::slo::ReadingSpeed;

// Colours only repeat information that the text also contains.
/// Most important.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// Names of values.
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
/// Normal state.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// Needs attention.
pub(super) const WARN: Style = Style::new().fg(Color::Yellow);
/// Failure.
pub(super) const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Token bars.
pub(super) const ACCENT: Style = Style::new().fg(Color::Cyan);

/// How readers perceive this decode rate, and its style.
pub(super) fn band(rate: f64, reading: &ReadingSpeed) -> (&'static str, Style) {
    match rate {
        rate if rate < reading.slow => ("slower than reading", WARN),
        rate if rate < reading.comfortable => ("at reading speed", Style::new()),
        rate if rate <= reading.fast => ("ahead of readers", ACCENT),
        _ => ("faster than readers notice", GOOD),
    }
}

/// A set of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// Heights of a small chart, lowest first.
    pub(super) heights: [char; 8],
    /// Partial cells of a bar, from one eighth to seven eighths.
    pub(super) eighths: [char; 7],
    /// A cell of wait time.
    pub(super) waiting: char,
    /// A cell of queue time.
    pub(super) queued: char,
    /// A cell without tokens.
    pub(super) silent: char,
    /// The rule between two sections.
    pub(super) rule: char,
}

impl Glyphs {
    /// Unicode block elements.
    pub const BLOCKS: Glyphs = Glyphs {
        heights: ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        eighths: ['▏', '▎', '▍', '▌', '▋', '▊', '▉'],
        waiting: '░',
        queued: '▒',
        silent: '·',
        rule: '─',
    };

    /// ASCII only.
    pub const ASCII: Glyphs = Glyphs {
        heights: ['_', '.', ',', '-', '=', '+', '*', '#'],
        eighths: [' ', ' ', ' ', '-', '-', '=', '='],
        waiting: '.',
        queued: 'q',
        silent: ' ',
        rule: '-',
    };

    /// The character for `value` relative to `highest`; `None` for zero.
    pub(super) fn height(&self, value: f64, highest: f64) -> Option<char> {
        if value <= 0.0 || highest <= 0.0 {
            return None;
        }
        let index = ((value / highest * 8.0).ceil() as usize).clamp(1, 8) - 1;
        self.heights.get(index).copied()
    }

    /// A chart of these values, relative to the highest; zeros are blank.
    pub(super) fn chart(&self, values: &[f64]) -> String {
        let highest = values.iter().copied().fold(0.0, f64::max);
        values.iter().map(|value| self.height(*value, highest).unwrap_or(' ')).collect()
    }

    /// A bar that fills this share of `cells`.
    pub(super) fn bar(&self, share: f64, cells: usize) -> String {
        let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
        let mut bar: String = std::iter::repeat_n(self.heights[7], eighths / 8).collect();
        bar.extend((eighths % 8).checked_sub(1).and_then(|part| self.eighths.get(part)));
        bar
    }
}

/// Joins parts with two spaces. The first part that does not fit is omitted, with all parts after it.
pub(super) fn join<'a>(parts: impl IntoIterator<Item = Span<'a>>, width: u16) -> Line<'a> {
    let mut line = Line::default();
    let mut used = 0;
    for part in parts.into_iter().filter(|part| !part.content.is_empty()) {
        let gap = if used > 0 { 2 } else { 0 };
        used += gap + part.width();
        if used > width.into() {
            break;
        }
        line.push_span(" ".repeat(gap));
        line.push_span(part);
    }
    line
}

/// Heights of a distribution over at most `cells` cells, from its lowest bucket to its highest; empty without values.
/// All cells cover the same number of buckets.
pub(super) fn histogram(distribution: &Distribution, cells: usize, glyphs: &Glyphs) -> String {
    let buckets = distribution.buckets.iter();
    let places: Vec<(i64, u64)> = buckets.map(|(lower, upper, count)| (place(*lower, *upper), *count)).collect();
    let place = || places.iter().map(|(place, _)| *place);
    let (Some(first), Some(last), 1..) = (place().min(), place().max(), cells) else { return String::new() };
    let per_cell = (last - first) as usize / cells + 1;
    let mut counts = vec![0.0; (last - first) as usize / per_cell + 1];
    for (place, count) in places {
        if let Some(cell) = counts.get_mut((place - first) as usize / per_cell) {
            *cell += count as f64;
        }
    }
    glyphs.chart(&counts)
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

    #[test]
    fn heights_and_bars_are_proportional() {
        let blocks = Glyphs::BLOCKS;
        assert_eq!(
            [0.0, 0.01, 0.5, 1.0].map(|value| blocks.height(value, 1.0)),
            [None, Some('▁'), Some('▄'), Some('█')]
        );
        assert_eq!(blocks.bar(0.5, 8), "████");
        assert_eq!(
            (blocks.bar(0.51, 8), blocks.bar(0.0, 8), blocks.bar(7.0, 2)),
            ("████▏".into(), String::new(), "██".into())
        );
        assert_eq!(Glyphs::ASCII.bar(0.55, 10), "#####-");
    }

    fn buckets(list: &[(i32, u64)]) -> Distribution {
        let edge = |place: i32| (f64::from(place) / 4.0).exp2();
        let buckets = list.iter().map(|(place, count)| (edge(*place), Some(edge(place + 1)), *count)).collect();
        Distribution { buckets, ..Distribution::default() }
    }

    #[test]
    fn buckets_keep_their_position_and_gaps() {
        let shown = |list: &[(i32, u64)], cells| histogram(&buckets(list), cells, &Glyphs::BLOCKS);
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
        assert_eq!(histogram(&distribution, 10, &Glyphs::BLOCKS), "████");
    }

    #[test]
    fn parts_that_do_not_fit_are_omitted() {
        let parts = ["ab", "", "cd", "efg", "h"];
        assert_eq!(join(parts.map(Span::raw), 8).to_string(), "ab  cd");
    }
}
