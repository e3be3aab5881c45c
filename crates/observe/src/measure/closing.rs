//! What an exchange ends with.

use crate::measure::Ending;
use crate::measure::Labels;
use crate::measure::Profile;
use tokometer_decode::AnswerText;

/// What is known only to the one who closes an exchange.
#[derive(Debug)]
pub struct Closing {
    /// How it came to its end on the wire.
    pub ending: Ending,
    /// What its series are told apart by.
    pub labels: Labels,
    /// `id` of the answer.
    pub response_id: Option<Box<str>>,
    /// What an error in the answer named as its kind.
    pub error_type: Option<Box<str>>,
    /// What the engine's answers mean.
    pub profile: Profile,
    /// The answer's text, if it was kept.
    pub text: Option<Box<AnswerText>>,
}
