//! Recognises the inference engine, and determines how to interpret its responses.
//!
//! Evidence: marks (values that only some engines send) in the response headers and body, and the route
//! ([`Engine::of_marks`]). If a response does not identify its engine, `gen_ai.provider.name` is the last engine
//! recognised on the listener, or absent.
//!
//! The time to response headers depends on the engine. llama.cpp sends the headers of a stream when a slot begins to
//! process the prompt; until then the request was queued. SGLang 0.5 (chats and completions), Ollama and Triton send
//! headers with the first token; the time then equals the time to first token. vLLM, TGI, TensorRT-LLM, LMDeploy,
//! Dynamo and transformers send headers before they queue the request, so the time includes neither queue nor prefill.
//! Only for llama.cpp, the time is used as the queue time ([`EngineHabits::head_when_scheduled`]).

use std::sync::atomic::{AtomicU8, Ordering};

use tokometer_decode::{Engine, EngineFacts, EngineHabits, HeadMarks, Route};
use tokometer_wire::ResponseHead;

/// Recognises the engine of one request as its marks arrive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recogniser {
    route: Route,
    head: HeadMarks,
    known: Known,
    found: Option<Engine>,
    /// Body marks at the last evaluation.
    facts: EngineFacts,
}

/// What is known about the engine before the response.
#[derive(Clone, Copy, Debug, Default)]
enum Known {
    #[default]
    Nothing,
    /// The engine of the listener's earlier requests.
    Expected(Engine),
    /// The engine is set in the configuration.
    Set,
}

impl Recogniser {
    /// Creates a recogniser for this route. `set`: the configured engine, if any. `expected`: the engine of the
    /// listener's earlier requests.
    pub(super) fn new(route: Route, set: Option<Engine>, expected: Option<Engine>) -> Recogniser {
        let known = if set.is_some() { Known::Set } else { expected.map_or(Known::Nothing, Known::Expected) };
        Recogniser { route, found: set, known, ..Recogniser::default() }
    }

    /// Replaces the route, once the request body has determined it.
    pub(super) fn request_is(&mut self, route: Route) {
        self.route = route;
    }

    /// Evaluates the response headers.
    pub(super) fn head(&mut self, head: &ResponseHead<'_>) {
        self.head = HeadMarks::of(head.headers.iter().map(|field| (field.name, field.value)));
        self.recognise();
    }

    /// Evaluates the body's marks, unless they are unchanged.
    pub(super) fn body(&mut self, facts: EngineFacts) {
        if facts != self.facts {
            self.facts = facts;
            self.recognise();
        }
    }

    /// The recognised or configured engine.
    pub(super) fn engine(&self) -> Option<Engine> {
        self.found
    }

    /// The engine of the listener when the request began, unless the response identifies another one.
    pub(super) fn likely_engine(&self) -> Option<Engine> {
        match self.known {
            Known::Expected(engine) => self.found.or(Some(engine)),
            _ => self.found,
        }
    }

    fn recognise(&mut self) {
        if !matches!(self.known, Known::Set) {
            self.found = Engine::of_marks(self.head, self.facts, self.route);
        }
    }

    /// How to interpret this response. The marks of the response take precedence over the engine name: vLLM's two front
    /// ends share a name but count differently, and a configured name may be wrong.
    pub(super) fn habits(&self) -> EngineHabits {
        let facts = self.facts;
        let rust_front_end = facts.contains(EngineFacts::ID_OF_8_HEX) && self.head.contains(HeadMarks::NAMELESS);
        let tensorrt_llm = facts.contains(EngineFacts::TENSORRT_LLM) || facts.contains(EngineFacts::SPACE_BEFORE_END);
        // On Ollama's own routes, an unrecognised engine is treated as Ollama.
        let unknown = EngineHabits { aborts_with_error: self.route.streams_by_default(), ..EngineHabits::default() };
        let habits = self.found.map_or(unknown, |engine| engine.info().habits);
        EngineHabits {
            empty_delta_is_token: match self.found {
                None | Some(Engine::Vllm) => facts.contains(EngineFacts::VLLM) && !rust_front_end,
                Some(Engine::TensorrtLlm) => tensorrt_llm,
                Some(_) => false,
            },
            usage_per_choice: habits.usage_per_choice || facts.contains(EngineFacts::LLAMA_CPP),
            ..habits
        }
    }
}

/// The last engine recognised on a listener, for responses that do not identify their engine (errors, aborts).
#[derive(Debug, Default)]
pub(super) struct LastSeen(AtomicU8);

impl LastSeen {
    /// Stores the engine.
    pub(super) fn set(&self, engine: Engine) {
        self.0.store(engine as u8 + 1, Ordering::Relaxed);
    }

    /// Returns the stored engine.
    pub(super) fn get(&self) -> Option<&'static str> {
        let place = usize::from(self.0.load(Ordering::Relaxed)).checked_sub(1)?;
        Engine::ALL.get(place).map(|engine| engine.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_delta_is_token_only_by_marks_of_same_response() {
        let profile = |set, facts| {
            let mut recogniser = Recogniser::new(Route::Chat, set, None);
            recogniser.head(&ResponseHead { status: 200, minor: 1, headers: &[] });
            recogniser.body(facts);
            recogniser.habits().empty_delta_is_token
        };
        assert!(profile(None, EngineFacts::VLLM));
        assert!(!profile(Some(Engine::Vllm), EngineFacts::NONE), "the Rust front end");
        let mut rust = EngineFacts::VLLM;
        rust.insert(EngineFacts::ID_OF_8_HEX);
        assert!(!profile(None, rust), "the Rust front end with token ids");
        assert!(profile(None, EngineFacts::TENSORRT_LLM));
        assert!(!profile(Some(Engine::TensorrtLlm), EngineFacts::NONE));
        assert!(!profile(Some(Engine::Sglang), EngineFacts::VLLM));
    }

    #[test]
    fn last_recognised_engine_is_kept() {
        for engine in Engine::ALL {
            let last = LastSeen::default();
            last.set(engine);
            assert_eq!(last.get(), Some(engine.as_str()));
        }
    }
}
