//! Entries about objectives.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::gauge;

pub(super) const EVENTS: Metric = by(
    counter(
        Id::SloEvents,
        "tokometer.slo.events",
        "{exchange}",
        Scope::Process,
        "Requests evaluated by an objective; bad ones carry the reason",
    ),
    &[Key::Slo, Key::Model, Key::Verdict, Key::Reason],
);

pub(super) const EXCLUDED: Metric = by(
    counter(
        Id::SloExcluded,
        "tokometer.slo.excluded",
        "{exchange}",
        Scope::Process,
        "Requests in scope of an objective but not evaluated: the server was not the cause, or too little is known",
    ),
    &[Key::Slo, Key::Model, Key::Reason],
);

pub(super) const GOOD_TOKENS: Metric = by(
    counter(
        Id::SloGoodTokens,
        "tokometer.slo.good_output.tokens",
        "{token}",
        Scope::Process,
        "Output tokens of requests that met a goodput objective",
    ),
    &[Key::Slo, Key::Model, Key::Source],
);

pub(super) const OBJECTIVE: Metric = by(
    gauge(Id::SloObjective, "tokometer.slo.objective", "1", "Target share of good requests of an objective"),
    &[Key::Slo],
);

pub(super) const THRESHOLD: Metric = by(
    gauge(Id::SloThreshold, "tokometer.slo.threshold", "", "Limit of an objective, in the unit given by its name"),
    &[Key::Slo, Key::Threshold],
);
