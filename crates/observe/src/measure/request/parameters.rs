//! Inputs of the calculations for one request, other than its events.

use std::time::Duration;

use crate::measure::Ending;
use tokometer_decode::{EngineHabits, OutputLimit, ResponseText};

/// Thresholds of the calculations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// A gap between two tokens that exceeds this is a stall, unless the stream's cadence explains it.
    pub stall: Duration,
    /// Minimum output tokens for a decode rate to be recorded.
    pub min_rate_tokens: u64,
    /// Minimum time between first and last token for a decode rate to be recorded.
    pub min_rate_span: Duration,
}

impl Thresholds {
    /// (n - n_first) / (t_last - t_first), or `None` below the thresholds.
    pub(in crate::measure) fn rate(
        &self,
        tokens: u64,
        first_tokens: u64,
        first: Option<Duration>,
        last: Option<Duration>,
    ) -> Option<f64> {
        let span = last?.checked_sub(first?)?;
        let after = tokens.checked_sub(first_tokens).filter(|n| *n > 0)?;
        let enough = tokens >= self.min_rate_tokens && span >= self.min_rate_span && !span.is_zero();
        enough.then(|| after as f64 / span.as_secs_f64())
    }
}

/// Request parameters; `None` if not set in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// `model`.
    pub model: Option<Box<str>>,
    /// `stream`, or the default of the API.
    pub stream: Option<bool>,
    /// `n`.
    pub n: Option<u64>,
    /// Number of prompts in the request (`prompt: [..., ...]`).
    pub prompts: Option<u64>,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u64>,
    /// The limit on output tokens as evidence about the engine.
    pub limit: OutputLimit,
    /// `echo`: the response begins with the prompt.
    pub echo: bool,
    /// The request asks TensorRT-LLM for the prefill only.
    pub context_only: bool,
}

impl Parameters {
    /// Number of prompts.
    pub(in crate::measure) fn prompts(&self) -> u64 {
        self.prompts.unwrap_or(1).max(1)
    }

    /// Number of choices per prompt.
    pub(in crate::measure) fn choices_per_prompt(&self) -> u64 {
        self.n.unwrap_or(1).max(1)
    }

    /// Number of choices in the response.
    pub(in crate::measure) fn choices(&self) -> u64 {
        self.choices_per_prompt().saturating_mul(self.prompts())
    }

    /// True if a response without output is not an error: `max_tokens` is 0, or the response contains an echoed prompt,
    /// which may be its only text. `begun`: text has arrived.
    pub(in crate::measure) fn allow_no_output(&self, begun: bool) -> bool {
        self.max_tokens == Some(0) || (self.echo && begun)
    }
}

/// Engine and model of a response, if known.
#[derive(Debug, Default)]
pub struct Server {
    /// The engine, as in `gen_ai.provider.name`.
    pub engine: Option<&'static str>,
    /// `model` of the response.
    pub model: Option<Box<str>>,
}

/// Data that is known only when a request ends.
#[derive(Debug)]
pub struct Closing {
    /// How the request ended on the wire.
    pub ending: Ending,
    /// The server of the response.
    pub server: Server,
    /// `id` of the response.
    pub response_id: Option<Box<str>>,
    /// Type of the error in the response.
    pub error_type: Option<Box<str>>,
    /// How responses of the engine are interpreted.
    pub habits: EngineHabits,
    /// A client aborted the request with a call of its own.
    pub aborted: bool,
    /// The body has a text or a status of its API, possibly empty.
    pub known: bool,
    /// Text of the response, if it was kept.
    pub text: Option<Box<ResponseText>>,
}
