//! Statistics of spans and of requests waiting for spans, exported as metrics.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Counter, Points, closed_enum};

use crate::engine_spans::message::Budget;

closed_enum! {
    /// Result of the search for a request's span.
    pub enum Join {
        /// Joined by the response id.
        Id = "joined_by_id",
        /// Joined by the caller's trace and span.
        Trace = "joined_by_trace",
        /// The response reported its own queue time, and the span agrees.
        Confirmed = "confirmed",
        /// The response reported its own queue time, and the span differs; the response's value is kept.
        Differs = "differs",
        /// A span arrived for a request whose record did not wait, because the request was incomplete or had several
        /// choices.
        Late = "late",
        /// No span arrived in time.
        NoSpan = "no_span",
        /// Several requests or spans had the same id.
        Ambiguous = "ambiguous",
        /// The span was longer than the request.
        Contradicted = "contradicted",
        /// The server's spans have stopped arriving, so the request did not wait.
        Silent = "silent",
        /// The maximum number of requests was already waiting.
        Full = "full",
    }
}

closed_enum! {
    /// Why a request's span matched no request record.
    pub enum Lost {
        /// No request has the span's id: the request was not relayed here, or its connection was not parsed.
        NoRequest = "no_exchange",
        /// Another span has the same id.
        Ambiguous = "ambiguous",
        /// The span was longer than its request.
        Contradicted = "contradicted",
    }
}

closed_enum! {
    /// Why a message of the engine was refused. The engine receives the reason and may retry.
    pub enum Refusal {
        /// The message is not an export request, or its compression is invalid.
        Malformed = "malformed",
        /// The message exceeds the maximum size.
        TooLarge = "too_large",
        /// Waiting messages use all of the memory budget.
        Busy = "busy",
        /// The message did not arrive in time.
        Timeout = "timeout",
        /// The format (JSON) or the signal (metrics, logs) is not supported.
        Unsupported = "unsupported",
    }
}

closed_enum! {
    /// Why spans did not reach the collector.
    pub enum Unsent {
        /// The collector refused the message.
        Refused = "refused",
        /// The collector accepted the message, but not all of its spans.
        Rejected = "rejected",
        /// The collector did not accept the message in time, despite retries.
        GivenUp = "given_up",
        /// Shutdown left no time to forward the spans.
        Shutdown = "shutdown",
    }
}

/// All counts since the process started.
#[derive(Debug, Default)]
pub struct Measurements {
    /// Spans in accepted messages.
    pub received: Counter,
    /// Spans accepted by the collector.
    pub forwarded: Counter,
    /// Connections closed immediately because the maximum number was open.
    pub refused_connections: Counter,
    /// Memory for messages while they are read.
    pub(crate) reading: Budget,
    /// Memory for messages that wait to be forwarded.
    pub(crate) waiting: Budget,
    pub(crate) held: AtomicUsize,
    joins: [Counter; Join::ALL.len()],
    lost: [Counter; Lost::ALL.len()],
    refusals: [Counter; Refusal::ALL.len()],
    unsent: [Counter; Unsent::ALL.len()],
}

impl Measurements {
    /// Creates zeroed counts, and budgets of these sizes (in bytes) for messages being read and messages waiting to be
    /// forwarded.
    pub(crate) fn new(reading: usize, waiting: usize) -> Measurements {
        Measurements { reading: Budget::new(reading), waiting: Budget::new(waiting), ..Measurements::default() }
    }

    /// Requests currently waiting for their span.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Bytes of messages currently being read or waiting to be forwarded.
    pub fn waiting_bytes(&self) -> usize {
        self.reading.used() + self.waiting.used()
    }

    /// Requests by result of the search for their span.
    pub fn joins(&self, of: Join) -> &Counter {
        &self.joins[of as usize]
    }

    /// Spans that matched no request record.
    pub fn lost(&self, why: Lost) -> &Counter {
        &self.lost[why as usize]
    }

    /// Messages that were refused.
    pub fn refused(&self, why: Refusal) -> &Counter {
        &self.refusals[why as usize]
    }

    /// Accepted spans that did not reach the collector.
    pub fn unsent(&self, why: Unsent) -> &Counter {
        &self.unsent[why as usize]
    }
}

impl Collect for Measurements {
    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::EngineSpansReceived, &[], self.received.get());
        points.put(Id::EngineSpansForwarded, &[], self.forwarded.get());
        points.put(Id::EngineMessagesWaiting, &[], self.waiting_bytes());
        points.put(Id::SpanJoinsHeld, &[], self.held());
        let (unsent, refused) = (Unsent::ALL, Refusal::ALL);
        points.put_each(Id::EngineSpansDropped, Key::Reason, unsent.map(|why| (why.as_str(), self.unsent(why).get())));
        points.put_each(
            Id::EngineMessagesRefused,
            Key::Reason,
            refused.map(|why| (why.as_str(), self.refused(why).get())),
        );
        points.put(Id::EngineMessagesRefused, &[(Key::Reason, "connections".into())], self.refused_connections.get());
        let (lost, joins) = (Lost::ALL, Join::ALL);
        points.put_each(Id::EngineSpansUnjoined, Key::Reason, lost.map(|why| (why.as_str(), self.lost(why).get())));
        points.put_each(Id::SpanJoins, Key::Result, joins.map(|join| (join.as_str(), self.joins(join).get())));
    }
}
