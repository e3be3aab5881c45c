//! Statistics of spans and of the requests waiting for them, exported as metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tokometer_observe::closed_enum;

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
        /// The request was passed on without its span: it did not complete, or had several choices.
        Late = "late",
        /// No span arrived in time.
        NoSpan = "no_span",
        /// Several requests or spans had the id.
        Ambiguous = "ambiguous",
        /// The span was longer than the request.
        Contradicted = "contradicted",
        /// No spans arrive from this server: the request was not held.
        Silent = "silent",
        /// The maximum number of requests was already waiting.
        Full = "full",
    }
}

closed_enum! {
    /// Why a request's span matched no request record.
    pub enum Lost {
        /// No request has its id: it was not relayed here, or its connection was not read.
        NoRequest = "no_exchange",
        /// Another span has the same id.
        Ambiguous = "ambiguous",
        /// It was longer than its request.
        Contradicted = "contradicted",
    }
}

closed_enum! {
    /// Why a message of the engine was refused. The engine receives the reason and may retry.
    pub enum Refusal {
        /// It is not an export request, or its compression is invalid.
        Malformed = "malformed",
        /// It exceeds the maximum size.
        TooLarge = "too_large",
        /// Waiting messages use all of the memory budget.
        Busy = "busy",
        /// It did not arrive in time.
        Timeout = "timeout",
        /// Its format (JSON) or its signal (metrics, logs) is not supported.
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
        /// The collector did not accept it in time, despite retries.
        GivenUp = "given_up",
        /// Shutdown left no time.
        Shutdown = "shutdown",
    }
}

/// All counts since the process started.
#[derive(Debug, Default)]
pub struct Measurements {
    received: AtomicU64,
    forwarded: AtomicU64,
    held: AtomicUsize,
    waiting_bytes: AtomicUsize,
    joins: [AtomicU64; Join::ALL.len()],
    lost: [AtomicU64; Lost::ALL.len()],
    refusals: [AtomicU64; Refusal::ALL.len()],
    unsent: [AtomicU64; Unsent::ALL.len()],
    refused_connections: AtomicU64,
}

impl Measurements {
    /// Spans in accepted messages.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Spans accepted by the collector.
    pub fn forwarded(&self) -> u64 {
        self.forwarded.load(Relaxed)
    }

    /// Requests currently waiting for their span.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Bytes of messages currently being read or waiting to be forwarded.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Relaxed)
    }

    /// Connections closed at once because the maximum was open.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Relaxed)
    }

    /// Requests by result of the search for their span.
    pub fn joins(&self, of: Join) -> u64 {
        self.joins[of as usize].load(Relaxed)
    }

    /// Spans that matched no request record.
    pub fn lost(&self, why: Lost) -> u64 {
        self.lost[why as usize].load(Relaxed)
    }

    /// Messages that were refused.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refusals[why as usize].load(Relaxed)
    }

    /// Accepted spans that did not reach the collector.
    pub fn unsent(&self, why: Unsent) -> u64 {
        self.unsent[why as usize].load(Relaxed)
    }

    pub(crate) fn receive(&self, spans: u64) {
        self.received.fetch_add(spans, Relaxed);
    }

    pub(crate) fn forward(&self, spans: u64) {
        self.forwarded.fetch_add(spans, Relaxed);
    }

    pub(crate) fn hold(&self, requests: usize) {
        self.held.store(requests, Relaxed);
    }

    pub(crate) fn occupy(&self, bytes: usize) {
        self.waiting_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn vacate(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn join(&self, of: Join) {
        self.joins[of as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn lose(&self, why: Lost, spans: u64) {
        self.lost[why as usize].fetch_add(spans, Relaxed);
    }

    pub(crate) fn refuse(&self, why: Refusal) {
        self.refusals[why as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn unsend(&self, why: Unsent, spans: u64) {
        self.unsent[why as usize].fetch_add(spans, Relaxed);
    }

    pub(crate) fn refuse_connection(&self) {
        self.refused_connections.fetch_add(1, Relaxed);
    }
}
