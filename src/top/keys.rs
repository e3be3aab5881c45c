//! Parsing of keys from terminal input bytes.

/// A key with a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    Sort,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// State within an escape sequence, which may span several reads.
#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    /// After ESC.
    Escape,
    /// After ESC and `[` or `O`, with the number so far.
    Sequence(u32),
}

/// Reads keys. Unknown bytes are ignored.
#[derive(Debug, Default)]
pub(super) struct Keys {
    state: State,
}

impl Keys {
    /// The keys in these bytes.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        bytes.iter().filter_map(|byte| self.take(*byte)).collect()
    }

    fn take(&mut self, byte: u8) -> Option<Key> {
        match (std::mem::take(&mut self.state), byte) {
            (_, 0x1b) => {
                self.state = State::Escape;
                None
            }
            (State::Escape, b'[' | b'O') => {
                self.state = State::Sequence(0);
                None
            }
            (State::Sequence(number), b'0'..=b'9') => {
                self.state = State::Sequence(number.saturating_mul(10).saturating_add(u32::from(byte - b'0')));
                None
            }
            // Parameters of a modified key, such as ESC [ 1 ; 5 A.
            (State::Sequence(_), b';') => {
                self.state = State::Sequence(0);
                None
            }
            (State::Sequence(number), _) => match (byte, number) {
                (b'A', _) => Some(Key::Up),
                (b'B', _) => Some(Key::Down),
                (b'C', _) => Some(Key::Right),
                (b'D', _) => Some(Key::Left),
                (b'H', _) | (b'~', 1 | 7) => Some(Key::Home),
                (b'F', _) | (b'~', 4 | 8) => Some(Key::End),
                (b'~', 5) => Some(Key::PageUp),
                (b'~', 6) => Some(Key::PageDown),
                _ => None,
            },
            // Ctrl-C and Ctrl-D arrive as bytes in raw mode.
            (_, b'q' | b'Q' | 0x03 | 0x04) => Some(Key::Quit),
            (_, b'p' | b'P' | b' ') => Some(Key::Pause),
            (_, b's' | b'S') => Some(Key::Sort),
            (_, b'k') => Some(Key::Up),
            (_, b'j') => Some(Key::Down),
            (_, b'h') => Some(Key::Left),
            (_, b'l') => Some(Key::Right),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_split_between_reads_parse_identically() {
        let bytes = b"q\x03p s\x1b[A\x1b[B\x1bOC\x1b[D\x1b[5~\x1b[6~\x1b[1~\x1b[F\x1b[1;5Ax";
        let expected = [
            Key::Quit,
            Key::Quit,
            Key::Pause,
            Key::Pause,
            Key::Sort,
            Key::Up,
            Key::Down,
            Key::Right,
            Key::Left,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Up,
        ];
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            let mut keys = Keys::default();
            let found = [keys.read(head), keys.read(tail)].concat();
            assert_eq!(found, expected, "cut at {cut}");
        }
    }

    #[test]
    fn unknown_bytes_are_ignored() {
        assert_eq!(Keys::default().read(b"\x1b[200~x\x1b\x1b[Zy\xc3\xa4\x1b[99999999999999~"), []);
    }
}
