//! Engine detection in a pod, and each engine's settings for its listen address.
//!
//! Sources: vLLM 0.33 `entrypoints/common/cli_args.py`; SGLang 0.5.10 `server_args.py`; llama.cpp `common/arg.cpp` (a
//! variable per flag; a flag's value is a separate argument); text-generation-inference `launcher/src/main.rs` (a
//! repeated flag is an error); Ollama `envconfig/config.go`.

use crate::inject::value::Value;

/// An engine whose listen settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp's llama-server.
    LlamaCpp,
    /// Hugging Face Text Generation Inference.
    Tgi,
    /// Ollama.
    Ollama,
}

/// A setting of a program's listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// A flag and its value in one argument (`--host=127.0.0.1`). The last one takes precedence.
    Joined(&'static str, String),
    /// A flag and its value in two arguments. The last one takes precedence.
    Spaced(&'static str, String),
    /// As [`Setting::Joined`], but the flag must not be repeated.
    Single(&'static str, String),
    /// An environment variable.
    Variable(&'static str, String),
}

impl Engine {
    /// Every engine, in detection order.
    pub const ALL: [Engine; 5] = [Engine::Sglang, Engine::Tgi, Engine::LlamaCpp, Engine::Ollama, Engine::Vllm];

    /// Value of the setting `observe.engine`.
    pub fn as_str(self) -> &'static str {
        match self {
            Engine::Vllm => "vllm",
            Engine::Sglang => "sglang",
            Engine::LlamaCpp => "llama_cpp",
            Engine::Tgi => "tgi",
            Engine::Ollama => "ollama",
        }
    }

    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
            Engine::LlamaCpp => "llama.cpp",
            Engine::Tgi => "TGI",
            Engine::Ollama => "Ollama",
        }
    }

    /// Default listen port.
    pub(super) fn port(self) -> u16 {
        match self {
            Engine::Vllm => 8000,
            Engine::Sglang => 30_000,
            Engine::LlamaCpp => 8080,
            Engine::Tgi => 80,
            Engine::Ollama => 11_434,
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Engine::Vllm => &["vllm"],
            Engine::Sglang => &["sglang"],
            Engine::LlamaCpp => &["llama-server", "llama.cpp", "llamacpp"],
            Engine::Tgi => &["text-generation-launcher", "text-generation-inference"],
            Engine::Ollama => &["ollama"],
        }
    }

    /// The engine of this container, and what it was recognised by. The command takes precedence over the image.
    pub(super) fn of(container: &Value) -> Option<(Engine, &'static str)> {
        // Only the first argument: later ones may name models.
        let started = container.texts("command").into_iter().chain(container.texts("args").into_iter().take(1));
        let started = started.collect::<Vec<_>>().join(" ").to_lowercase();
        // Only the last path segment of the image name, not that of the organisation.
        let image = container.text("image").unwrap_or_default().rsplit('/').next().unwrap_or_default().to_lowercase();
        let find =
            |text: &str| Engine::ALL.into_iter().find(|engine| engine.words().iter().any(|word| text.contains(word)));
        let by_command = (!container.texts("command").is_empty()).then(|| find(&started)).flatten();
        by_command
            .map(|engine| (engine, "its command"))
            .or_else(|| find(&image).map(|engine| (engine, "its image")))
            .or_else(|| find(&started).map(|engine| (engine, "its arguments")))
    }

    /// The flag and the variable that set the port.
    pub(super) fn port_names(self) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Engine::Vllm | Engine::Sglang => (Some("--port"), None),
            Engine::LlamaCpp => (Some("--port"), Some("LLAMA_ARG_PORT")),
            Engine::Tgi => (Some("--port"), Some("PORT")),
            Engine::Ollama => (None, Some("OLLAMA_HOST")),
        }
    }

    /// Setting to listen only on this host. `has` returns whether a flag is already set, `direct` whether added
    /// arguments reach the program.
    pub(super) fn host(self, host: &str, port: u16, has: impl Fn(&str) -> bool, direct: bool) -> Setting {
        match self {
            Engine::Vllm | Engine::Sglang => Setting::Joined("--host", host.to_owned()),
            Engine::LlamaCpp if has("--host") => Setting::Spaced("--host", host.to_owned()),
            Engine::LlamaCpp => Setting::Variable("LLAMA_ARG_HOST", host.to_owned()),
            Engine::Tgi if direct || has("--hostname") => Setting::Single("--hostname", host.to_owned()),
            // The launcher reads this variable, and the container runtime sets it to the pod's name.
            Engine::Tgi => Setting::Variable("HOSTNAME", host.to_owned()),
            Engine::Ollama => Setting::Variable("OLLAMA_HOST", format!("{host}:{port}")),
        }
    }

    /// Setting to listen on this port.
    pub(super) fn other_port(self, port: u16, has: impl Fn(&str) -> bool, direct: bool) -> Setting {
        match self {
            Engine::Vllm | Engine::Sglang => Setting::Joined("--port", port.to_string()),
            Engine::LlamaCpp if has("--port") => Setting::Spaced("--port", port.to_string()),
            Engine::LlamaCpp => Setting::Variable("LLAMA_ARG_PORT", port.to_string()),
            Engine::Tgi if direct || has("--port") => Setting::Single("--port", port.to_string()),
            Engine::Tgi => Setting::Variable("PORT", port.to_string()),
            Engine::Ollama => Setting::Variable("OLLAMA_HOST", format!("0.0.0.0:{port}")),
        }
    }

    /// Setting to listen on a Unix socket; `None` if the engine does not support it.
    pub(super) fn socket(self, path: &str, has: impl Fn(&str) -> bool) -> Option<Setting> {
        match self {
            Engine::Vllm => Some(Setting::Joined("--uds", path.to_owned())),
            // A host that ends with `.sock` is a Unix socket.
            Engine::LlamaCpp if has("--host") => Some(Setting::Spaced("--host", path.to_owned())),
            Engine::LlamaCpp => Some(Setting::Variable("LLAMA_ARG_HOST", path.to_owned())),
            Engine::Sglang | Engine::Tgi | Engine::Ollama => None,
        }
    }
}
