//! An answer that nobody counted, with its text: somebody may count that, after the data path is done with it.

use crate::measure::Count;
use crate::measure::CountSource;
use crate::measure::Record;
use crate::measure::Thresholds;
use tokometer_decode::AnswerText;
use tokometer_decode::TextLost;

/// Why the tokens of an answer's text were not counted, or the count was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uncounted {
    /// The text is longer than the cap.
    TextTooLong,
    /// All texts together take as much memory as they may.
    Memory,
    /// Its tokens are not those of a text: calls of tools, audio, several answers, an echoed prompt, no Unicode, or the
    /// answer could not be read to its end.
    NotPlain,
    /// No vocabulary is set for the model.
    NoVocabulary,
    /// Too many answers wait to be counted, or it waited too long.
    QueueFull,
    /// The tokenizer refused the text, or failed.
    Failed,
    /// It came to fewer tokens than were seen: the vocabulary is not the model's, or text was held back.
    BelowLowerBound,
}

impl Uncounted {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Uncounted; 7] = [
        Uncounted::TextTooLong,
        Uncounted::Memory,
        Uncounted::NotPlain,
        Uncounted::NoVocabulary,
        Uncounted::QueueFull,
        Uncounted::Failed,
        Uncounted::BelowLowerBound,
    ];

    /// The value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Uncounted::TextTooLong => "text_too_long",
            Uncounted::Memory => "memory",
            Uncounted::NotPlain => "not_plain",
            Uncounted::NoVocabulary => "no_vocabulary",
            Uncounted::QueueFull => "queue_full",
            Uncounted::Failed => "failed",
            Uncounted::BelowLowerBound => "below_lower_bound",
        }
    }
}

impl From<TextLost> for Uncounted {
    fn from(lost: TextLost) -> Uncounted {
        match lost {
            TextLost::TooLong => Uncounted::TextTooLong,
            TextLost::Memory => Uncounted::Memory,
            TextLost::NotPlain => Uncounted::NotPlain,
        }
    }
}

/// The text of an answer of which no exact count is known.
#[derive(Debug)]
pub struct UncountedText {
    /// The text, or why there is none.
    pub text: Box<AnswerText>,
    /// For the rate that the count gives.
    pub thresholds: Thresholds,
}

impl UncountedText {
    /// The text of the answer that this record tells of. `echo`: the prompt came as text too.
    pub(super) fn of(mut text: Box<AnswerText>, record: &Record, echo: bool, thresholds: &Thresholds) -> UncountedText {
        // Several answers came as one text, or not all of it was read.
        if echo || record.choices > 1 || record.unread {
            text.lose(TextLost::NotPlain);
        }
        UncountedText { text, thresholds: *thresholds }
    }
}

/// What a text came to. Tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextTokens {
    /// All of it.
    pub all: u64,
    /// The text of the first event that had any.
    pub first: u64,
}

impl Record {
    /// Takes the count of the text, which is an estimate of what was sampled, and the rate that it gives. The lower bound
    /// of the rate stays.
    ///
    /// # Errors
    /// [`Uncounted::BelowLowerBound`]: the record stays as it is.
    pub fn count_text(&mut self, tokens: TextTokens, thresholds: &Thresholds) -> Result<(), Uncounted> {
        let seen = self.output_tokens.map_or(0, |count| count.tokens);
        if tokens.all < seen || tokens.all == 0 {
            return Err(Uncounted::BelowLowerBound);
        }
        self.output_tokens = Some(Count { tokens: tokens.all, source: CountSource::Tokenizer });
        let first = self.first_tokens.unwrap_or(tokens.first.max(1));
        self.decode_rate_estimated = thresholds.rate(tokens.all, first, self.first_token, self.last_token);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_word_of_its_own() {
        let mut words: Vec<&str> = Uncounted::ALL.iter().map(|why| why.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Uncounted::ALL.len());
    }
}
