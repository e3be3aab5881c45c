//! Settings of the load generator.

use std::time::{Duration, Instant};

use crate::load::api::Api;

/// The load to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Target: `http://host:port`; the API's path is added if the URL has none.
    pub url: String,
    /// The API to call; `None` selects it by the URL's path, or chat if the path is ambiguous.
    pub api: Option<Api>,
    /// Use HTTP/2 with prior knowledge (RFC 9113, 3.3).
    pub http2: bool,
    /// Concurrent requests. Each has its own connection; over HTTP/2, up to 100 requests share a connection.
    pub concurrency: usize,
    /// Number of requests after which the run ends; `None` for no limit.
    pub requests: Option<u64>,
    /// Duration of the run; `None` for no limit.
    pub duration: Option<Duration>,
    /// Time over which the connections are opened evenly, instead of all at once.
    pub ramp: Duration,
    /// The model to request.
    pub model: String,
    /// Text of the only message.
    pub prompt: String,
    /// Maximum output tokens per response.
    pub max_tokens: u64,
    /// Request exactly `max_tokens` tokens (`ignore_eos`, a parameter of vLLM and SGLang).
    pub ignore_eos: bool,
    /// Request a stream.
    pub stream: bool,
    /// Request the usage chunk. Without it, token events are counted, which is only a lower bound for tokens.
    pub include_usage: bool,
    /// Additional request headers.
    pub headers: Vec<(String, String)>,
    /// Send this body instead of the one built from the settings above.
    pub body: Option<Vec<u8>>,
    /// Reuse a connection for several requests, as HTTP/2 always does.
    pub keep_alive: bool,
    /// Maximum duration of a request; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Share (0 to 1) of the requests that the client aborts in mid-stream, as users do.
    pub abort: f64,
    /// Origin of the simulated server's timestamps, used to measure the transit time of its events.
    pub stamp: Option<Instant>,
    /// Initial part of the run whose first tokens, gaps and transit times are ignored.
    pub warm_up: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            url: "http://127.0.0.1:8000".to_owned(),
            api: None,
            http2: false,
            concurrency: 8,
            requests: None,
            duration: None,
            ramp: Duration::ZERO,
            model: "sim".to_owned(),
            prompt: "Count.".to_owned(),
            max_tokens: 128,
            ignore_eos: false,
            stream: true,
            include_usage: true,
            headers: Vec::new(),
            body: None,
            keep_alive: true,
            timeout: None,
            abort: 0.0,
            stamp: None,
            warm_up: Duration::ZERO,
        }
    }
}
