//! The terminal: switched to full-screen mode, and restored however the program ends.

use std::io;
use std::io::Write;
use std::panic;
use std::sync::Mutex;
use std::sync::PoisonError;

use rustix::termios;
use rustix::termios::OptionalActions;
use rustix::termios::Termios;

/// Alternate screen, no cursor, no line wrapping (so that the last cell of a row can be drawn).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Assumed size if the terminal does not report one.
const UNTOLD: (usize, usize) = (80, 24);

/// The previous terminal state; global because a panic in another thread may have to restore it.
static BEFORE: Mutex<Option<Before>> = Mutex::new(None);

struct Before {
    /// `None`: input is not a terminal and was not changed.
    input: Option<Termios>,
}

/// A terminal in full-screen mode until this is dropped.
#[derive(Debug)]
pub(super) struct Terminal(());

impl Terminal {
    /// Enters full-screen mode. Keys are delivered unbuffered, including Ctrl-C.
    pub(super) fn take() -> io::Result<Terminal> {
        let before = Before { input: termios::tcgetattr(io::stdin()).ok() };
        if let Some(settings) = &before.input {
            let mut raw = settings.clone();
            raw.make_raw();
            termios::tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        }
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            hook(info);
        }));
        let terminal = Terminal(());
        terminal.show(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        size().unwrap_or(UNTOLD)
    }

    /// Writes and flushes.
    pub(super) fn show(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Columns and rows of the terminal on stdout, if it is one and reports them.
pub(super) fn size() -> Option<(usize, usize)> {
    let size = termios::tcgetwinsize(io::stdout()).ok()?;
    let (width, height) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (width > 0 && height > 0).then_some((width, height))
}

/// Restores the terminal, if it was changed. Errors cannot be reported here.
fn give_back() {
    let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let mut out = io::stdout().lock();
    out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush()).ok();
    if let Some(settings) = before.input {
        termios::tcsetattr(io::stdin(), OptionalActions::Flush, &settings).ok();
    }
}
