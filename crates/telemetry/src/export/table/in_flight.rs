//! The entries about what is in flight, and what was a moment ago.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::entry;
use crate::export::table::build::gauge;

/// The value of this moment, of a pair.
const fn of_pair(id: Id, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Gauge, Scope::Server, help)
}

pub(super) const MEAN_AGE: Metric = by(
    of_pair(
        Id::InFlightMeanAge,
        "tokometer.in_flight.age.mean",
        "s",
        "Mean age of the exchanges in flight, from the first bytes of their requests; absent when there is none",
    ),
    &[Key::Phase],
);

pub(super) const OLDEST: Metric = by(
    of_pair(
        Id::InFlightOldest,
        "tokometer.in_flight.age.max",
        "s",
        "Age of the oldest exchange in flight; absent when there is none",
    ),
    &[Key::Phase],
);

pub(super) const WAITED: Metric = by(
    of_pair(
        Id::InFlightWaited,
        "tokometer.in_flight.wait.max",
        "s",
        "Longest that an exchange in flight has waited for its next token, its first one while it has none; absent when there is none",
    ),
    &[Key::Phase],
);

pub(super) const STALLED: Metric = of_pair(
    Id::InFlightStalled,
    "tokometer.in_flight.stalled",
    "{exchange}",
    "Streams whose next token is over the stall threshold, and whose clients take bytes",
);

pub(super) const HELD_UP: Metric = of_pair(
    Id::InFlightHeldUp,
    "tokometer.in_flight.held_up",
    "{exchange}",
    "Exchanges in flight whose clients take no bytes",
);

pub(super) const UNTRACKED: Metric = counter(
    Id::InFlightUntracked,
    "tokometer.in_flight.untracked",
    "{exchange}",
    Scope::Process,
    "Exchanges that were not watched while in flight: there were more than live.max_in_flight",
);

pub(super) const SILENCE: Metric = of_pair(
    Id::EngineSilence,
    "tokometer.engine.silence",
    "s",
    "How long no token has come to anybody while the engine owed some; 0 when it owes nothing",
);

pub(super) const SILENCE_BOUND: Metric = of_pair(
    Id::EngineSilenceBound,
    "tokometer.engine.silence.bound",
    "s",
    "How long the engine may be silent with what is in flight; absent when it owes nothing",
);

pub(super) const WEDGED: Metric = of_pair(
    Id::EngineWedged,
    "tokometer.engine.wedged",
    "",
    "1 while the engine has been silent for longer than its bound, so that /engine/healthz says 503; else 0",
);

pub(super) const RECENT: Metric = gauge(
    Id::RecentExchanges,
    "tokometer.recent.exchanges",
    "{exchange}",
    "Ended exchanges that are kept for /exchanges",
);

pub(super) const RECENT_MEMORY: Metric =
    gauge(Id::RecentMemory, "tokometer.recent.memory", "By", "Bytes that ended exchanges take");

pub(super) const RECENT_DROPPED: Metric = counter(
    Id::RecentDropped,
    "tokometer.recent.dropped",
    "{exchange}",
    Scope::Process,
    "Ended exchanges that were not kept: they came faster than they could be put away",
);

pub(super) const RECORDS_DROPPED: Metric = counter(
    Id::RecordsDropped,
    "tokometer.records.dropped",
    "{request}",
    Scope::Process,
    "Requests whose records were dropped because too many waited to be counted: of them tokometer.exchanges alone counts, by operation, server and outcome",
);

pub(super) const ACCESS_LOG_DROPPED: Metric = by(
    counter(
        Id::AccessLogDropped,
        "tokometer.access_log.dropped",
        "{line}",
        Scope::Process,
        "Lines of the access log that were lost; absent where none is written",
    ),
    &[Key::Reason],
);
