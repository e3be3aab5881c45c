//! The entries about the engine's own spans; there are such series only where spans are received.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::gauge;

pub(super) const RECEIVED: Metric = counter(
    Id::EngineSpansReceived,
    "tokometer.engine_spans.received",
    "{span}",
    Scope::Process,
    "Spans of the engine that were received; there are such metrics only where spans are received",
);

pub(super) const FORWARDED: Metric = counter(
    Id::EngineSpansForwarded,
    "tokometer.engine_spans.forwarded",
    "{span}",
    Scope::Process,
    "Spans of the engine that the collector took",
);

pub(super) const DROPPED: Metric = by(
    counter(
        Id::EngineSpansDropped,
        "tokometer.engine_spans.dropped",
        "{span}",
        Scope::Process,
        "Spans of the engine that were received and did not get to the collector",
    ),
    &[Key::Reason],
);

pub(super) const UNJOINED: Metric = by(
    counter(
        Id::EngineSpansUnjoined,
        "tokometer.engine_spans.unjoined",
        "{span}",
        Scope::Process,
        "Spans of requests that were joined to no exchange",
    ),
    &[Key::Reason],
);

pub(super) const REFUSED: Metric = by(
    counter(
        Id::EngineMessagesRefused,
        "tokometer.engine_spans.messages.refused",
        "{message}",
        Scope::Process,
        "Export requests that were answered with an error; an engine that was told `busy` sends them again",
    ),
    &[Key::Reason],
);

pub(super) const WAITING: Metric = gauge(
    Id::EngineMessagesWaiting,
    "tokometer.engine_spans.messages.waiting",
    "By",
    "Bytes of export requests that are being read or wait to be forwarded",
);

pub(super) const JOINS: Metric = by(
    counter(
        Id::SpanJoins,
        "tokometer.span_joins",
        "{exchange}",
        Scope::Process,
        "Exchanges by what came of looking for the engine's span; counted only while spans come",
    ),
    &[Key::Result],
);

pub(super) const HELD: Metric =
    gauge(Id::SpanJoinsHeld, "tokometer.span_joins.held", "{exchange}", "Exchanges that wait for the engine's span");
