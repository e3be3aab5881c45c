//! The simulated model: which tokens each event of a request contains, and when they are due.

use std::fmt::Write;
use std::sync::LazyLock;
use std::time::Duration;

use crate::server::fault::Fault;
use crate::server::settings::{Pace, STAMP_DIGITS, Settings, Text};

/// Word pieces as a tokenizer produces them: with a leading space, some with multi-byte letters.
const PIECES: &str = " the| a| of| to| and| in| is| that| it| for| stream| token| rate| time| first| last| slow| fast| read|\
    \x20write|ing|ed|er|s|ly|tion|,|.| queue| model| answer| server| client| count| gap| wait|\n| \"quote\"| caf\u{e9}|\
    \x20na\u{ef}ve| \u{4f60}\u{597d}| \u{1f680}| 1| 2| 42| back\\slash|:|;| we| see";

static VOCABULARY: LazyLock<Vec<&str>> = LazyLock::new(|| PIECES.split('|').collect());

/// Id of the first piece; smaller ids are special tokens.
const BASE: u32 = 100;

/// Id of the end-of-text token, which has no text.
pub(crate) const END_OF_TEXT: u32 = 2;

/// The text of a token drawn from the vocabulary; `None` for other ids.
fn text_of(id: u32) -> Option<&'static str> {
    VOCABULARY.get(id.checked_sub(BASE)? as usize).copied()
}

/// A requested generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) model: String,
    pub(crate) fault: Option<Fault>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    /// Optional details that only some APIs have: TGI's `details`, Dynamo's `nvext.timing`.
    pub(crate) details: bool,
    /// Sequences to generate: `n` times the number of prompts.
    pub(crate) choices: u32,
    /// Texts in the request, for APIs that return a result for each text.
    pub(crate) inputs: u64,
    /// The request has no prompt.
    pub(crate) empty: bool,
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub(crate) cached_tokens: u64,
    pub(crate) max_tokens: u64,
    pub(crate) ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The end-of-text token was generated.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// An injected fault ended the generation.
    Fault,
}

impl Finish {
    /// The name in templates for the state of a response that ended this way.
    pub(crate) fn name(self) -> &'static str {
        if self == Finish::Length { "length" } else { "stop" }
    }
}

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
            let text = match text_of(*id) {
                Some(text) => text,
                None if at == 0 && *id != END_OF_TEXT => self.text.as_str(),
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
            let natural = chance.u64(settings.response_tokens.clone()).max(1);
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
    pub(crate) fn generate_text(&mut self) {
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
                        let id = BASE + self.chance.usize(..VOCABULARY.len()) as u32;
                        piece.text.push_str(text_of(id).unwrap_or_default());
                        piece.ids.push(id);
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
            piece.ids.resize(words as usize, END_OF_TEXT + 1);
            piece.ids.resize(piece.tokens as usize, END_OF_TEXT);
        }
    }

    /// Resets the generated tokens, for requests that are served without generation.
    pub(crate) fn discard_tokens(&mut self) {
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

    /// Number of identical steps that can be skipped together: one token each, one sequence, no pause, the same text.
    /// The last step is never included.
    pub(crate) fn alike(&self) -> u64 {
        match self.pieces.as_slice() {
            [piece] if self.text == Text::Filler && self.schedule.unpaced() && self.schedule.tokens(1, 2) == 1 => {
                (piece.target - piece.generated).saturating_sub(1)
            }
            _ => 0,
        }
    }

    /// Skips `steps` identical steps.
    pub(crate) fn skip(&mut self, steps: u64) {
        for piece in &mut self.pieces {
            piece.generated += steps;
        }
    }
}

/// Due times of one stream, relative to its scheduling. They do not drift, because each is calculated from the start,
/// not from the previous due time.
#[derive(Debug)]
struct Schedule {
    pace: Pace,
    first: f64,
    chance: fastrand::Rng,
}

impl Schedule {
    fn new(pace: Pace, mut chance: fastrand::Rng) -> Schedule {
        let late = 1.0 + pace.jitter.clamp(0.0, 1.0) * chance.f64();
        Schedule { pace, first: pace.time_to_first_token.as_secs_f64() * late, chance }
    }

    /// Number of tokens in the next event, after `sent` tokens and with `left` remaining.
    fn tokens(&self, sent: u64, left: u64) -> u64 {
        if sent == 0 { left.min(1) } else { left.min(u64::from(self.pace.tokens_per_chunk.max(1))) }
    }

    /// Due time of the event whose last token is number `token` (the first is 1).
    fn due(&mut self, token: u64) -> Duration {
        let gap = if self.pace.tokens_per_second > 0.0 { 1.0 / self.pace.tokens_per_second } else { 0.0 };
        let late = if token > 1 { gap * self.pace.jitter.clamp(0.0, 1.0) * self.chance.f64() } else { 0.0 };
        Duration::try_from_secs_f64(self.first + token.saturating_sub(1) as f64 * gap + late).unwrap_or(Duration::MAX)
    }

    /// Whether events follow each other without a pause.
    fn unpaced(&self) -> bool {
        self.pace.tokens_per_second <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(pace: Pace) -> Schedule {
        Schedule::new(pace, fastrand::Rng::with_seed(7))
    }

    #[test]
    fn tokens_without_jitter_follow_the_configured_pace() {
        let mut schedule = schedule(Pace { jitter: 0.0, ..Pace::default() });
        assert_eq!(schedule.due(1), Duration::from_millis(200));
        assert_eq!(schedule.due(2), Duration::from_millis(220));
        assert_eq!(schedule.due(501), Duration::from_millis(10_200));
    }

    #[test]
    fn jitter_only_delays_and_never_drifts() {
        let mut schedule = schedule(Pace { jitter: 0.5, ..Pace::default() });
        let first = schedule.due(1);
        assert!((Duration::from_millis(200)..=Duration::from_millis(300)).contains(&first));
        let mut spread = false;
        for token in 2..2000 {
            let plain = first + Duration::from_millis(20) * (token as u32 - 1);
            let late = schedule.due(token).saturating_sub(plain);
            assert!(late <= Duration::from_micros(10_001), "{late:?}");
            spread |= late > Duration::from_millis(9);
        }
        assert!(spread);
    }

    #[test]
    fn first_event_holds_one_token_others_the_configured_number() {
        let schedule = schedule(Pace { tokens_per_chunk: 5, ..Pace::default() });
        assert_eq!(schedule.tokens(0, 12), 1);
        assert_eq!(schedule.tokens(1, 11), 5);
        assert_eq!(schedule.tokens(11, 1), 1);
    }
}
