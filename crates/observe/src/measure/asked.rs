//! Parameters of a request, and engine-specific response semantics.

use crate::measure::Habits;
use crate::measure::since::Since;

/// Request parameters; `None` if the request did not set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `n`.
    pub n: Option<u64>,
    /// Prompts in one request (`prompt: [..., ...]`).
    pub prompts: Option<u64>,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u64>,
    /// `echo`: the response begins with the prompt.
    pub echo: bool,
}

impl Asked {
    /// True if an empty response is not an error: `max_tokens` is 0, or the response contains an echoed prompt and the
    /// share of generated tokens in it is unknown.
    pub(super) fn excuses_silence(&self, first_token: Since) -> bool {
        self.max_tokens == Some(0) || (self.echo && first_token != Since::NEVER)
    }
}

/// Engine-specific response semantics that the response itself does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// How the engine's events count tokens.
    pub habits: Habits,
    /// The engine detects that the client closed its side of the connection, cancels the request and reports the
    /// cancellation as an error (Ollama 0.17: Go's net/http cancels the request's context).
    pub gives_up_with_error: bool,
    /// The engine sends the response headers of a stream when it starts to process the prompt (llama.cpp,
    /// server-context.cpp `send_partial_response(.., is_begin)`): the time until then is queue time.
    pub head_when_scheduled: bool,
}
