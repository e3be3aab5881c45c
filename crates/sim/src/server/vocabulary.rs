//! Vocabulary of the simulated model.

/// Word pieces as a tokenizer cuts them: with a leading space, and some with multi-byte letters.
const PIECES: &[&str] = &[
    " the",
    " a",
    " of",
    " to",
    " and",
    " in",
    " is",
    " that",
    " it",
    " for",
    " stream",
    " token",
    " rate",
    " time",
    " first",
    " last",
    " slow",
    " fast",
    " read",
    " write",
    "ing",
    "ed",
    "er",
    "s",
    "ly",
    "tion",
    ",",
    ".",
    " queue",
    " model",
    " answer",
    " server",
    " client",
    " count",
    " gap",
    " wait",
    "\n",
    " \"quote\"",
    " caf\u{e9}",
    " na\u{ef}ve",
    " \u{4f60}\u{597d}",
    " \u{1f680}",
    " 1",
    " 2",
    " 42",
    " back\\slash",
    ":",
    ";",
    " we",
    " see",
];

/// Id of the first piece; smaller ids are special tokens.
const BASE: u32 = 100;

/// Id of the end-of-text token, which has no text.
pub(crate) const END_OF_TEXT: u32 = 2;

/// A token: its id, and its text escaped for a JSON string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) text: &'static str,
}

/// Draws the next token.
pub(crate) fn draw(chance: &mut fastrand::Rng) -> Token {
    let index = chance.usize(..PIECES.len());
    Token { id: BASE + index as u32, text: PIECES.get(index).copied().unwrap_or(" the") }
}

/// The text of a drawn token; `None` for other ids.
pub(crate) fn text(id: u32) -> Option<&'static str> {
    PIECES.get(id.checked_sub(BASE)? as usize).copied()
}
