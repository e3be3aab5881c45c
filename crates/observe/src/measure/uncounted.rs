//! Text of a response without a token count, so that a tokenizer can count it outside the data path.

use crate::measure::Count;
use crate::measure::CountSource;
use crate::measure::Record;
use crate::measure::Thresholds;
use tokometer_decode::AnswerText;
use tokometer_decode::TextLost;

/// Why a response text was not tokenized, or the count was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uncounted {
    /// The text is longer than the limit.
    TextTooLong,
    /// The memory limit of all texts was reached.
    Memory,
    /// The text does not represent the tokens: tool calls, audio, several responses, an echoed prompt, invalid Unicode,
    /// or a response that could not be parsed to its end.
    NotPlain,
    /// No vocabulary is configured for the model.
    NoVocabulary,
    /// Too many responses are waiting to be counted, or this one waited too long.
    QueueFull,
    /// The tokenizer rejected the text, or failed.
    Failed,
    /// The count is lower than the number of tokens seen: the vocabulary is not the model's, or text was held back.
    BelowLowerBound,
}

impl Uncounted {
    /// All reasons, in documentation order.
    pub const ALL: [Uncounted; 7] = [
        Uncounted::TextTooLong,
        Uncounted::Memory,
        Uncounted::NotPlain,
        Uncounted::NoVocabulary,
        Uncounted::QueueFull,
        Uncounted::Failed,
        Uncounted::BelowLowerBound,
    ];

    /// Value of the label `reason`.
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

/// Text of a response without an exact token count.
#[derive(Debug)]
pub struct UncountedText {
    /// The text, or why there is none.
    pub text: Box<AnswerText>,
    /// Thresholds for the decode rate computed from the count.
    pub thresholds: Thresholds,
}

impl UncountedText {
    /// The text of this record's response. `echo`: the text includes the prompt.
    pub(super) fn of(mut text: Box<AnswerText>, record: &Record, echo: bool, thresholds: &Thresholds) -> UncountedText {
        // The text combines several responses, or is incomplete.
        if echo || record.choices > 1 || record.unread {
            text.lose(TextLost::NotPlain);
        }
        UncountedText { text, thresholds: *thresholds }
    }
}

/// Token counts of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextTokens {
    /// Whole text.
    pub all: u64,
    /// Text of the first event that had any.
    pub first: u64,
}

impl Record {
    /// Sets the output count to the count of the text, which is an estimate of the sampled tokens, and the estimated
    /// decode rate. The lower bound of the rate is kept.
    ///
    /// # Errors
    /// [`Uncounted::BelowLowerBound`]: the record is unchanged.
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
    fn reason_labels_are_distinct() {
        let mut words: Vec<&str> = Uncounted::ALL.iter().map(|why| why.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Uncounted::ALL.len());
    }
}
