//! Characters for bars and charts.

/// A set of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// Heights of a small chart, lowest first.
    pub(super) heights: [char; 8],
    /// A whole cell of a bar.
    pub(super) full: char,
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
        full: '█',
        eighths: ['▏', '▎', '▍', '▌', '▋', '▊', '▉'],
        waiting: '░',
        queued: '▒',
        silent: '·',
        rule: '─',
    };

    /// ASCII only.
    pub const ASCII: Glyphs = Glyphs {
        heights: ['_', '.', ',', '-', '=', '+', '*', '#'],
        full: '#',
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

    /// A bar that fills this share of `cells`.
    pub(super) fn bar(&self, share: f64, cells: usize) -> String {
        let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
        let mut bar: String = std::iter::repeat_n(self.full, eighths / 8).collect();
        bar.extend((eighths % 8).checked_sub(1).and_then(|part| self.eighths.get(part)));
        bar
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
}
