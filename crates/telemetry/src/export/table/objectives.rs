//! The entries about objectives.

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
        "Exchanges that an objective judged; bad ones say why",
    ),
    &[Key::Slo, Key::Model, Key::Verdict, Key::Reason],
);

pub(super) const EXCLUDED: Metric = by(
    counter(
        Id::SloExcluded,
        "tokometer.slo.excluded",
        "{exchange}",
        Scope::Process,
        "Exchanges that an objective is about but did not judge: the server was not the cause, or too little is known",
    ),
    &[Key::Slo, Key::Model, Key::Reason],
);

pub(super) const GOOD_TOKENS: Metric = by(
    counter(
        Id::SloGoodTokens,
        "tokometer.slo.good_output.tokens",
        "{token}",
        Scope::Process,
        "Output tokens of exchanges that were good by an objective of goodput",
    ),
    &[Key::Slo, Key::Model, Key::Source],
);

pub(super) const OBJECTIVE: Metric = by(
    gauge(Id::SloObjective, "tokometer.slo.objective", "1", "Share of good exchanges that an objective aims at"),
    &[Key::Slo],
);

pub(super) const THRESHOLD: Metric = by(
    gauge(Id::SloThreshold, "tokometer.slo.threshold", "", "Limit of an objective, in the unit that its name tells"),
    &[Key::Slo, Key::Threshold],
);
