//! Receivers of measurements, and stages in front of them.

use std::sync::Arc;
use std::time::Duration;

use crate::measure::{Opening, Record, UncountedText, Watches};
use tokometer_decode::Route;
use tokometer_metrics::closed_enum;

/// Labels of a series. Free text is as received (truncated to 128 bytes); the sink limits the number of values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// Index of the listener.
    pub listener: usize,
    /// Route of the request.
    pub route: Route,
    /// `gen_ai.provider.name`: `vllm`, `sglang`, `llama_cpp`, ... `None` until the engine is recognised.
    pub engine: Option<&'static str>,
    /// `model` of the request.
    pub request_model: Option<Box<str>>,
    /// `model` of the response.
    pub response_model: Option<Box<str>>,
    /// The response is an event stream. `None` if there was no response and the request did not set `stream`.
    pub streaming: Option<bool>,
}

closed_enum! {
    /// Phase of an open request.
    pub enum Phase {
        /// A stream without a token so far, or a request that is not complete yet.
        WaitingFirstToken = "waiting_first_token",
        /// The response is not streamed: queue, prefill and decode cannot be distinguished.
        Unstreamed = "unstreamed",
        /// Tokens are arriving.
        Streaming = "streaming",
    }
}

/// The gap before a token-bearing event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Time since the previous token-bearing event.
    pub gap: Duration,
    /// Tokens in the event, if known. The event then counts as this many inter-token latencies of gap / tokens.
    pub tokens: Option<u32>,
}

closed_enum! {
    /// Why an observer could not parse a part of its connection. The bytes are still forwarded, and requests are counted
    /// as unobserved where they can be recognised.
    pub enum Detach {
        /// The connection switched to another protocol (101, or CONNECT).
        Upgraded = "upgraded",
        /// The first bytes are not HTTP.
        NotHttp = "not_http",
        /// The client uses TLS on a listener without a certificate, or the server responds in TLS to a plain
        /// connection.
        Tls = "tls",
        /// Request headers, a chunk or a frame that servers reject or interpret differently, or an ambiguous message length.
        MalformedRequest = "malformed_request",
        /// Response headers, a chunk or a frame invalid under RFC 9112 or 9113, or an ambiguous message length.
        MalformedResponse = "malformed_response",
        /// A WebSocket frame with a length invalid under RFC 6455.
        MalformedFrame = "malformed_frame",
        /// Headers over the size limit.
        HeadTooLarge = "head_too_large",
        /// A response without a request, or to a request that was not recognised.
        UnexpectedResponse = "unexpected_response",
        /// HTTP/2 header compression invalid under RFC 7541: later headers cannot be decoded either.
        HeaderCompression = "header_compression",
        /// A header compression table over the size limit.
        HeaderTableTooLarge = "header_table_too_large",
        /// HTTP/2 header blocks that decode to far more bytes than the connection carried.
        HeaderExpansion = "header_expansion",
        /// The memory budget had no room for the connection state, or took it back while the connection was idle.
        Memory = "memory",
        /// Parsing the connection took more CPU time than its bytes allow.
        Work = "work",
        /// The observer panicked.
        Panic = "panic",
        /// The connection was accepted when the limit of observed connections or the memory budget was reached.
        Shed = "shed",
        /// The packet capture lacks bytes of the connection.
        CaptureGap = "capture_gap",
    }
}

closed_enum! {
    /// The message that a body belongs to.
    pub enum Message {
        /// Sent by the client.
        Request = "request",
        /// Sent by the server.
        Response = "response",
    }
}

closed_enum! {
    /// Why a body was not parsed to its end. The connection is still observed, and its bytes are forwarded.
    pub enum Unread {
        /// An unknown content or transfer coding.
        UnknownCoding = "unknown_coding",
        /// More codings on top of each other than the decoder supports.
        TooManyCodings = "too_many_codings",
        /// The body does not match its coding.
        Corrupt = "corrupt",
        /// The decompression window exceeds the limit.
        Window = "window",
        /// The connection used up its decoding allowance, which grows with received bytes.
        Ratio = "ratio",
        /// The memory budget had no room.
        Memory = "memory",
        /// The type of the body is not supported, or nothing in it is known.
        UnknownFormat = "unknown_format",
    }
}

/// Receives measurements. Called from data path threads: must not block, and must not allocate per token. Override only
/// the callbacks you need. A sink that wraps another sink must forward all callbacks.
pub trait Sink: Send + Sync + 'static {
    /// A request entered (`+1`) or left (`-1`) this phase.
    fn in_flight(&self, _listener: usize, _phase: Phase, _delta: i64) {}

    /// Returns the handle for the series of these labels. Called once per request, at its first token. `None` if the
    /// sink needs no updates while a stream runs.
    fn live(&self, _labels: &Labels) -> Option<Arc<dyn Live>> {
        None
    }

    /// A request that uses the model was opened. The returned watches are notified of its progress; return none if only
    /// the record is needed.
    fn opened(&self, _opening: &Opening) -> Watches {
        Watches::default()
    }

    /// A request ended. Called exactly once per request, even if its observer detached or panicked.
    fn record(&self, record: &Arc<Record>);

    /// Called instead of [`Sink::record`] if the response text was kept and the exact token count is unknown. A sink
    /// that counts tokens takes the text; other sinks leave it in place.
    fn record_with_text(&self, record: &Arc<Record>, _text: &mut Option<UncountedText>) {
        self.record(record);
    }

    /// An observer could not parse a part of a connection on this listener.
    fn detached(&self, _listener: usize, _why: Detach) {}

    /// Bytes of a connection on this listener in which requests cannot be recognised.
    fn unparsed(&self, _listener: usize, _of: Message, _bytes: usize) {}

    /// A body was not parsed to its end, although its route is decoded.
    fn unread(&self, _listener: usize, _of: Message, _why: Unread) {}
}

/// A sink that delays some records until more data is available, for a bounded time and in bounded memory, and forwards
/// each record exactly once. All other calls are forwarded immediately.
pub trait Stage: Send + Sync + 'static {
    /// The sink that records are forwarded to.
    fn next(&self) -> &Arc<dyn Sink>;

    /// A request ended. Called from data path threads: must not block.
    fn record(&self, record: &Arc<Record>);

    /// See [`Sink::record_with_text`].
    fn record_with_text(&self, record: &Arc<Record>, _text: &mut Option<UncountedText>) {
        self.record(record);
    }
}

impl<S: Stage> Sink for S {
    fn in_flight(&self, listener: usize, phase: Phase, delta: i64) {
        self.next().in_flight(listener, phase, delta);
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        self.next().live(labels)
    }

    fn opened(&self, opening: &Opening) -> Watches {
        self.next().opened(opening)
    }

    fn record(&self, record: &Arc<Record>) {
        Stage::record(self, record);
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        Stage::record_with_text(self, record, text);
    }

    fn detached(&self, listener: usize, why: Detach) {
        self.next().detached(listener, why);
    }

    fn unparsed(&self, listener: usize, of: Message, bytes: usize) {
        self.next().unparsed(listener, of, bytes);
    }

    fn unread(&self, listener: usize, of: Message, why: Unread) {
        self.next().unread(listener, of, why);
    }
}

/// Handle for the series of one label set, for updates while a stream runs.
pub trait Live: Send + Sync {
    /// Adds the gaps and tokens since the last call, in batches so that locks are rarely taken. The token count is a
    /// lower bound.
    fn progress(&self, gaps: &[Gap], tokens: u64);

    /// A stall has ended: a pause above the threshold. Called once per stall.
    fn stalled(&self);

    /// Called at the end: the exact count exceeds the total passed to [`Live::progress`] by this many tokens.
    fn reconcile(&self, tokens: u64);
}
