//! Receivers of measurements: implemented by `export`, by `replay` and by tests.

use std::sync::Arc;
use std::time::Duration;

use crate::measure::Opening;
use crate::measure::Record;
use crate::measure::UncountedText;
use crate::measure::Watches;
use tokometer_decode::Route;

/// Labels of a series. Free text is as received (truncated to 128 bytes); the sink interns and limits it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// Index of the listener.
    pub pair: usize,
    /// Route of the request.
    pub route: Route,
    /// `gen_ai.provider.name`: `vllm`, `sglang`, `llama_cpp`, ... `None` until the engine is recognised.
    pub engine: Option<&'static str>,
    /// `model` of the request.
    pub request_model: Option<Box<str>>,
    /// `model` of the response.
    pub response_model: Option<Box<str>>,
    /// The response is an event stream (`None` if there was no response and the request did not specify).
    pub streaming: Option<bool>,
}

/// Phase of an open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No token yet.
    WaitingFirstToken,
    /// Tokens are arriving.
    Streaming,
}

/// The gap before one token-bearing event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Time since the previous token-bearing event.
    pub gap: Duration,
    /// Tokens in the event, if known: the event counts as this many inter-token latencies of gap / tokens.
    pub tokens: Option<u32>,
}

/// Why an observer stopped parsing its connection. The relay continues to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Detach {
    /// The connection switched to another protocol (101, or CONNECT).
    Upgraded,
    /// The first bytes are not HTTP.
    NotHttp,
    /// Request headers or a frame that RFC 9112 or 9113 does not allow, or an ambiguous message length.
    MalformedRequest,
    /// Response headers, a chunk or a frame that RFC 9112 or 9113 does not allow, or an ambiguous message length.
    MalformedResponse,
    /// A WebSocket frame with a length that RFC 6455 does not allow.
    MalformedFrame,
    /// Headers over the size limit.
    HeadTooLarge,
    /// A response without a request.
    UnexpectedResponse,
    /// HTTP/2 header compression that RFC 7541 does not allow: later headers cannot be decoded either.
    HeaderCompression,
    /// A header compression table over the size limit.
    HeaderTableTooLarge,
    /// HTTP/2 header blocks that decode to far more bytes than the connection carried.
    HeaderExpansion,
    /// The memory budget had no room for the connection's state.
    Memory,
    /// Parsing the connection took more CPU time than its bytes allow.
    Work,
    /// The observer panicked.
    Panic,
    /// The limit of observed connections was reached: observers are shed before traffic is.
    Shed,
}

impl Detach {
    /// All reasons, in documentation order.
    pub const ALL: [Detach; 14] = [
        Detach::Upgraded,
        Detach::NotHttp,
        Detach::MalformedRequest,
        Detach::MalformedResponse,
        Detach::MalformedFrame,
        Detach::HeadTooLarge,
        Detach::UnexpectedResponse,
        Detach::HeaderCompression,
        Detach::HeaderTableTooLarge,
        Detach::HeaderExpansion,
        Detach::Memory,
        Detach::Work,
        Detach::Panic,
        Detach::Shed,
    ];

    /// Value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Detach::Upgraded => "upgraded",
            Detach::NotHttp => "not_http",
            Detach::MalformedRequest => "malformed_request",
            Detach::MalformedResponse => "malformed_response",
            Detach::MalformedFrame => "malformed_frame",
            Detach::HeadTooLarge => "head_too_large",
            Detach::UnexpectedResponse => "unexpected_response",
            Detach::HeaderCompression => "header_compression",
            Detach::HeaderTableTooLarge => "header_table_too_large",
            Detach::HeaderExpansion => "header_expansion",
            Detach::Memory => "memory",
            Detach::Work => "work",
            Detach::Panic => "panic",
            Detach::Shed => "shed",
        }
    }
}

/// The message that a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// Sent by the client.
    Request,
    /// Sent by the server.
    Response,
}

impl Message {
    /// Both messages.
    pub const ALL: [Message; 2] = [Message::Request, Message::Response];

    /// Value of the label `direction`.
    pub fn as_str(self) -> &'static str {
        match self {
            Message::Request => "request",
            Message::Response => "response",
        }
    }
}

/// Why a body was not parsed, or not to its end. Its connection is still observed, and its bytes are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unread {
    /// An unknown content or transfer coding.
    UnknownCoding,
    /// More nested codings than are decoded.
    TooManyCodings,
    /// The body does not match its coding.
    Corrupt,
    /// The decompression window is over the limit.
    Window,
    /// Its connection used up the decoding allowance earned by the received bytes.
    Ratio,
    /// The memory budget had no room.
    Memory,
}

impl Unread {
    /// All reasons, in documentation order.
    pub const ALL: [Unread; 6] =
        [Unread::UnknownCoding, Unread::TooManyCodings, Unread::Corrupt, Unread::Window, Unread::Ratio, Unread::Memory];

    /// Value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Unread::UnknownCoding => "unknown_coding",
            Unread::TooManyCodings => "too_many_codings",
            Unread::Corrupt => "corrupt",
            Unread::Window => "window",
            Unread::Ratio => "ratio",
            Unread::Memory => "memory",
        }
    }
}

/// Receives measurements. Called from the data path's threads: must not block and must not allocate per token. Override
/// only the callbacks you need; a sink that wraps another one must forward all of them.
pub trait Sink: Send + Sync + 'static {
    /// A request entered (`+1`) or left (`-1`) this phase.
    fn in_flight(&self, _pair: usize, _phase: Phase, _delta: i64) {}

    /// Returns the handles for the series of these labels; called once per request, at its first token. `None` if the
    /// sink needs no updates while a stream runs.
    fn live(&self, _labels: &Labels) -> Option<Arc<dyn Live>> {
        None
    }

    /// A request that makes the server work was opened. The returned watches are notified of its progress; return none
    /// if only its end matters.
    fn opened(&self, _opening: &Opening) -> Watches {
        Watches::default()
    }

    /// A request ended. Called exactly once per request, including those that an observer detached from or lost.
    fn record(&self, record: &Record);

    /// Called instead of [`Sink::record`] if the response text was kept and no exact token count is known. A sink that
    /// counts tokens takes the text out; all others leave it in place.
    fn record_with_text(&self, record: &Record, _text: &mut Option<UncountedText>) {
        self.record(record);
    }

    /// An observer stopped parsing a connection of this listener.
    fn detached(&self, _pair: usize, _why: Detach) {}

    /// A body that should have been parsed was not, or not to its end.
    fn unread(&self, _pair: usize, _of: Message, _why: Unread) {}
}

/// Resolved handles of one label set, for updates while a stream runs.
pub trait Live: Send + Sync {
    /// Gaps and tokens since the last call, in batches to keep locking rare. The token count is a lower bound.
    fn progress(&self, gaps: &[Gap], tokens: u64);

    /// A gap over the stall threshold is open or has just ended; called once per gap.
    fn stalled(&self);

    /// Called at the end: the exact count exceeds the sum passed to [`Live::progress`] by this many tokens.
    fn reconcile(&self, tokens: u64);
}

/// Used if no sink needs updates while a stream runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unmoved;

impl Live for Unmoved {
    fn progress(&self, _gaps: &[Gap], _tokens: u64) {}

    fn stalled(&self) {}

    fn reconcile(&self, _tokens: u64) {}
}
