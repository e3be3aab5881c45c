//! Names of request outcomes, shared by metrics and spans.

use tokometer_observe::measure::{Outcome, Record};

/// The value of `outcome_class`: `success`, `client_abort`, `failure` or `unobserved`.
pub fn outcome_class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "success",
        Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream => "client_abort",
        Outcome::Unobserved => "unobserved",
        _ => "failure",
    }
}

/// The value of `status_class`; `None` without response headers.
pub(crate) fn status_class(status: Option<u16>) -> Option<&'static str> {
    ["1xx", "2xx", "3xx", "4xx", "5xx"].get(usize::from(status? / 100).checked_sub(1)?).copied()
}

/// The statuses that are values of `error.type`.
const ERROR_STATUSES: [&str; 18] = [
    "400", "401", "403", "404", "405", "408", "409", "413", "415", "422", "429", "499", "500", "501", "502", "503",
    "504", "529",
];

/// The value of `error.type`: the status if the server rejected the request with a status, else the outcome; `None` on
/// success. Other statuses become `_OTHER`, the conventions' fallback value, so that a server cannot create arbitrary
/// series.
pub(crate) fn error_type(record: &Record) -> Option<&'static str> {
    match record.outcome {
        Outcome::Ok => None,
        Outcome::Http4xx | Outcome::Http5xx | Outcome::RejectedBusy => {
            let known = |text: &&str| text.parse() == Ok(record.response.status.unwrap_or(0));
            Some(ERROR_STATUSES.into_iter().find(known).unwrap_or("_OTHER"))
        }
        other => Some(other.as_str()),
    }
}

/// The outcomes with their expected status classes. Their series start at zero, so that `rate()` includes the first
/// failure.
pub(crate) const EXPECTED: [(Outcome, Option<&str>); 15] = [
    (Outcome::Ok, Some("2xx")),
    (Outcome::ClientAbortBeforeFirstToken, None),
    (Outcome::ClientAbortBeforeFirstToken, Some("2xx")),
    (Outcome::ClientAbortMidStream, Some("2xx")),
    (Outcome::UpstreamRefused, None),
    (Outcome::UpstreamReset, None),
    (Outcome::UpstreamReset, Some("2xx")),
    (Outcome::UpstreamTimeout, None),
    (Outcome::Truncated, Some("2xx")),
    (Outcome::ErrorInStream, Some("2xx")),
    (Outcome::Http4xx, Some("4xx")),
    (Outcome::Http5xx, Some("5xx")),
    (Outcome::RejectedBusy, Some("4xx")),
    (Outcome::RejectedBusy, Some("5xx")),
    (Outcome::NoOutput, Some("2xx")),
];
