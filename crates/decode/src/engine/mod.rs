//! The inference engines: one table row per engine, with everything that differs between engines.
//!
//! `table` has the rows, `marks` identifies an engine from its responses, `metrics` has the metric names.

mod marks;
mod metrics;
mod table;

pub use marks::{EngineFacts, HeadMarks};
pub(crate) use marks::{of_fingerprint, of_id, of_model};
pub use metrics::{Combine, Quantity, Source, Term};
pub use table::Engine;

use crate::request::Limits;

/// A row of the engine table.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// The engine's name in user-facing text.
    pub title: &'static str,
    /// Lower-case words that identify the engine in a container's command or image.
    pub programs: &'static [&'static str],
    /// `owned_by` in the engine's model list.
    pub owned_by: Option<&'static str>,
    /// The parameters that set the engine's listen address, if known.
    pub listen: Option<Listen>,
    /// The engine's metrics page, if any.
    pub page: Option<MetricsPage>,
    /// Metric names on the metrics page. If a page has several sources of a quantity, the first is used.
    pub metrics: &'static [Source],
    /// How responses of the engine are interpreted.
    pub habits: EngineHabits,
    /// The keys with which requests limit the output tokens, except those that every engine reads on the same route.
    pub(crate) limits: Limits,
    /// Path of a JSON object with a `version` key, on the metrics port.
    pub version: Option<&'static str>,
    /// Advice that `verify` prints.
    pub advice: Advice,
}

/// The parameters that set a program's listen address.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// The default port.
    pub default_port: u16,
    /// The parameter that sets the address.
    pub host: Parameter,
    /// The parameter that sets the port.
    pub port: Parameter,
    /// The parameter that sets the path of a Unix socket.
    pub socket: Option<Parameter>,
}

/// A configuration parameter of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A flag.
    Flag(&'static str, FlagForm),
    /// An environment variable.
    Variable(&'static str),
    /// A flag or a variable. The flag takes precedence.
    Either(&'static str, FlagForm, &'static str),
}

impl Parameter {
    /// The flag and the variable, where they exist.
    pub fn names(self) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Parameter::Flag(flag, _) => (Some(flag), None),
            Parameter::Variable(variable) => (None, Some(variable)),
            Parameter::Either(flag, _, variable) => (Some(flag), Some(variable)),
        }
    }
}

/// The form of a flag and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagForm {
    /// One argument (`--host=127.0.0.1`). If repeated, the last one is used.
    Joined,
    /// Two arguments. If repeated, the last one is used.
    Spaced,
    /// One argument, which must not be repeated. If the arguments are passed to the program directly, `inject` sets the
    /// flag, not the variable.
    Once,
}

/// The metrics page of an engine.
#[derive(Clone, Copy, Debug)]
pub struct MetricsPage {
    /// The default path.
    pub path: &'static str,
    /// The port, if it differs from the API port.
    pub port: Option<u16>,
    /// Each read changes the values for other readers, so the page is read only if the settings enable it.
    pub draining: bool,
}

/// How an engine's responses are interpreted.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineHabits {
    /// An empty text delta without a role is a token whose text is held back. With a finish reason, it is the
    /// end-of-text token (vLLM 0.32's Python front end, TensorRT-LLM 1.x).
    pub empty_delta_is_token: bool,
    /// The engine sends the response headers of a stream when it starts to process the prompt; until then the request
    /// was queued (llama.cpp, server-context.cpp `send_partial_response(.., is_begin)`).
    pub head_when_scheduled: bool,
    /// `usage` counts one choice, not the request (llama.cpp).
    pub usage_per_choice: bool,
    /// The input count in `message_start`, and where it is repeated, is an estimate (Ollama 0.17, anthropic/anthropic.go
    /// `estimateInputTokens`; Dynamo, anthropic/stream_converter.rs `estimated_input_tokens`).
    pub early_input_is_guessed: bool,
    /// The engine cancels a request when the client closes its side of the connection, and reports the cancellation as
    /// an error (Ollama 0.17: Go's net/http cancels the request's context).
    pub aborts_with_error: bool,
}

/// Configuration changes that make measurements exact.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// How to get exact token counts of streams whose clients do not request usage.
    pub usage: &'static str,
    /// How to get per-request queue times.
    pub queue: &'static str,
    /// How to keep clients from bypassing the proxy.
    pub bypass: &'static str,
}

impl Advice {
    /// Advice for an unknown engine.
    pub const GENERAL: Advice = Advice {
        usage: "let clients set stream_options.include_usage, or mount the model's tokenizer.json for an estimate \
                (observe.tokenizer); docs/reference/engine-support.md lists what each engine reports",
        queue: "docs/concepts/queue-time.md lists what each engine reports",
        bypass: "bind the server to 127.0.0.1",
    };
}

impl Engine {
    /// The engine with this name in settings and labels.
    pub fn of_name(name: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.as_str() == name)
    }

    /// The engine that reports this `owned_by` in its model list.
    pub fn of_owner(owner: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.info().owned_by == Some(owner))
    }

    /// The engine named in a command or image (in lower case). vLLM is matched last, because the commands and images of
    /// other engines may contain its name.
    pub fn of_program(text: &str) -> Option<Engine> {
        let names = |engine: &Engine| engine.info().programs.iter().any(|word| text.contains(word));
        Engine::ALL.into_iter().rev().find(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_owners_identify_the_engine() {
        assert_eq!(Engine::of_program("vllm serve m"), Some(Engine::Vllm));
        assert_eq!(Engine::of_program("sglang-vllm:1"), Some(Engine::Sglang));
        assert_eq!(Engine::of_program("nginx"), None);
        assert_eq!(Engine::of_owner("library"), Some(Engine::Ollama));
        assert_eq!(Engine::of_name("Vllm"), None);
    }
}
