//! A grid of styled characters, and its rendering as text or terminal codes.

use std::fmt::Write;

/// Style of a character. Colours only repeat information that the text also contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    /// Most important.
    Strong,
    /// Names of values.
    Faint,
    /// Normal state.
    Good,
    /// Needs attention.
    Warn,
    /// Failure.
    Bad,
    /// Token bars.
    Accent,
    /// A header or footer over the whole width.
    Reverse,
}

impl Style {
    /// The escape code (ECMA-48, SGR).
    fn code(self, colour: bool) -> &'static str {
        match (self, colour) {
            (Style::Plain, _) => "\x1b[0m",
            (Style::Strong, _) => "\x1b[0;1m",
            (Style::Faint, _) => "\x1b[0;2m",
            (Style::Reverse, _) => "\x1b[0;7m",
            (Style::Good, true) => "\x1b[0;32m",
            (Style::Warn, true) => "\x1b[0;33m",
            (Style::Bad, true) => "\x1b[0;1;31m",
            (Style::Accent, true) => "\x1b[0;36m",
            (Style::Bad | Style::Warn, false) => "\x1b[0;1m",
            (Style::Good | Style::Accent, false) => "\x1b[0m",
        }
    }
}

/// A grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canvas {
    width: usize,
    cells: Vec<(char, Style)>,
}

impl Canvas {
    pub(super) fn new(width: usize, height: usize) -> Canvas {
        Canvas { width, cells: vec![(' ', Style::Plain); width * height] }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn height(&self) -> usize {
        self.cells.len().checked_div(self.width).unwrap_or(0)
    }

    /// Writes from this cell on; text beyond the edge is cut off. Returns the column after it.
    pub(super) fn text(&mut self, x: usize, y: usize, text: &str, style: Style) -> usize {
        let row = (y < self.height()).then(|| y * self.width..(y + 1) * self.width);
        let cells = row.and_then(|row| self.cells.get_mut(row)).unwrap_or_default();
        let mut next = x;
        for (cell, character) in cells.iter_mut().skip(x).zip(text.chars()) {
            *cell = (character, style);
            next += 1;
        }
        next
    }

    /// Writes parts separated by two spaces. The first part that does not fit is left out with all that follow. Returns
    /// the column after the last one.
    pub(super) fn parts(&mut self, x: usize, y: usize, parts: &[(String, Style)]) -> usize {
        let mut at = x;
        for (text, style) in parts.iter().filter(|(text, _)| !text.is_empty()) {
            let begin = if at > x { at + 2 } else { at };
            if begin + text.chars().count() > self.width {
                break;
            }
            at = self.text(begin, y, text, *style);
        }
        at
    }

    /// Fills a row with a character.
    pub(super) fn fill(&mut self, y: usize, character: char, style: Style) {
        let row: String = std::iter::repeat_n(character, self.width).collect();
        self.text(0, y, &row, style);
    }

    fn rows(&self) -> impl Iterator<Item = &[(char, Style)]> {
        self.cells.chunks(self.width.max(1))
    }

    /// The lines without escape codes and without trailing spaces.
    pub fn plain(&self) -> String {
        let lines = self.rows().map(|row| row.iter().map(|(character, _)| *character).collect::<String>());
        lines.map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// The escape codes and text that draw the grid from the top left cell on.
    pub fn ansi(&self, colour: bool) -> String {
        let mut out = String::new();
        for (y, row) in self.rows().enumerate() {
            // Writing to a string cannot fail.
            write!(out, "\x1b[{};1H\x1b[0m", y + 1).ok();
            let mut now = Style::Plain;
            for (character, style) in row {
                if *style != now {
                    out.push_str(style.code(colour));
                    now = *style;
                }
                out.push(*character);
            }
        }
        out.push_str("\x1b[0m");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_beyond_the_edge_is_cut_off() {
        let mut canvas = Canvas::new(5, 2);
        assert_eq!(canvas.text(3, 0, "abc", Style::Plain), 5);
        assert_eq!(canvas.text(0, 7, "abc", Style::Plain), 0);
        assert_eq!(canvas.plain(), "   ab\n\n");
        let mut none = Canvas::new(0, 0);
        none.text(0, 0, "abc", Style::Plain);
        assert_eq!((none.height(), none.plain().as_str()), (0, ""));
    }

    #[test]
    fn parts_that_do_not_fit_are_omitted() {
        let mut canvas = Canvas::new(8, 1);
        let part = |text: &str| (text.to_owned(), Style::Plain);
        canvas.parts(0, 0, &[part("ab"), part(""), part("cd"), part("efg"), part("h")]);
        assert_eq!(canvas.plain(), "ab  cd\n");
    }

    #[test]
    fn ansi_writes_codes_on_style_changes_and_optional_colours() {
        let mut canvas = Canvas::new(3, 1);
        canvas.text(0, 0, "a", Style::Good);
        canvas.text(1, 0, "bc", Style::Strong);
        assert_eq!(canvas.ansi(true), "\x1b[1;1H\x1b[0m\x1b[0;32ma\x1b[0;1mbc\x1b[0m");
        assert_eq!(canvas.ansi(false), "\x1b[1;1H\x1b[0m\x1b[0ma\x1b[0;1mbc\x1b[0m");
    }
}
