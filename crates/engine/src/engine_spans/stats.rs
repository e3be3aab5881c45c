//! What became of spans and of the exchanges that waited for them: counted here, shown as metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A closed set of reasons, each with a word.
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $reason:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$meaning])* $reason,)*
        }

        impl $name {
            /// Every one, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$reason,)*];

            /// The value of the label.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$reason => $word,)*
                }
            }
        }
    };
}

reasons! {
    /// What came of looking for an exchange's span.
    Join {
        /// Joined by the id of the answer.
        Id = "joined_by_id",
        /// Joined by the caller's trace and span.
        Trace = "joined_by_trace",
        /// The answer told its queue time itself, and the span says the same.
        Confirmed = "confirmed",
        /// The answer told its queue time itself, and the span says something else; the answer's stands.
        Differs = "differs",
        /// The exchange had gone on without its span: it had not ended well, or had several choices.
        Late = "late",
        /// No span came in time.
        NoSpan = "no_span",
        /// Several exchanges or spans had the id.
        Ambiguous = "ambiguous",
        /// The span was longer than the exchange.
        Contradicted = "contradicted",
        /// No spans come from this server: the exchange was not held.
        Silent = "silent",
        /// As many exchanges as may be were waiting already.
        Full = "full",
    }
}

reasons! {
    /// Why a request's span was joined to no exchange.
    Lost {
        /// No exchange has its id: it was not relayed here, or its connection was not read.
        NoExchange = "no_exchange",
        /// Another span has the same id.
        Ambiguous = "ambiguous",
        /// It was longer than its exchange.
        Contradicted = "contradicted",
    }
}

reasons! {
    /// Why a message of the engine was not taken. It is told so, and may send it again.
    Refusal {
        /// It is no export request, or is not compressed as it says.
        Malformed = "malformed",
        /// It is over the cap.
        TooLarge = "too_large",
        /// Waiting messages take as much memory as they may.
        Busy = "busy",
        /// It did not come in time.
        Timeout = "timeout",
        /// Its form (JSON) or its signal (metrics, logs) is not taken.
        Unsupported = "unsupported",
    }
}

reasons! {
    /// Why spans did not get to the collector.
    Unsent {
        /// The collector does not take this message.
        Refused = "refused",
        /// The collector took the message, and not all of its spans.
        Rejected = "rejected",
        /// The collector did not take it in time, however often it was tried.
        GivenUp = "given_up",
        /// There was no time left at the end.
        Shutdown = "shutdown",
    }
}

/// Counts by reason.
type Counts<const N: usize> = [AtomicU64; N];

/// All counts, since the start of the process.
#[derive(Debug, Default)]
pub struct Figures {
    received: AtomicU64,
    forwarded: AtomicU64,
    held: AtomicUsize,
    waiting_bytes: AtomicUsize,
    joins: Counts<10>,
    lost: Counts<3>,
    refusals: Counts<5>,
    unsent: Counts<4>,
    refused_connections: AtomicU64,
}

impl Figures {
    /// Spans in messages that were taken.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Spans that the collector took.
    pub fn forwarded(&self) -> u64 {
        self.forwarded.load(Relaxed)
    }

    /// Exchanges that wait for their span now.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Bytes of messages that are being read or wait to be forwarded now.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Relaxed)
    }

    /// Connections that were closed at once: there were as many as may be.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Relaxed)
    }

    /// Exchanges, by what came of looking for their span.
    pub fn joins(&self, of: Join) -> u64 {
        self.joins[of as usize].load(Relaxed)
    }

    /// Spans of requests that were joined to no exchange.
    pub fn lost(&self, why: Lost) -> u64 {
        self.lost[why as usize].load(Relaxed)
    }

    /// Messages that were not taken.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refusals[why as usize].load(Relaxed)
    }

    /// Spans that were taken and did not get to the collector.
    pub fn unsent(&self, why: Unsent) -> u64 {
        self.unsent[why as usize].load(Relaxed)
    }

    pub(crate) fn receive(&self, spans: u64) {
        self.received.fetch_add(spans, Relaxed);
    }

    pub(crate) fn forward(&self, spans: u64) {
        self.forwarded.fetch_add(spans, Relaxed);
    }

    pub(crate) fn hold(&self, exchanges: usize) {
        self.held.store(exchanges, Relaxed);
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
