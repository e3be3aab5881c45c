//! The user's choices.

use std::cmp::Reverse;

use crate::top::keys::Key;
use tokometer_telemetry::live::snapshot::Stream;

/// Sort order of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Oldest first.
    #[default]
    Age,
    /// Longest wait for the next token first.
    Wait,
    /// Slowest first; streams without a rate last.
    Rate,
    /// Most tokens first.
    Tokens,
}

impl Sort {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Sort::Age => "age",
            Sort::Wait => "wait",
            Sort::Rate => "slowest",
            Sort::Tokens => "tokens",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Age => Sort::Wait,
            Sort::Wait => Sort::Rate,
            Sort::Rate => Sort::Tokens,
            Sort::Tokens => Sort::Age,
        }
    }

    /// Streams in this order; ties are ordered by age.
    pub(super) fn order(self, streams: &[Stream]) -> Vec<&Stream> {
        let mut sorted: Vec<&Stream> = streams.iter().collect();
        match self {
            Sort::Age => sorted.sort_by_key(|stream| Reverse(stream.age_ms)),
            Sort::Wait => sorted.sort_by_key(|stream| Reverse(stream.waited_ms)),
            Sort::Rate => {
                let rate = |stream: &Stream| stream.tokens_per_second.unwrap_or(f64::INFINITY);
                sorted.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
            }
            Sort::Tokens => sorted.sort_by_key(|stream| Reverse(stream.tokens)),
        }
        sorted
    }
}

/// The user's choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Sort order of streams.
    pub sort: Sort,
    /// The screen is not updated.
    pub paused: bool,
    /// Number of streams scrolled past.
    pub offset: usize,
    /// Which of the slowest requests is shown.
    pub slow: usize,
}

impl View {
    /// Handles a key; `page` is the number of streams on the screen. Returns true to quit.
    pub(super) fn press(&mut self, key: Key, streams: usize, slow: usize, page: usize) -> bool {
        let last = streams.saturating_sub(page);
        let offset = self.offset.min(last);
        match key {
            Key::Quit => return true,
            Key::Pause => self.paused = !self.paused,
            Key::Sort => (self.sort, self.offset) = (self.sort.next(), 0),
            Key::Up => self.offset = offset.saturating_sub(1),
            Key::Down => self.offset = (offset + 1).min(last),
            Key::PageUp => self.offset = offset.saturating_sub(page.max(1)),
            Key::PageDown => self.offset = (offset + page.max(1)).min(last),
            Key::Home => self.offset = 0,
            Key::End => self.offset = last,
            Key::Left => self.slow = self.slow.min(slow.saturating_sub(1)).saturating_sub(1),
            Key::Right => self.slow = (self.slow + 1).min(slow.saturating_sub(1)),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: &str, age_ms: u64, waited_ms: Option<u64>, rate: Option<f64>, tokens: u64) -> Stream {
        Stream { id: id.to_owned(), age_ms, waited_ms, tokens_per_second: rate, tokens, ..Stream::default() }
    }

    #[test]
    fn each_sort_order_puts_its_subject_first() {
        let streams = [
            stream("a", 9, Some(1), Some(50.0), 7),
            stream("b", 5, Some(8), None, 0),
            stream("c", 2, None, Some(3.0), 9),
        ];
        let ids = |sort: Sort| sort.order(&streams).iter().map(|stream| stream.id.as_str()).collect::<String>();
        assert_eq!([Sort::Age, Sort::Wait, Sort::Rate, Sort::Tokens].map(ids), ["abc", "bac", "cab", "cab"]);
    }

    #[test]
    fn keys_move_within_bounds() {
        let mut view = View::default();
        let press = |view: &mut View, key| view.press(key, 10, 3, 4);
        press(&mut view, Key::End);
        assert_eq!(view.offset, 6);
        press(&mut view, Key::Down);
        press(&mut view, Key::Up);
        assert_eq!(view.offset, 5);
        press(&mut view, Key::PageUp);
        press(&mut view, Key::PageUp);
        assert_eq!(view.offset, 0);
        (0..5).for_each(|_| _ = press(&mut view, Key::Right));
        assert_eq!(view.slow, 2);
        // The number of streams has decreased.
        view.offset = 100;
        view.press(Key::Up, 10, 1, 4);
        view.press(Key::Left, 10, 1, 4);
        assert_eq!((view.offset, view.slow), (5, 0));
        assert!(press(&mut view, Key::Quit));
        press(&mut view, Key::Pause);
        (0..4).for_each(|_| _ = press(&mut view, Key::Sort));
        assert_eq!((view.paused, view.sort), (true, Sort::Age));
    }
}
