//! Evaluates a request against an objective. The result depends only on the record and the settings, not on state or
//! time.

use std::time::Duration;

use tokometer_metrics::closed_enum;
use tokometer_observe::measure::{Outcome, Record, Targets, cadence};

use crate::slo::{Goal, Objective, Settings};

/// The status of a WebSocket handshake (RFC 6455, section 4.2.2).
const SWITCHING_PROTOCOLS: u16 = 101;

/// Estimated request bytes per prompt token, if the engine does not report the prompt length. The usual value for
/// English text and JSON.
const BYTES_PER_TOKEN: u64 = 4;

/// Minimum time between the first and the last token for a decode rate to be evaluated.
const MIN_DECODE: Duration = Duration::from_millis(200);

/// Range of the time-to-first-token target that a request may set; values outside are clamped.
const REQUESTED_FIRST_TOKEN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(600)];

/// Range of the time-per-output-token target that a request may set; values outside are clamped.
const REQUESTED_PER_TOKEN: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(10)];

/// Result of evaluating a request against an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Meets the objective.
    Good,
    /// Misses the objective.
    Bad(Reason),
    /// Neither good nor bad: the server was not the cause, or too little is known about the request.
    Excluded(Exclusion),
}

closed_enum! {
    /// Why a request was bad.
    pub enum Reason {
        /// The server could not be reached.
        UpstreamRefused = "upstream_refused",
        /// The server reset the connection.
        UpstreamReset = "upstream_reset",
        /// The server did not respond in time.
        UpstreamTimeout = "upstream_timeout",
        /// The response ended before its end marker.
        Truncated = "truncated",
        /// An error inside a stream that began successfully.
        ErrorInStream = "error_in_stream",
        /// A status of 500-599.
        Http5xx = "http_5xx",
        /// The server had no capacity.
        RejectedBusy = "rejected_busy",
        /// A complete response without content.
        NoOutput = "no_output",
        /// The first token was late, or is overdue while the request still waits.
        LateFirstToken = "late_first_token",
        /// Estimated: the server was unreachable or wedged, so it did not receive the request.
        Lost = "lost",
        /// The request waited for its first token longer than the limit, ended without one, and had not been counted as
        /// late.
        NoFirstToken = "no_first_token",
        /// Fewer tokens per second than the minimum.
        SlowDecode = "slow_decode",
        /// A gap between two tokens exceeded the limit.
        Stalled = "stalled",
    }
}

impl Reason {
    /// The reasons possible for a goal.
    pub fn of(goal: &Goal) -> impl Iterator<Item = Reason> + use<> {
        let goal = *goal;
        Reason::ALL.into_iter().filter(move |reason| match reason {
            Reason::LateFirstToken | Reason::NoFirstToken => matches!(goal, Goal::FirstToken { .. } | Goal::Goodput),
            Reason::SlowDecode => matches!(goal, Goal::DecodeRate { .. } | Goal::Goodput),
            Reason::Stalled => matches!(goal, Goal::Stall { .. } | Goal::Goodput),
            _ => matches!(goal, Goal::Availability | Goal::Goodput),
        })
    }
}

closed_enum! {
    /// Why a request was excluded.
    pub enum Exclusion {
        /// A status of 400-499: the request was at fault.
        ClientError = "client_error",
        /// The client disconnected.
        ClientAbort = "client_abort",
        /// The proxy closed the request at the end of a drain.
        Drained = "drained",
        /// The server had no capacity, and the settings do not count this as bad.
        Busy = "busy",
        /// The response was not streamed, so it has no time to first token.
        NotStreamed = "not_streamed",
        /// The request ended before its first token, within the allowed wait.
        EndedEarly = "ended_early",
        /// No token was observed in the response.
        NoToken = "no_token",
        /// Too few tokens, or too short a time, for a rate.
        TooFewTokens = "too_few_tokens",
        /// Several choices share one stream, so their individual rates are unknown.
        SeveralChoices = "several_choices",
        /// Delivery was blocked on the client, which may have caused the late first token or the low rate.
        ClientLimited = "client_limited",
        /// The response could not be parsed to its end.
        Unread = "unread",
        /// The request was not observed to its end.
        Unobserved = "unobserved",
        /// The end of the request or the token count is unknown.
        Unknown = "unknown",
    }
}

impl Exclusion {
    /// The exclusions possible for a goal.
    pub fn of(goal: &Goal) -> impl Iterator<Item = Exclusion> + use<> {
        let goal = *goal;
        Exclusion::ALL.into_iter().filter(move |exclusion| match exclusion {
            Exclusion::Unread | Exclusion::Unobserved => true,
            Exclusion::ClientAbort | Exclusion::Drained | Exclusion::Busy => {
                matches!(goal, Goal::Availability | Goal::Goodput)
            }
            Exclusion::ClientError => matches!(goal, Goal::Availability | Goal::FirstToken { .. } | Goal::Goodput),
            Exclusion::NotStreamed => !matches!(goal, Goal::Availability | Goal::Goodput),
            Exclusion::EndedEarly => matches!(goal, Goal::FirstToken { .. }),
            Exclusion::NoToken => {
                matches!(goal, Goal::FirstToken { .. } | Goal::DecodeRate { .. } | Goal::Stall { .. })
            }
            Exclusion::TooFewTokens | Exclusion::SeveralChoices => matches!(goal, Goal::DecodeRate { .. }),
            Exclusion::ClientLimited | Exclusion::Unknown => {
                matches!(goal, Goal::FirstToken { .. } | Goal::DecodeRate { .. })
            }
        })
    }
}

/// Evaluates an objective whose scope covers the request. `model`: as in [`concerns`].
pub fn verdict(record: &Record, model: Option<&str>, objective: &Objective, settings: &Settings) -> Verdict {
    match objective.goal {
        Goal::Availability => availability(record, settings),
        Goal::FirstToken { base, per_1k_uncached } => first_token(record, base, per_1k_uncached),
        Goal::DecodeRate { floor } => decode_rate(record, floor, settings),
        Goal::Stall { longest } => stall(record, longest),
        Goal::Goodput => goodput(record, model, settings),
    }
}

/// True if the request is in the objective's scope. `model` is the name under which the request is counted; if it is
/// unknown, the model name in the request is used.
pub fn concerns(objective: &Objective, record: &Record, model: Option<&str>) -> bool {
    let scope = &objective.scope;
    let tenant = record.request.targets.as_ref().and_then(|targets| targets.tenant.as_deref());
    let named = model.or(record.labels.request_model.as_deref());
    scope.covers(record.labels.route, tenant) && scope.covers_model(named.unwrap_or_default())
}

fn availability(record: &Record, settings: &Settings) -> Verdict {
    match record.outcome {
        Outcome::Ok if record.unread => Verdict::Excluded(Exclusion::Unread),
        Outcome::Ok => Verdict::Good,
        Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream => {
            Verdict::Excluded(Exclusion::ClientAbort)
        }
        Outcome::Http4xx => Verdict::Excluded(Exclusion::ClientError),
        Outcome::Drained => Verdict::Excluded(Exclusion::Drained),
        Outcome::Unobserved => Verdict::Excluded(Exclusion::Unobserved),
        Outcome::RejectedBusy if !settings.busy_is_bad => Verdict::Excluded(Exclusion::Busy),
        Outcome::RejectedBusy => Verdict::Bad(Reason::RejectedBusy),
        Outcome::UpstreamRefused => Verdict::Bad(Reason::UpstreamRefused),
        Outcome::UpstreamReset => Verdict::Bad(Reason::UpstreamReset),
        Outcome::UpstreamTimeout => Verdict::Bad(Reason::UpstreamTimeout),
        Outcome::Truncated => Verdict::Bad(Reason::Truncated),
        Outcome::ErrorInStream => Verdict::Bad(Reason::ErrorInStream),
        Outcome::Http5xx => Verdict::Bad(Reason::Http5xx),
        Outcome::NoOutput => Verdict::Bad(Reason::NoOutput),
    }
}

fn first_token(record: &Record, base: Duration, per_1k: Duration) -> Verdict {
    if record.outcome == Outcome::Http4xx {
        return Verdict::Excluded(Exclusion::ClientError);
    }
    if !streamed(record) {
        return Verdict::Excluded(Exclusion::NotStreamed);
    }
    let uncached = uncached(record).unwrap_or(record.request.bytes / BYTES_PER_TOKEN);
    let limit = longest_wait(base, per_1k, uncached, record.request.targets.as_deref());
    if record.times.first_token.is_some() {
        return match record.since_requested(record.times.first_token) {
            None => Verdict::Excluded(Exclusion::Unknown),
            Some(wait) if wait <= limit => Verdict::Good,
            Some(wait) if wait.saturating_sub(record.blocked.waiting) <= limit => {
                Verdict::Excluded(Exclusion::ClientLimited)
            }
            Some(_) => Verdict::Bad(Reason::LateFirstToken),
        };
    }
    match record.since_requested(Some(record.times.ended)) {
        _ if record.outcome == Outcome::Unobserved => Verdict::Excluded(Exclusion::Unobserved),
        _ if record.unread => Verdict::Excluded(Exclusion::Unread),
        // A successful response without a token: it had none, or none was observed.
        _ if record.outcome == Outcome::Ok => Verdict::Excluded(Exclusion::NoToken),
        None => Verdict::Excluded(Exclusion::Unknown),
        Some(wait) if wait.saturating_sub(record.blocked.waiting) > limit => Verdict::Bad(Reason::NoFirstToken),
        Some(_) => Verdict::Excluded(Exclusion::EndedEarly),
    }
}

/// The maximum wait for a first token: the request's own target, clamped to [`REQUESTED_FIRST_TOKEN`], otherwise the
/// objective's limit.
pub(super) fn longest_wait(base: Duration, per_1k: Duration, uncached: u64, targets: Option<&Targets>) -> Duration {
    match targets.and_then(|targets| targets.first_token) {
        Some(time) => clamped(time, REQUESTED_FIRST_TOKEN),
        None => {
            let more = Duration::try_from_secs_f64(per_1k.as_secs_f64() * (uncached as f64 / 1e3));
            base.saturating_add(more.unwrap_or(Duration::MAX))
        }
    }
}

fn clamped(time: Duration, [min, max]: [Duration; 2]) -> Duration {
    time.clamp(min, max)
}

/// Prompt tokens that were not in the engine's cache. If the engine does not report cached tokens, all prompt tokens,
/// which allow a longer wait.
fn uncached(record: &Record) -> Option<u64> {
    let input = record.tokens.input?.exact()?;
    Some(input.saturating_sub(record.tokens.cached.unwrap_or(0)))
}

/// True if a successful response was streamed. Without a successful response, true if the request asked for a stream.
fn streamed(record: &Record) -> bool {
    match record.response.status {
        Some(SWITCHING_PROTOCOLS | 200..=299) => record.labels.streaming == Some(true),
        _ => record.request.stream == Some(true),
    }
}

fn decode_rate(record: &Record, floor: f64, settings: &Settings) -> Verdict {
    let (Some(first), Some(last)) = (record.times.first_token, record.times.last_token) else {
        return Verdict::Excluded(if streamed(record) { Exclusion::NoToken } else { Exclusion::NotStreamed });
    };
    if record.unread {
        return Verdict::Excluded(Exclusion::Unread);
    }
    let Some(output) = record.tokens.output else { return Verdict::Excluded(Exclusion::Unknown) };
    let span = last.saturating_sub(first);
    if output.tokens < settings.min_tokens || span < MIN_DECODE {
        return Verdict::Excluded(Exclusion::TooFewTokens);
    }
    if record.request.choices > 1 {
        return Verdict::Excluded(Exclusion::SeveralChoices);
    }
    if record.is_client_limited() {
        return Verdict::Excluded(Exclusion::ClientLimited);
    }
    let requested = record.request.targets.as_ref().and_then(|targets| targets.per_token);
    let floor = requested.map_or(floor, |time| clamped(time, REQUESTED_PER_TOKEN).as_secs_f64().recip());
    match (record.rate.exact, record.rate.at_least) {
        (Some(rate), _) if rate >= floor => Verdict::Good,
        (Some(_), _) => Verdict::Bad(Reason::SlowDecode),
        // A lower bound can show that the rate is high enough, but not that it is too low.
        (None, Some(rate)) if rate >= floor => Verdict::Good,
        (None, Some(_)) => Verdict::Excluded(Exclusion::Unknown),
        (None, None) => Verdict::Excluded(Exclusion::TooFewTokens),
    }
}

fn stall(record: &Record, longest: Duration) -> Verdict {
    let Some(last) = record.times.last_token else {
        return Verdict::Excluded(if streamed(record) { Exclusion::NoToken } else { Exclusion::NotStreamed });
    };
    // If a stream failed, the time between its last token and its end counts as a gap, unless delivery was blocked on
    // the client. Time during which tokometer itself was late is subtracted.
    let ended_well = record.outcome == Outcome::Ok || !record.blocked.total().is_zero();
    let tail = record.times.ended.saturating_sub(last).saturating_sub(record.gaps.late);
    let broke_off = !ended_well && !record.unread && tail > cadence::patience(longest, record.gaps.usual);
    match record.gaps.longest_pause {
        Some(pause) if pause > longest => Verdict::Bad(Reason::Stalled),
        _ if broke_off => Verdict::Bad(Reason::Stalled),
        _ if record.outcome == Outcome::Unobserved => Verdict::Excluded(Exclusion::Unobserved),
        _ if record.unread => Verdict::Excluded(Exclusion::Unread),
        // A delay of tokometer may hide a pause.
        _ if record.gaps.stalls.is_none() => Verdict::Excluded(Exclusion::Unknown),
        _ => Verdict::Good,
    }
}

/// Bad if the availability is bad, or if any other objective whose scope covers the request is missed.
fn goodput(record: &Record, model: Option<&str>, settings: &Settings) -> Verdict {
    let available = availability(record, settings);
    if let Verdict::Bad(_) = available {
        return available;
    }
    let others = settings.objectives.iter().filter(|other| !matches!(other.goal, Goal::Availability | Goal::Goodput));
    others
        .filter(|other| concerns(other, record, model))
        .map(|other| verdict(record, model, other, settings))
        .find(|verdict| matches!(verdict, Verdict::Bad(_)))
        .unwrap_or(available)
}
