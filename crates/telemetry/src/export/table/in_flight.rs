//! Entries about requests in flight and recently ended requests.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::entry;
use crate::export::table::build::gauge;

/// A current value of one listener.
const fn of_pair(id: Id, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Gauge, Scope::Server, help)
}

pub(super) const MEAN_AGE: Metric = by(
    of_pair(
        Id::InFlightMeanAge,
        "tokometer.in_flight.age.mean",
        "s",
        "Mean age of the requests in flight, from their first byte; absent when there is none",
    ),
    &[Key::Phase],
);

pub(super) const OLDEST: Metric = by(
    of_pair(
        Id::InFlightOldest,
        "tokometer.in_flight.age.max",
        "s",
        "Age of the oldest request in flight; absent when there is none",
    ),
    &[Key::Phase],
);

pub(super) const WAITED: Metric = by(
    of_pair(
        Id::InFlightWaited,
        "tokometer.in_flight.wait.max",
        "s",
        "Maximum time that a request in flight has waited for its next (or first) token; absent when there is none",
    ),
    &[Key::Phase],
);

pub(super) const STALLED: Metric = of_pair(
    Id::InFlightStalled,
    "tokometer.in_flight.stalled",
    "{exchange}",
    "Streams whose next token is overdue by the stall threshold and whose clients are not blocking",
);

pub(super) const HELD_UP: Metric = of_pair(
    Id::InFlightHeldUp,
    "tokometer.in_flight.held_up",
    "{exchange}",
    "Requests in flight that are blocked on a slow client (backpressure)",
);

pub(super) const UNTRACKED: Metric = counter(
    Id::InFlightUntracked,
    "tokometer.in_flight.untracked",
    "{exchange}",
    Scope::Process,
    "Requests not tracked while in flight because more than live.max_in_flight were open",
);

pub(super) const SILENCE: Metric = of_pair(
    Id::EngineSilence,
    "tokometer.engine.silence",
    "s",
    "Time since the engine last sent a token to any client while it had pending requests; 0 when it has none",
);

pub(super) const SILENCE_BOUND: Metric = of_pair(
    Id::EngineSilenceBound,
    "tokometer.engine.silence.bound",
    "s",
    "Maximum silence allowed for the requests in flight; absent when the engine has no pending request",
);

pub(super) const WEDGED: Metric = of_pair(
    Id::EngineWedged,
    "tokometer.engine.wedged",
    "",
    "1 while the engine has been silent for longer than its bound, so that /engine/healthz returns 503; else 0",
);

pub(super) const RECENT: Metric =
    gauge(Id::RecentExchanges, "tokometer.recent.exchanges", "{exchange}", "Ended requests kept for /exchanges");

pub(super) const RECENT_MEMORY: Metric =
    gauge(Id::RecentMemory, "tokometer.recent.memory", "By", "Memory used by the kept ended requests");

pub(super) const RECENT_DROPPED: Metric = counter(
    Id::RecentDropped,
    "tokometer.recent.dropped",
    "{exchange}",
    Scope::Process,
    "Ended requests not kept because they ended faster than they could be stored",
);

pub(super) const RECORDS_DROPPED: Metric = counter(
    Id::RecordsDropped,
    "tokometer.records.dropped",
    "{request}",
    Scope::Process,
    "Requests whose records were dropped because too many were waiting to be counted: only tokometer.exchanges counts them, by operation, server and outcome",
);

pub(super) const ACCESS_LOG_DROPPED: Metric = by(
    counter(
        Id::AccessLogDropped,
        "tokometer.access_log.dropped",
        "{line}",
        Scope::Process,
        "Access log lines lost; absent where no access log is written",
    ),
    &[Key::Reason],
);
