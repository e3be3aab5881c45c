//! What a person may set about the simulated server.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use crate::server::api::Imitation;
use crate::server::fault::Fault;
use crate::server::spans::Traces;

/// How fast tokens come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// From the moment a request is scheduled (its wait in the queue is over) to its first token.
    pub time_to_first_token: Duration,
    /// Tokens per second and choice after the first one; 0 sends them as fast as the client takes them.
    pub tokens_per_second: f64,
    /// Tokens per event after the first one, which holds a single token (`--stream-interval` in vLLM).
    pub tokens_per_chunk: u32,
    /// Share (0 to 1) of the time to first token and of each gap by which a moment may come late, evenly spread.
    pub jitter: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            time_to_first_token: Duration::from_millis(200),
            tokens_per_second: 50.0,
            tokens_per_chunk: 1,
            jitter: 0.1,
        }
    }
}

/// What the tokens say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Text {
    /// Pieces of English words.
    #[default]
    Words,
    /// Each event's text is the moment at which it was rendered, in nanoseconds since this one, as
    /// [`STAMP_DIGITS`] digits: whoever reads it on the same machine knows how long it travelled.
    Stamp(Instant),
    /// The same letter as often as a stamp has digits; rendered once, so that nothing is cheaper to send.
    Filler,
}

/// Length of a stamp's text in bytes; it makes a chat event of about 250 bytes, as vLLM's are.
pub const STAMP_DIGITS: usize = 38;

/// Where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// On TCP; port 0 for a free one.
    Tcp(SocketAddr),
    /// On a Unix socket, which is removed in the end.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The simulated server.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where it listens.
    pub listen: Listen,
    /// The engine that answers the paths which several have; each engine's own paths are served whatever this is. A
    /// request may choose by the header `x-sim-engine`.
    pub imitate: Imitation,
    /// The name of its model. A request for `fault/NAME[:ARG]` is served too, with that fault.
    pub model: String,
    /// Longest prompt plus answer, in tokens; more is answered with 400.
    pub max_model_len: u64,
    /// How fast tokens come.
    pub pace: Pace,
    /// What the tokens say.
    pub text: Text,
    /// Tokens after which an answer ends by itself (the end-of-text token included), evenly spread.
    pub answer_tokens: RangeInclusive<u64>,
    /// Most requests that generate at a time; further ones wait (`--max-num-seqs` in vLLM).
    pub max_concurrency: usize,
    /// Tell queue and generation times in the usage chunk (`--enable-per-request-metrics`).
    pub per_request_metrics: bool,
    /// Give every stream final and continuous usage (`--enable-force-include-usage`).
    pub force_include_usage: bool,
    /// Tell cached prompt tokens in the final usage (`--enable-prompt-tokens-details`).
    pub prompt_tokens_details: bool,
    /// Share (0 to 1) of each prompt that is found in the cache.
    pub cached_share: f64,
    /// Send a comment after so long without an event (`--sse-keep-alive-interval`); `None` never.
    pub sse_keep_alive: Option<Duration>,
    /// Faults that befall requests by chance: each with its probability (0 to 1).
    pub faults: Vec<(Fault, f64)>,
    /// Close a connection on which no request came for so long (uvicorn: 5 s).
    pub idle_timeout: Duration,
    /// Keep moments to the microsecond instead of the millisecond of a common timer, with a task that never sleeps
    /// and takes a whole core. For benches, where a timer's bursts would hide what a proxy adds.
    pub spin: bool,
    /// Send a span of each request (`--otlp-traces-endpoint` of vLLM); `None` for none.
    pub traces: Option<Traces>,
    /// What all chance is drawn from, together with the number of the request.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))),
            imitate: Imitation::default(),
            model: "sim".to_owned(),
            max_model_len: 32 * 1024,
            pace: Pace::default(),
            text: Text::default(),
            answer_tokens: 40..=240,
            max_concurrency: 256,
            per_request_metrics: false,
            force_include_usage: false,
            prompt_tokens_details: false,
            cached_share: 0.0,
            sse_keep_alive: None,
            faults: Vec::new(),
            idle_timeout: Duration::from_secs(5),
            spin: false,
            traces: None,
            seed: 0,
        }
    }
}
