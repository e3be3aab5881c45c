//! Entries about the engine's own spans. These series exist only where spans are received.

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
    "Engine spans received; these metrics exist only where spans are received",
);

pub(super) const FORWARDED: Metric = counter(
    Id::EngineSpansForwarded,
    "tokometer.engine_spans.forwarded",
    "{span}",
    Scope::Process,
    "Engine spans accepted by the collector",
);

pub(super) const DROPPED: Metric = by(
    counter(
        Id::EngineSpansDropped,
        "tokometer.engine_spans.dropped",
        "{span}",
        Scope::Process,
        "Engine spans received that did not reach the collector",
    ),
    &[Key::Reason],
);

pub(super) const UNJOINED: Metric = by(
    counter(
        Id::EngineSpansUnjoined,
        "tokometer.engine_spans.unjoined",
        "{span}",
        Scope::Process,
        "Engine spans of requests that matched no observed request",
    ),
    &[Key::Reason],
);

pub(super) const REFUSED: Metric = by(
    counter(
        Id::EngineMessagesRefused,
        "tokometer.engine_spans.messages.refused",
        "{message}",
        Scope::Process,
        "Export requests rejected with an error; an engine that receives `busy` retries them",
    ),
    &[Key::Reason],
);

pub(super) const WAITING: Metric = gauge(
    Id::EngineMessagesWaiting,
    "tokometer.engine_spans.messages.waiting",
    "By",
    "Bytes of export requests being read or waiting to be forwarded",
);

pub(super) const JOINS: Metric = by(
    counter(
        Id::SpanJoins,
        "tokometer.span_joins",
        "{exchange}",
        Scope::Process,
        "Requests by result of the search for their engine span; counted only while spans arrive",
    ),
    &[Key::Result],
);

pub(super) const HELD: Metric =
    gauge(Id::SpanJoinsHeld, "tokometer.span_joins.held", "{exchange}", "Requests waiting for their engine span");
