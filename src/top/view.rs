//! The user's choices.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use tokometer_telemetry::live::snapshot::Stream;

tokometer_metrics::closed_enum! {
    /// Sort order of streams.
    pub enum Sort {
        /// Oldest first.
        Age = "age",
        /// Longest wait for the next token first.
        Wait = "wait",
        /// Slowest first; streams without a rate last.
        Rate = "slowest",
        /// Most tokens first.
        Tokens = "tokens",
    }
}

impl Sort {
    fn next(self) -> Sort {
        let mut following = Sort::ALL.into_iter().cycle().skip_while(|sort| *sort != self).skip(1);
        following.next().unwrap_or(Sort::Age)
    }

    /// Streams in this order; ties keep the order of the snapshot, oldest first.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Sort order of streams.
    pub sort: Sort,
    /// The screen is not updated.
    pub paused: bool,
    /// Number of streams scrolled past.
    pub offset: usize,
    /// Index of the slow request that is shown.
    pub slow: usize,
}

impl Default for View {
    fn default() -> View {
        View { sort: Sort::Age, paused: false, offset: 0, slow: 0 }
    }
}

impl View {
    /// Handles a key; `page` is the number of streams on the screen. Returns true to quit.
    pub(super) fn press(&mut self, key: KeyEvent, streams: usize, slow: usize, page: usize) -> bool {
        let last = streams.saturating_sub(page);
        let offset = self.offset.min(last);
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return true,
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Char('p' | 'P' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s' | 'S') => (self.sort, self.offset) = (self.sort.next(), 0),
            KeyCode::Up | KeyCode::Char('k') => self.offset = offset.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.offset = (offset + 1).min(last),
            KeyCode::PageUp => self.offset = offset.saturating_sub(page.max(1)),
            KeyCode::PageDown => self.offset = (offset + page.max(1)).min(last),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = last,
            KeyCode::Left | KeyCode::Char('h') => self.slow = self.slow.min(slow.saturating_sub(1)).saturating_sub(1),
            KeyCode::Right | KeyCode::Char('l') => self.slow = (self.slow + 1).min(slow.saturating_sub(1)),
            _ => {}
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
        let press = |view: &mut View, code: KeyCode| view.press(code.into(), 10, 3, 4);
        press(&mut view, KeyCode::End);
        assert_eq!(view.offset, 6);
        press(&mut view, KeyCode::Down);
        press(&mut view, KeyCode::Up);
        assert_eq!(view.offset, 5);
        press(&mut view, KeyCode::PageUp);
        press(&mut view, KeyCode::PageUp);
        assert_eq!(view.offset, 0);
        (0..5).for_each(|_| _ = press(&mut view, KeyCode::Right));
        assert_eq!(view.slow, 2);
        // The number of streams has decreased.
        view.offset = 100;
        view.press(KeyCode::Up.into(), 10, 1, 4);
        view.press(KeyCode::Left.into(), 10, 1, 4);
        assert_eq!((view.offset, view.slow), (5, 0));
        assert!(press(&mut view, KeyCode::Char('q')));
        let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
        assert!(['c', 'd'].into_iter().all(|key| view.press(control(key), 10, 3, 4)));
        press(&mut view, KeyCode::Char('p'));
        (0..4).for_each(|_| _ = press(&mut view, KeyCode::Char('s')));
        assert_eq!((view.paused, view.sort), (true, Sort::Age));
    }
}
