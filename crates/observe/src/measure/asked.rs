//! What a request asked for, and what an engine's answers mean.

use crate::measure::Habits;
use crate::measure::since::Since;

/// What the request asked for, as far as it said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `n`.
    pub n: Option<u64>,
    /// Prompts in one request (`prompt: [..., ...]`).
    pub prompts: Option<u64>,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens: Option<u64>,
    /// `echo`: the answer begins with the prompt.
    pub echo: bool,
}

impl Asked {
    /// No output that is known of is no fault: none was asked for, or what came is an echo, and how much of it is the answer's is not known.
    pub(super) fn excuses_silence(&self, first_token: Since) -> bool {
        self.max_tokens == Some(0) || (self.echo && first_token != Since::NEVER)
    }
}

/// What an engine's answers mean beyond their words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// How its events count.
    pub habits: Habits,
    /// It notices a client that ends its side of the connection, gives the request up, and says so as an error (Ollama
    /// 0.17: Go's net/http cancels the request's context then).
    pub gives_up_with_error: bool,
    /// It sends the response head of a stream when it begins to work on the prompt (llama.cpp, server-context.cpp
    /// `send_partial_response(.., is_begin)`): the time until then is queueing.
    pub head_when_scheduled: bool,
}
