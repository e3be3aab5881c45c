//! Which engine answers, and what its answers mean.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::decode::EngineFacts;
use crate::measure::Habits;
use crate::measure::Profile;
use crate::wire::ResponseHead;

/// The engines that are told apart, by their value of `gen_ai.provider.name`.
const ENGINES: [&str; 6] = ["vllm", "sglang", "llama_cpp", "ollama", "tgi", "lmdeploy"];

/// The engine that this response head names, if it names one.
pub(super) fn of_head(head: &ResponseHead<'_>) -> Option<&'static str> {
    if head.header("x-compute-type").is_some() {
        return Some("tgi");
    }
    (head.header("server") == Some(b"llama.cpp")).then_some("llama_cpp")
}

/// The engine that these marks in the body name, if they name one.
pub(super) fn of_facts(facts: EngineFacts) -> Option<&'static str> {
    [
        (EngineFacts::SGLANG, "sglang"),
        (EngineFacts::LLAMA_CPP, "llama_cpp"),
        (EngineFacts::OLLAMA, "ollama"),
        (EngineFacts::VLLM, "vllm"),
        (EngineFacts::TGI, "tgi"),
        (EngineFacts::LMDEPLOY, "lmdeploy"),
    ]
    .into_iter()
    .find_map(|(mark, name)| facts.contains(mark).then_some(name))
}

/// What the answers of this engine mean beyond their words. `facts` are the marks of this very answer: vLLM's two front
/// ends have one name and two habits, and only the Python one leaves marks.
pub(super) fn profile(engine: Option<&'static str>, facts: EngineFacts) -> Profile {
    Profile {
        habits: Habits {
            empty_delta_is_token: facts.contains(EngineFacts::VLLM) && matches!(engine, None | Some("vllm")),
            usage_per_choice: engine == Some("llama_cpp"),
            early_input_is_guessed: engine == Some("ollama"),
        },
        head_when_scheduled: engine == Some("llama_cpp"),
    }
}

/// The engine last recognised behind a pair: it names the engine of exchanges that do not show it themselves (errors,
/// aborts).
#[derive(Debug, Default)]
pub(super) struct LastSeen(AtomicU8);

impl LastSeen {
    /// Remembers it.
    pub(super) fn set(&self, engine: &'static str) {
        if let Some(index) = ENGINES.iter().position(|e| *e == engine) {
            self.0.store(index as u8 + 1, Ordering::Relaxed);
        }
    }

    /// The remembered one.
    pub(super) fn get(&self) -> Option<&'static str> {
        ENGINES.get(usize::from(self.0.load(Ordering::Relaxed)).checked_sub(1)?).copied()
    }
}
