//! Names of request outcomes, shared by metrics and spans.

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

/// `status_class`; `None` without response headers.
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

/// `error.type`: the status if the server rejected the request with one, else the outcome; `None` on success. Other
/// statuses become `_OTHER`, the conventions' fallback value, so that a server cannot create arbitrary series.
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

/// Human-readable description for the span's status; `None` on success.
pub(crate) fn description(record: &Record) -> Option<String> {
    let text = match record.outcome {
        Outcome::Ok => return None,
        Outcome::ClientAbortBeforeFirstToken => "the client disconnected before the first token",
        Outcome::ClientAbortMidStream => "the client disconnected mid-stream",
        Outcome::UpstreamRefused => "the server was unreachable",
        Outcome::UpstreamReset => "the server reset the connection",
        Outcome::UpstreamTimeout => "the server did not respond in time",
        Outcome::Truncated => "the response ended before its end marker",
        Outcome::ErrorInStream => "the server sent an error inside the stream",
        Outcome::NoOutput => "the response contained no token",
        Outcome::Drained => "closed at the end of the drain grace period",
        Outcome::Unobserved => "not observed to its end",
        Outcome::Http4xx | Outcome::Http5xx | Outcome::RejectedBusy => {
            return Some(format!("the server responded with status {}", record.status.unwrap_or(0)));
        }
    };
    Some(text.to_owned())
}

/// The outcomes with the status classes in which they are expected. Their series start at zero, so that `rate()`
/// includes the first failure.
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
