//! Recognises the inference engine and its response semantics.
//!
//! Evidence: marks in the response headers, marks in the body, and the route. One mark unique to an engine is enough;
//! marks shared by several engines (uvicorn, an id of 16 hexadecimal digits) must occur together. If the engine is
//! uncertain, `gen_ai.provider.name` is absent, or that of the listener's last recognised response.
//!
//! Meaning of the time to response headers: llama.cpp sends the headers of a stream when a slot begins to work on the
//! prompt, so until then the request was queued. SGLang 0.5 (chats and completions), Ollama and Triton send them with
//! the first token. vLLM, TGI, TensorRT-LLM, LMDeploy, Dynamo and transformers send them before the request is queued:
//! they carry no information on queue or prefill. Only the first meaning yields a separate measurement
//! ([`Profile::head_when_scheduled`]); the second equals the time to first token.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::measure::Habits;
use crate::measure::Profile;
use tokometer_decode::EngineFacts;
use tokometer_decode::Route;
use tokometer_decode::Work;
use tokometer_wire::ResponseHead;

/// Recognised engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Engine {
    Vllm,
    Sglang,
    LlamaCpp,
    Ollama,
    Tgi,
    TensorrtLlm,
    Triton,
    Lmdeploy,
    Dynamo,
    LlamaCppPython,
    Transformers,
}

/// Value of `gen_ai.provider.name` by engine, indexed by discriminant.
const NAMES: [(Engine, &str); 11] = [
    (Engine::Vllm, "vllm"),
    (Engine::Sglang, "sglang"),
    (Engine::LlamaCpp, "llama_cpp"),
    (Engine::Ollama, "ollama"),
    (Engine::Tgi, "tgi"),
    (Engine::TensorrtLlm, "tensorrt_llm"),
    (Engine::Triton, "triton"),
    (Engine::Lmdeploy, "lmdeploy"),
    (Engine::Dynamo, "dynamo"),
    (Engine::LlamaCppPython, "llama_cpp_python"),
    (Engine::Transformers, "transformers"),
];

impl Engine {
    fn name(self) -> Option<&'static str> {
        NAMES.get(self as usize).map(|(_, name)| *name)
    }

    fn of_name(name: &str) -> Option<Engine> {
        NAMES.iter().find(|(_, own)| *own == name).map(|(engine, _)| *engine)
    }
}

/// Marks of an engine in the response headers, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeadMarks(u8);

impl HeadMarks {
    const NONE: HeadMarks = HeadMarks(0);
    /// `Server: llama.cpp`.
    const LLAMA_CPP: HeadMarks = HeadMarks(1);
    /// `server: uvicorn`: vLLM, SGLang, LMDeploy, TensorRT-LLM, transformers, and many others.
    const UVICORN: HeadMarks = HeadMarks(2);
    /// No `server` header: vLLM's Rust front end, Ollama, TGI, Dynamo, Triton, and servers behind a gateway that
    /// removes it.
    const NAMELESS: HeadMarks = HeadMarks(4);
    /// `x-compute-type` without the headers of Hugging Face's embedding server, which sends it too.
    const TGI: HeadMarks = HeadMarks(8);
    /// `openai-processing-ms` without `openai-version`, which OpenAI itself sends with it.
    const PROCESSING_MS: HeadMarks = HeadMarks(16);
    /// `Content-Type` before `Date`, in Go's spelling and order.
    const GO: HeadMarks = HeadMarks(32);
    /// `application/x-ndjson`.
    const NDJSON: HeadMarks = HeadMarks(64);

    /// Marks of these headers.
    pub(super) fn of(head: &ResponseHead<'_>) -> HeadMarks {
        let has = |name| head.header(name).is_some();
        let server = head.header("server");
        let content_type = head.header("content-type").unwrap_or_default();
        let place = |name| head.headers.iter().position(|field| field.name == name);
        [
            (HeadMarks::LLAMA_CPP, server == Some(b"llama.cpp")),
            (HeadMarks::UVICORN, server == Some(b"uvicorn")),
            (HeadMarks::NAMELESS, server.is_none()),
            (HeadMarks::TGI, has("x-compute-type") && !has("x-tokenization-time") && !has("x-compute-tokens")),
            (HeadMarks::PROCESSING_MS, has("openai-processing-ms") && !has("openai-version")),
            (HeadMarks::GO, place("Content-Type").zip(place("Date")).is_some_and(|(kind, date)| kind < date)),
            (HeadMarks::NDJSON, content_type.starts_with(b"application/x-ndjson")),
        ]
        .into_iter()
        .filter(|(_, is)| *is)
        .fold(HeadMarks::NONE, |all, (mark, _)| HeadMarks(all.0 | mark.0))
    }

    const fn and(self, other: HeadMarks) -> HeadMarks {
        HeadMarks(self.0 | other.0)
    }

    fn contains(self, other: HeadMarks) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Marks that identify an engine if all are present.
type Evidence = (HeadMarks, EngineFacts, fn(Route) -> bool, Engine);

/// The first match names the engine. Marks unique to one engine come first.
static EVIDENCE: [Evidence; 20] = [
    // A front end adds its mark to responses of the engine behind it.
    (HeadMarks::NONE, EngineFacts::DYNAMO, any, Engine::Dynamo),
    (HeadMarks::NONE, EngineFacts::OLLAMA, any, Engine::Ollama),
    (HeadMarks::NONE, EngineFacts::SGLANG, any, Engine::Sglang),
    (HeadMarks::LLAMA_CPP, EngineFacts::NONE, any, Engine::LlamaCpp),
    (HeadMarks::NONE, EngineFacts::LLAMA_CPP, any, Engine::LlamaCpp),
    (HeadMarks::NONE, EngineFacts::VLLM, any, Engine::Vllm),
    (HeadMarks::TGI, EngineFacts::NONE, generates, Engine::Tgi),
    (HeadMarks::NONE, EngineFacts::TGI, any, Engine::Tgi),
    (HeadMarks::NONE, EngineFacts::TENSORRT_LLM, any, Engine::TensorrtLlm),
    (HeadMarks::UVICORN, EngineFacts::SPACE_BEFORE_END, any, Engine::TensorrtLlm),
    (HeadMarks::NONE, EngineFacts::LMDEPLOY, any, Engine::Lmdeploy),
    // Triton sends no `server` header; KServe's own server, which has the same API, runs on uvicorn.
    (HeadMarks::NAMELESS, EngineFacts::TRITON, any, Engine::Triton),
    (HeadMarks::UVICORN.and(HeadMarks::PROCESSING_MS), EngineFacts::NONE, any, Engine::LlamaCppPython),
    (HeadMarks::UVICORN, EngineFacts::VLLM_POOLING_ID, takes_input, Engine::Vllm),
    // Only vLLM gives a message the id of a chat completion.
    (HeadMarks::UVICORN, EngineFacts::ID_OF_16_HEX, is_messages, Engine::Vllm),
    // vLLM derives the response id from the received `X-Request-Id`.
    (HeadMarks::UVICORN, EngineFacts::ID_OF_REQUEST, any, Engine::Vllm),
    // vLLM's Rust front end. Dynamo may do the same, but accepts only UUIDs as ids.
    (HeadMarks::NAMELESS, EngineFacts::ID_OF_8_HEX, generates, Engine::Vllm),
    (HeadMarks::NAMELESS, EngineFacts::ID_OF_REQUEST.and(EngineFacts::ID_NO_UUID), generates, Engine::Vllm),
    (HeadMarks::NAMELESS.and(HeadMarks::GO), EngineFacts::OLLAMA_ID, generates, Engine::Ollama),
    (HeadMarks::UVICORN, EngineFacts::MODEL_AT_MAIN, generates, Engine::Transformers),
];

fn any(_: Route) -> bool {
    true
}

fn generates(route: Route) -> bool {
    route.work() == Work::Generates
}

fn takes_input(route: Route) -> bool {
    route.work() == Work::TakesInput
}

fn is_messages(route: Route) -> bool {
    route == Route::Messages
}

/// Recognises the engine of one request as its marks arrive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recogniser {
    route: Route,
    head: HeadMarks,
    /// The engine is set in the configuration.
    is_set: bool,
    found: Option<Engine>,
    /// Marks at the last evaluation.
    facts: EngineFacts,
}

impl Recogniser {
    /// Creates a recogniser for this route; `set` is the configured engine.
    pub(super) fn new(route: Route, set: Option<&'static str>) -> Recogniser {
        let found = set.and_then(Engine::of_name);
        Recogniser { route, found, is_set: found.is_some(), ..Recogniser::default() }
    }

    /// Sets the route determined from the request body.
    pub(super) fn request_is(&mut self, route: Route) {
        self.route = route;
    }

    /// Evaluates the response headers.
    pub(super) fn head(&mut self, head: &ResponseHead<'_>) {
        self.head = HeadMarks::of(head);
        self.weigh();
    }

    /// Evaluates the marks of the body so far, if there are new ones.
    pub(super) fn body(&mut self, facts: EngineFacts) {
        if facts != self.facts {
            self.facts = facts;
            self.weigh();
        }
    }

    /// The engine's `gen_ai.provider.name`.
    pub(super) fn name(&self) -> Option<&'static str> {
        self.found?.name()
    }

    fn weigh(&mut self) {
        if self.is_set {
            return;
        }
        let Recogniser { route, head, facts, .. } = *self;
        let native = matches!(route, Route::OllamaChat | Route::OllamaGenerate);
        let own_stream = native && head.contains(HeadMarks::NDJSON.and(HeadMarks::NAMELESS).and(HeadMarks::GO));
        self.found = EVIDENCE
            .iter()
            .find(|(heads, marks, on, _)| head.contains(*heads) && facts.contains(*marks) && on(route))
            .map(|(.., engine)| *engine)
            .or(own_stream.then_some(Engine::Ollama));
    }

    /// Response semantics of the engine. Based on the marks of this response: vLLM's two front ends share a name but
    /// count differently, and a configured name may be wrong.
    pub(super) fn profile(&self) -> Profile {
        let facts = self.facts;
        let rust_front_end = facts.contains(EngineFacts::ID_OF_8_HEX) && self.head.contains(HeadMarks::NAMELESS);
        let tensorrt_llm = facts.contains(EngineFacts::TENSORRT_LLM) || facts.contains(EngineFacts::SPACE_BEFORE_END);
        let llama_cpp = self.found == Some(Engine::LlamaCpp);
        Profile {
            habits: Habits {
                empty_delta_is_token: match self.found {
                    None | Some(Engine::Vllm) => facts.contains(EngineFacts::VLLM) && !rust_front_end,
                    Some(Engine::TensorrtLlm) => tensorrt_llm,
                    Some(_) => false,
                },
                usage_per_choice: llama_cpp || facts.contains(EngineFacts::LLAMA_CPP),
                early_input_is_guessed: self.found == Some(Engine::Ollama),
            },
            gives_up_with_error: self.gives_up_with_error(),
            head_when_scheduled: llama_cpp,
        }
    }

    /// True for Ollama; an unrecognised engine on Ollama's own routes is treated as Ollama.
    fn gives_up_with_error(&self) -> bool {
        match self.found {
            Some(engine) => engine == Engine::Ollama,
            None => matches!(self.route, Route::OllamaChat | Route::OllamaGenerate),
        }
    }
}

/// The engine last recognised behind a listener, used for requests whose response does not show it (errors, aborts).
#[derive(Debug, Default)]
pub(super) struct LastSeen(AtomicU8);

impl LastSeen {
    /// Stores the engine.
    pub(super) fn set(&self, name: &'static str) {
        if let Some(engine) = Engine::of_name(name) {
            self.0.store(engine as u8 + 1, Ordering::Relaxed);
        }
    }

    /// Returns the stored engine.
    pub(super) fn get(&self) -> Option<&'static str> {
        NAMES.get(usize::from(self.0.load(Ordering::Relaxed)).checked_sub(1)?).map(|(_, name)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokometer_wire::Header;

    fn named(route: Route, fields: &[(&str, &str)], facts: EngineFacts) -> Option<&'static str> {
        let headers: Vec<_> = fields.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect();
        let mut recogniser = Recogniser::new(route, None);
        recogniser.head(&ResponseHead { status: 200, minor: 1, headers: &headers });
        recogniser.body(facts);
        recogniser.name()
    }

    const UVICORN: (&str, &str) = ("server", "uvicorn");
    const SSE: (&str, &str) = ("content-type", "text/event-stream");

    #[test]
    fn marks_shared_by_many_servers_name_no_engine() {
        for (fields, facts) in [
            (&[UVICORN, SSE][..], EngineFacts::NONE),
            (&[UVICORN, SSE], EngineFacts::ID_OF_16_HEX),
            (&[UVICORN, SSE], EngineFacts::ID_OF_8_HEX),
            (&[SSE], EngineFacts::NONE),
            (&[SSE], EngineFacts::ID_OF_16_HEX),
            (&[SSE, ("date", "x")], EngineFacts::OLLAMA_ID),
            (&[SSE], EngineFacts::SPACE_BEFORE_END),
            (&[SSE], EngineFacts::MODEL_AT_MAIN),
            // Dynamo, or vLLM's Rust front end.
            (&[SSE], EngineFacts::ID_OF_REQUEST),
            (&[UVICORN], EngineFacts::TRITON),
            (&[UVICORN], EngineFacts::VLLM_POOLING_ID),
            (&[("openai-processing-ms", "1"), ("openai-version", "2020-10-01")], EngineFacts::NONE),
            (&[UVICORN, ("x-request-id", "a")], EngineFacts::NONE),
        ] {
            assert_eq!(named(Route::Chat, fields, facts), None, "{fields:?} {facts:?}");
        }
        let embedding_server = [("x-compute-type", "cpu"), ("x-compute-tokens", "3"), ("x-tokenization-time", "1")];
        assert_eq!(named(Route::Embeddings, &embedding_server, EngineFacts::NONE), None);
        assert_eq!(named(Route::Generate, &embedding_server, EngineFacts::NONE), None);
    }

    #[test]
    fn unique_or_combined_marks_name_the_engine() {
        let date = ("Date", "x");
        for (route, fields, facts, name) in [
            (Route::Chat, &[("Server", "llama.cpp")][..], EngineFacts::NONE, "llama_cpp"),
            (Route::Generate, &[("x-compute-type", "gpu+optimized")], EngineFacts::NONE, "tgi"),
            (Route::Chat, &[SSE], EngineFacts::TGI, "tgi"),
            (Route::Chat, &[UVICORN, SSE], EngineFacts::SPACE_BEFORE_END, "tensorrt_llm"),
            (Route::Chat, &[SSE], EngineFacts::TENSORRT_LLM, "tensorrt_llm"),
            (Route::Chat, &[UVICORN, ("openai-processing-ms", "3")], EngineFacts::NONE, "llama_cpp_python"),
            (Route::TritonGenerate, &[SSE], EngineFacts::TRITON, "triton"),
            (Route::Chat, &[SSE], EngineFacts::DYNAMO, "dynamo"),
            (Route::Chat, &[UVICORN], EngineFacts::LMDEPLOY, "lmdeploy"),
            (Route::Chat, &[UVICORN], EngineFacts::MODEL_AT_MAIN, "transformers"),
            (Route::Chat, &[SSE], EngineFacts::ID_OF_8_HEX, "vllm"),
            (Route::Messages, &[UVICORN], EngineFacts::ID_OF_16_HEX, "vllm"),
            (Route::Messages, &[UVICORN], EngineFacts::ID_OF_REQUEST, "vllm"),
            (Route::Chat, &[SSE], EngineFacts::ID_OF_REQUEST.and(EngineFacts::ID_NO_UUID), "vllm"),
            (Route::Rerank, &[UVICORN], EngineFacts::VLLM_POOLING_ID, "vllm"),
            (Route::Messages, &[("Content-Type", "a"), date], EngineFacts::OLLAMA_ID, "ollama"),
            (Route::OllamaChat, &[("Content-Type", "application/x-ndjson"), date], EngineFacts::NONE, "ollama"),
        ] {
            assert_eq!(named(route, fields, facts), Some(name), "{route:?} {fields:?} {facts:?}");
        }
    }

    #[test]
    fn empty_delta_is_token_only_by_marks_of_same_response() {
        let profile = |set, facts| {
            let mut recogniser = Recogniser::new(Route::Chat, set);
            recogniser.head(&ResponseHead { status: 200, minor: 1, headers: &[] });
            recogniser.body(facts);
            recogniser.profile().habits.empty_delta_is_token
        };
        assert!(profile(None, EngineFacts::VLLM));
        assert!(!profile(Some("vllm"), EngineFacts::NONE), "the Rust front end");
        let mut rust = EngineFacts::VLLM;
        rust.insert(EngineFacts::ID_OF_8_HEX);
        assert!(!profile(None, rust), "the Rust front end with token ids");
        assert!(profile(None, EngineFacts::TENSORRT_LLM));
        assert!(!profile(Some("tensorrt_llm"), EngineFacts::NONE));
        assert!(!profile(Some("sglang"), EngineFacts::VLLM));
    }

    #[test]
    fn engine_names_are_in_discriminant_order() {
        for (at, (engine, name)) in NAMES.iter().enumerate() {
            assert_eq!((*engine as usize, Engine::of_name(name)), (at, Some(*engine)));
            let last = LastSeen::default();
            last.set(name);
            assert_eq!(last.get(), Some(*name));
        }
    }
}
