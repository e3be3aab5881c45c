//! Where numbers go: implemented by `export`, by `replay` and by tests.

use std::sync::Arc;
use std::time::Duration;

use crate::measure::Opening;
use crate::measure::Record;
use crate::measure::UncountedText;
use crate::measure::Watches;
use tokometer_decode::Route;

/// What series are told apart by. Free text comes as the wire had it (cut at 128 bytes); the sink interns and caps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels {
    /// Index of the listen -> upstream pair.
    pub pair: usize,
    /// What kind of request it is.
    pub route: Route,
    /// `gen_ai.provider.name`: `vllm`, `sglang`, `llama_cpp`, ... `None` while it is not recognised.
    pub engine: Option<&'static str>,
    /// `model` of the request.
    pub request_model: Option<Box<str>>,
    /// `model` of the answer.
    pub response_model: Option<Box<str>>,
    /// The answer is a stream of events (`None` when no answer came and the request did not say).
    pub streaming: Option<bool>,
}

/// Where an open exchange stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No token yet.
    WaitingFirstToken,
    /// Tokens are coming.
    Streaming,
}

/// The gap before one token-bearing event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Time since the token-bearing event before.
    pub gap: Duration,
    /// Tokens in the event, where known: the event stands for this many inter-token latencies of gap / tokens.
    pub tokens: Option<u32>,
}

/// Why an observer stopped reading its connection. The relay goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Detach {
    /// The connection switched to another protocol (101, or CONNECT).
    Upgraded,
    /// The first bytes are no HTTP.
    NotHttp,
    /// A request head or frame that RFC 9112 or 9113 does not allow, or two readings of its length.
    MalformedRequest,
    /// A response head, chunk or frame that RFC 9112 or 9113 does not allow, or two readings of its length.
    MalformedResponse,
    /// A frame of a WebSocket with a length that RFC 6455 does not allow.
    MalformedFrame,
    /// A head over its cap.
    HeadTooLarge,
    /// A response without a request.
    UnexpectedResponse,
    /// Header compression of HTTP/2 that RFC 7541 does not allow: what follows cannot be decoded either.
    HeaderCompression,
    /// A header compression table over its cap.
    HeaderTableTooLarge,
    /// Header blocks of HTTP/2 that decode to far more than their connection carried.
    HeaderExpansion,
    /// The memory budget had no room for the connection's state.
    Memory,
    /// Reading the connection took more CPU time than its bytes allow.
    Work,
    /// A panic in the observer.
    Panic,
    /// There was no room to observe another connection: observers are shed before traffic is.
    Shed,
}

impl Detach {
    /// Every reason, in the order of the documentation.
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

    /// The value of the label `reason`.
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

/// Which message a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// The client's.
    Request,
    /// The server's.
    Response,
}

impl Message {
    /// Both.
    pub const ALL: [Message; 2] = [Message::Request, Message::Response];

    /// The value of the label `direction`.
    pub fn as_str(self) -> &'static str {
        match self {
            Message::Request => "request",
            Message::Response => "response",
        }
    }
}

/// Why a body was not read, or not to its end. Its connection is still observed, and its bytes are relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unread {
    /// A content or transfer coding that is not known.
    UnknownCoding,
    /// More codings in a row than are undone.
    TooManyCodings,
    /// The body is not what its coding says.
    Corrupt,
    /// Its window is over the cap.
    Window,
    /// Its connection had decoded all that its received bytes had earned.
    Ratio,
    /// The memory budget had no room.
    Memory,
}

impl Unread {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Unread; 6] =
        [Unread::UnknownCoding, Unread::TooManyCodings, Unread::Corrupt, Unread::Window, Unread::Ratio, Unread::Memory];

    /// The value of the label `reason`.
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

/// Takes what exchanges give. Called from the data path's threads: must not block and must not allocate per token. What a
/// sink has no use for it leaves as it is here; one that lets things pass on to another has to let all of it pass.
pub trait Sink: Send + Sync + 'static {
    /// An exchange entered (`+1`) or left (`-1`) this phase.
    fn in_flight(&self, _pair: usize, _phase: Phase, _delta: i64) {}

    /// The handles for the series of these labels; asked for once per exchange, at its first token. `None`: it has no use
    /// for what moves while a stream runs.
    fn live(&self, _labels: &Labels) -> Option<Arc<dyn Live>> {
        None
    }

    /// An exchange that makes the server work was opened. Who is returned is told how it goes on; nobody: nothing of it
    /// is of use before its end.
    fn opened(&self, _opening: &Opening) -> Watches {
        Watches::default()
    }

    /// An exchange ended. Called exactly once for each, also for those that an observer detached from or lost.
    fn record(&self, record: &Record);

    /// In place of [`Sink::record`], where the answer's text was kept and no exact count is known. Whoever counts takes the
    /// text out; all others leave it alone.
    fn record_with_text(&self, record: &Record, _text: &mut Option<UncountedText>) {
        self.record(record);
    }

    /// An observer stopped reading a connection of this pair.
    fn detached(&self, _pair: usize, _why: Detach) {}

    /// A body that would have been read was not, or not to its end.
    fn unread(&self, _pair: usize, _of: Message, _why: Unread) {}
}

/// Handles of one label set, resolved: what moves while a stream runs.
pub trait Live: Send + Sync {
    /// Gaps since the last call (in batches, so that locks are rare) and the tokens seen since then (a lower bound).
    fn progress(&self, gaps: &[Gap], tokens: u64);

    /// A gap over the stall threshold is open or has just ended; counted once per gap.
    fn stalled(&self);

    /// At the end: the exact count was higher than what [`Live::progress`] was told, by this many tokens.
    fn reconcile(&self, tokens: u64);
}

/// The handles where no sink has a use for what moves while a stream runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unmoved;

impl Live for Unmoved {
    fn progress(&self, _gaps: &[Gap], _tokens: u64) {}

    fn stalled(&self) {}

    fn reconcile(&self, _tokens: u64) {}
}
