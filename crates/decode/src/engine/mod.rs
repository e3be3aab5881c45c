//! The inference engines: one row for each, with everything that differs between them.
//!
//! `table` has the rows, `marks` what identifies an engine in its responses, `metrics` the names on its metrics page.

mod marks;
mod metrics;
mod table;

pub use marks::{EngineFacts, HeadMarks};
pub(crate) use marks::{of_fingerprint, of_id, of_model};
pub use metrics::{Combine, Quantity, Source, Term};
pub use table::Engine;

/// What is known about an engine: its row in the table.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// Its name in texts for people.
    pub title: &'static str,
    /// Lower-case words that identify it in a container's command or image.
    pub programs: &'static [&'static str],
    /// `owned_by` in its list of models.
    pub owned_by: Option<&'static str>,
    /// How it is configured to listen, if that is known.
    pub listen: Option<Listen>,
    /// Its metrics page, if it has one.
    pub page: Option<MetricsPage>,
    /// The names on its metrics page. If a page has several sources of a quantity, the first is used.
    pub metrics: &'static [Source],
    /// How its responses are interpreted.
    pub habits: EngineHabits,
    /// Path of a JSON object with its `version`, on the port of its metrics.
    pub version: Option<&'static str>,
    /// The advice of `verify`.
    pub advice: Advice,
}

/// How a program is configured to listen.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// The port it listens on by default.
    pub default_port: u16,
    /// Sets the address.
    pub host: Parameter,
    /// Sets the port.
    pub port: Parameter,
    /// Sets the path of a Unix socket.
    pub socket: Option<Parameter>,
}

/// A parameter of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A flag.
    Flag(&'static str, FlagForm),
    /// An environment variable.
    Variable(&'static str),
    /// A flag or a variable; the variable is used unless the flag is given.
    Either(&'static str, FlagForm, &'static str),
}

impl Parameter {
    /// Its flag and its variable, as far as they exist.
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
    /// One argument (`--host=127.0.0.1`); the last one wins.
    Joined,
    /// Two arguments; the last one wins.
    Spaced,
    /// One argument, which must not be repeated. Used instead of the variable where arguments reach the program.
    Once,
}

/// The metrics page of an engine.
#[derive(Clone, Copy, Debug)]
pub struct MetricsPage {
    /// Its usual path.
    pub path: &'static str,
    /// Its port, if it is not that of the API.
    pub port: Option<u16>,
    /// A read changes values that other readers see, so it is read only if the settings enable it.
    pub draining: bool,
}

/// How an engine's responses are interpreted.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineHabits {
    /// An empty text delta without a role is a token whose text is held back, and an empty one with a finish reason is
    /// the end-of-text token (vLLM 0.32's Python front end, TensorRT-LLM 1.x).
    pub empty_delta_is_token: bool,
    /// It sends the response headers of a stream when it starts to process the prompt (llama.cpp, server-context.cpp
    /// `send_partial_response(.., is_begin)`): until then the request was queued.
    pub head_when_scheduled: bool,
    /// `usage` counts one choice, not the request (llama.cpp).
    pub usage_per_choice: bool,
    /// The input count that precedes the output, in `message_start`, is an estimate (Ollama 0.17, anthropic/anthropic.go
    /// `estimateInputTokens`).
    pub early_input_is_guessed: bool,
    /// It cancels a request whose client closed its side of the connection, and reports that as an error (Ollama 0.17:
    /// Go's net/http cancels the request's context).
    pub gives_up_with_error: bool,
}

/// What to change so that measurements become exact.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// For exact token counts of streams whose clients do not request usage.
    pub usage: &'static str,
    /// For queue times of single requests.
    pub queue: &'static str,
    /// To keep clients from bypassing the proxy.
    pub bypass: &'static str,
}

impl Advice {
    /// For an engine that is not known.
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

    /// The engine that writes this `owned_by` in its list of models.
    pub fn of_owner(owner: &str) -> Option<Engine> {
        Engine::ALL.into_iter().find(|engine| engine.info().owned_by == Some(owner))
    }

    /// The engine that a lower-case command or image names. vLLM comes last: those of other engines may name it too.
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
