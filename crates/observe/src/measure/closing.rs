//! Data that a request record is closed with.

use crate::measure::Ending;
use crate::measure::Labels;
use crate::measure::Profile;
use tokometer_decode::AnswerText;

/// Data that is known only when a request is closed.
#[derive(Debug)]
pub struct Closing {
    /// How the request ended on the wire.
    pub ending: Ending,
    /// Labels of the request's series.
    pub labels: Labels,
    /// `id` of the response.
    pub response_id: Option<Box<str>>,
    /// Type of the error in the response.
    pub error_type: Option<Box<str>>,
    /// Engine-specific response semantics.
    pub profile: Profile,
    /// Text of the response, if it was kept.
    pub text: Option<Box<AnswerText>>,
}
