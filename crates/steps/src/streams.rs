//! The state of the streams of a server.

use crate::types::{Culprit, Nanos};

/// Steps that remain open for late tokens.
pub(crate) const WINDOW: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) open: bool,
    /// Has received its first token.
    pub(crate) started: bool,
    pub(crate) tag: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) opened_at: Nanos,
    /// Time of the last token.
    pub(crate) last_at: Nanos,
    /// Step of the last token.
    pub(crate) last_step: u64,
    /// Tokens in its events.
    pub(crate) counted: u32,
    pub(crate) blocked: bool,
    /// Several choices: never part of the analysis.
    pub(crate) excluded: bool,
    /// Position of its part in the present burst.
    pub(crate) part: Option<u32>,
    /// Was blocked: the tokens of the next event prove nothing about steps.
    pub(crate) rejoins: bool,
    /// Bit `j` is set if the stream had a token in step `seen_at - j`, or had not begun.
    pub(crate) seen: u64,
    pub(crate) seen_at: u64,
}

impl Stream {
    /// Had a token, or had not begun, in all steps up to `step`.
    pub(crate) fn attend_all(&mut self, step: u64) {
        self.seen = u64::MAX;
        self.seen_at = step;
    }

    /// The attendance bits relative to `frontier`, the newest step.
    pub(crate) fn attendance(&mut self, frontier: u64) -> u64 {
        let steps = frontier - self.seen_at;
        self.seen = if steps >= WINDOW { 0 } else { self.seen << steps };
        self.seen_at = frontier;
        self.seen
    }

    pub(crate) fn attend(&mut self, frontier: u64, back: u64) {
        self.attendance(frontier);
        self.seen |= 1 << back;
    }

    pub(crate) fn as_culprit(&self, slot: u32) -> Culprit {
        Culprit { slot, tag: self.tag, prompt_tokens: self.prompt_tokens }
    }
}
