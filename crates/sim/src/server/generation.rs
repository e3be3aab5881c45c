//! The simulated model: which tokens each event of a request contains, and when they are due.

use std::fmt::Write;
use std::time::Duration;

use crate::server::engine::Finish;
use crate::server::job::Job;
use crate::server::schedule::Schedule;
use crate::server::settings::STAMP_DIGITS;
use crate::server::settings::Settings;
use crate::server::settings::Text;
use crate::server::vocabulary;

/// The output of one sequence (choice) in one step.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) choice: u32,
    /// The text; empty for the end-of-text token.
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    /// Tokens in this step; 0 if the sequence ended earlier.
    pub(crate) tokens: u64,
    /// Tokens of this sequence so far, including this step.
    pub(crate) generated: u64,
    pub(crate) finish: Option<Finish>,
    target: u64,
    end: Finish,
}

impl Piece {
    /// The tokens of this step one by one; text that does not consist of words is returned with the first token.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &str)> {
        self.ids.iter().enumerate().map(|(at, id)| {
            let text = match vocabulary::text(*id) {
                Some(text) => text,
                None if at == 0 && *id != vocabulary::END_OF_TEXT => self.text.as_str(),
                None => "",
            };
            (*id, text)
        })
    }
}

/// All sequences of one request.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) steps: u32,
    schedule: Schedule,
    text: Text,
    chance: fastrand::Rng,
}

impl Generation {
    pub(crate) fn new(job: &Job, settings: &Settings, mut chance: fastrand::Rng) -> Generation {
        let pieces = (0..job.choices).map(|choice| {
            let natural = chance.u64(settings.answer_tokens.clone()).max(1);
            let (target, end) = match job.ignore_eos || natural > job.max_tokens {
                true => (job.max_tokens, Finish::Length),
                false => (natural, Finish::Stop),
            };
            Piece { choice, text: String::new(), ids: Vec::new(), tokens: 0, generated: 0, finish: None, target, end }
        });
        let pieces = pieces.collect();
        let schedule = Schedule::new(settings.pace, chance.fork());
        Generation { pieces, steps: 0, schedule, text: settings.text, chance }
    }

    /// Advances to the next step and returns when it is due, relative to scheduling; `None` when all sequences have
    /// ended.
    pub(crate) fn advance(&mut self) -> Option<Duration> {
        let mut longest = 0;
        for piece in &mut self.pieces {
            let left = piece.target - piece.generated;
            piece.tokens = self.schedule.tokens(piece.generated, left);
            piece.generated += piece.tokens;
            piece.finish = (piece.generated == piece.target).then_some(piece.end);
            if piece.tokens > 0 {
                longest = longest.max(piece.generated);
            }
        }
        self.steps += 1;
        (longest > 0).then(|| self.schedule.due(longest))
    }

    /// Fills in the text of this step's pieces.
    pub(crate) fn speak(&mut self) {
        for piece in &mut self.pieces {
            piece.text.clear();
            piece.ids.clear();
            let mut words = piece.tokens;
            if piece.finish == Some(Finish::Stop) && words > 0 {
                words -= 1;
            }
            match self.text {
                Text::Words => {
                    for _ in 0..words {
                        let token = vocabulary::draw(&mut self.chance);
                        piece.text.push_str(token.text);
                        piece.ids.push(token.id);
                    }
                }
                Text::Stamp(_) | Text::Filler if words == 0 => {}
                // Writing to a string cannot fail.
                Text::Stamp(epoch) => {
                    let written = write!(piece.text, "{:0STAMP_DIGITS$}", epoch.elapsed().as_nanos());
                    debug_assert!(written.is_ok());
                }
                Text::Filler => piece.text.extend(std::iter::repeat_n('x', STAMP_DIGITS)),
            }
            piece.ids.resize(words as usize, vocabulary::END_OF_TEXT + 1);
            piece.ids.resize(piece.tokens as usize, vocabulary::END_OF_TEXT);
        }
    }

    /// Resets the generated tokens, for requests that are served without generation.
    pub(crate) fn forget(&mut self) {
        for piece in &mut self.pieces {
            piece.generated = 0;
            piece.end = Finish::Stop;
        }
    }

    /// Tokens of this step, over all sequences.
    pub(crate) fn step_tokens(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.tokens).sum()
    }

    /// Tokens so far, over all sequences.
    pub(crate) fn total(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.generated).sum()
    }

    /// Whether this is the last step.
    pub(crate) fn is_last(&self) -> bool {
        self.pieces.iter().all(|piece| piece.finish.is_some())
    }

    /// How the whole request ended.
    pub(crate) fn finish(&self) -> Finish {
        match self.pieces.iter().all(|piece| piece.end == Finish::Stop) {
            true => Finish::Stop,
            false => Finish::Length,
        }
    }

    /// Number of identical steps that can be taken at once: one token each, one sequence, no pause, the same text. The
    /// last step is never included.
    pub(crate) fn alike(&self) -> u64 {
        match self.pieces.as_slice() {
            [piece] if self.text == Text::Filler && self.schedule.unpaced() && self.schedule.tokens(1, 2) == 1 => {
                (piece.target - piece.generated).saturating_sub(1)
            }
            _ => 0,
        }
    }

    /// Takes `steps` of the identical steps.
    pub(crate) fn skip(&mut self, steps: u64) {
        for piece in &mut self.pieces {
            piece.generated += steps;
        }
    }
}
