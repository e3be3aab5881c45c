//! What the simulated model can say.

/// Pieces of words, as a tokenizer cuts them: with their leading blank, and some of more than one byte per letter.
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

/// The id of the first piece; smaller ones are special tokens.
const BASE: u32 = 100;

/// The id of the end-of-text token, which has no text.
pub(crate) const END_OF_TEXT: u32 = 2;

/// A token: its id, and its text as it stands inside a JSON string.
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

/// The text of a token that was drawn; `None` for other ids.
pub(crate) fn text(id: u32) -> Option<&'static str> {
    PIECES.get(id.checked_sub(BASE)? as usize).copied()
}
