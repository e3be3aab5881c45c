//! The words for how an exchange ended, shared by metrics and spans.

use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;

/// `outcome_class`.
pub(crate) fn outcome_class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "success",
        Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream => "client_abort",
        Outcome::Unobserved => "unobserved",
        _ => "failure",
    }
}

/// `status_class`; `None` without a response head.
pub(crate) fn status_class(status: Option<u16>) -> Option<&'static str> {
    match status? / 100 {
        1 => Some("1xx"),
        2 => Some("2xx"),
        3 => Some("3xx"),
        4 => Some("4xx"),
        5 => Some("5xx"),
        _ => None,
    }
}

/// `error.type`: the status where the server refused by one, else the outcome; `None` when all went well. Statuses out
/// of this list are `_OTHER`, the conventions' word, so that a server cannot make series at will.
pub(crate) fn error_type(record: &Record) -> Option<&'static str> {
    match record.outcome {
        Outcome::Ok => None,
        Outcome::Http4xx | Outcome::Http5xx | Outcome::RejectedBusy => Some(match record.status.unwrap_or(0) {
            400 => "400",
            401 => "401",
            403 => "403",
            404 => "404",
            405 => "405",
            408 => "408",
            409 => "409",
            413 => "413",
            415 => "415",
            422 => "422",
            429 => "429",
            499 => "499",
            500 => "500",
            501 => "501",
            502 => "502",
            503 => "503",
            504 => "504",
            529 => "529",
            _ => "_OTHER",
        }),
        other => Some(other.as_str()),
    }
}

/// What a person reads in the span's status; `None` when all went well.
pub(crate) fn description(record: &Record) -> Option<String> {
    let text = match record.outcome {
        Outcome::Ok => return None,
        Outcome::ClientAbortBeforeFirstToken => "the client went away before the first token",
        Outcome::ClientAbortMidStream => "the client went away in mid-stream",
        Outcome::UpstreamRefused => "the server could not be reached",
        Outcome::UpstreamReset => "the server reset the connection",
        Outcome::UpstreamTimeout => "the server did not answer in time",
        Outcome::Truncated => "the answer ended before its end mark",
        Outcome::ErrorInStream => "the server sent an error inside the stream",
        Outcome::NoOutput => "the answer held no token",
        Outcome::Drained => "closed at the end of the drain's grace period",
        Outcome::Unobserved => "not observed to its end",
        Outcome::Http4xx | Outcome::Http5xx | Outcome::RejectedBusy => {
            return Some(format!("the server answered with status {}", record.status.unwrap_or(0)));
        }
    };
    Some(text.to_owned())
}

/// The outcomes with the status classes in which they are to be expected: series that stand at zero from the start, so
/// that a rate sees the first failure.
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
