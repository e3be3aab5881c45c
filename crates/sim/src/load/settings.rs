//! What a person may set about the load generator.

use std::time::Duration;
use std::time::Instant;

use crate::load::api::Api;

/// How closely the client looks at what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inspect {
    /// Every event: tokens, gaps, errors, ends.
    #[default]
    Events,
    /// Only where answers begin and end, and how many bytes they have: for measuring what a proxy can carry at most.
    Bytes,
}

/// The load to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where requests go: `http://host:port`, with the path of the API added if it has none.
    pub url: String,
    /// The API to ask; `None` for the one whose path the URL has, and chat if that says nothing.
    pub api: Option<Api>,
    /// Ask over HTTP/2 with prior knowledge (RFC 9113, 3.3).
    pub http2: bool,
    /// Requests open at a time; each has a connection of its own, but over HTTP/2 a hundred share one.
    pub concurrency: usize,
    /// End after so many requests; `None` for no such end.
    pub requests: Option<u64>,
    /// End after this time; `None` for no such end.
    pub duration: Option<Duration>,
    /// Open the connections evenly over this time instead of all at once.
    pub ramp: Duration,
    /// The model to ask for.
    pub model: String,
    /// The text of the only message.
    pub prompt: String,
    /// Most tokens of an answer.
    pub max_tokens: u64,
    /// Ask for exactly `max_tokens` tokens (`ignore_eos`, a parameter of vLLM and SGLang).
    pub ignore_eos: bool,
    /// Ask for a stream.
    pub stream: bool,
    /// Ask for the usage chunk, which is the only exact count of tokens.
    pub include_usage: bool,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// Send this body instead of the one made from the settings above.
    pub body: Option<Vec<u8>>,
    /// Use a connection for one request after the other, as HTTP/2 always does.
    pub keep_alive: bool,
    /// Longest a request may take; `None` for as long as it takes.
    pub timeout: Option<Duration>,
    /// Share (0 to 1) of the requests that are given up in mid-stream, as users do.
    pub abort: f64,
    /// How closely to look.
    pub inspect: Inspect,
    /// The moment that the stamps of the simulated server count from, to measure how long its events travel.
    pub stamp: Option<Instant>,
    /// Ignore first tokens, gaps and travel times in this first part of the run.
    pub warm_up: Duration,
    /// Time between two calls of the progress function.
    pub progress_every: Duration,
    /// What chance is drawn from.
    pub seed: u64,
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
            inspect: Inspect::default(),
            stamp: None,
            warm_up: Duration::ZERO,
            progress_every: Duration::from_secs(1),
            seed: 0,
        }
    }
}
