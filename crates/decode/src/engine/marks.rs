//! Marks (values in response headers and bodies that only some engines send), and the combinations of marks that
//! identify an engine. A mark that is unique to one engine suffices alone; marks shared by several engines (uvicorn, an
//! id of 16 hexadecimal digits) must occur together.

use super::Engine;
use crate::{Route, Work};

/// Engine marks found in the body, a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFacts(pub u32);

impl EngineFacts {
    /// No mark.
    pub const NONE: EngineFacts = EngineFacts(0);
    /// `system_fingerprint` begins with `vllm-`, or a key of vLLM's Python front end is present (`prompt_token_ids`,
    /// `kv_transfer_params`; not `stop_reason`, which TensorRT-LLM sends too).
    pub const VLLM: EngineFacts = EngineFacts(1);
    /// `matched_stop`, `meta_info.weight_version`, or `message.images: null` in Ollama's format is present (SGLang
    /// 0.5).
    pub const SGLANG: EngineFacts = EngineFacts(2);
    /// `timings.predicted_n`, `tokens_predicted` or `prompt_progress` is present, or `system_fingerprint` begins with
    /// `b<digits>-` (llama.cpp).
    pub const LLAMA_CPP: EngineFacts = EngineFacts(4);
    /// `system_fingerprint` is `fp_ollama`, or `load_duration` (absent in SGLang's copy of the API) is present.
    pub const OLLAMA: EngineFacts = EngineFacts(8);
    /// `system_fingerprint` is a TGI version, or `generated_text` is present.
    pub const TGI: EngineFacts = EngineFacts(1 << 8);
    /// `avg_decoded_tokens_per_iter` is present (TensorRT-LLM 1.x).
    pub const TENSORRT_LLM: EngineFacts = EngineFacts(1 << 9);
    /// A space precedes the line feed after an event's JSON (TensorRT-LLM's role event).
    pub const SPACE_BEFORE_END: EngineFacts = EngineFacts(1 << 10);
    /// `nvext` is present (Dynamo).
    pub const DYNAMO: EngineFacts = EngineFacts(1 << 11);
    /// `gen_tokens` or `meta_info.routed_experts` is present (LMDeploy 0.18). SGLang sends `routed_experts` on request,
    /// together with its own marks.
    pub const LMDEPLOY: EngineFacts = EngineFacts(1 << 12);
    /// `model_version` is present in a response of the generate extension (Triton, and KServe's own server).
    pub const TRITON: EngineFacts = EngineFacts(1 << 13);
    /// `id` is `chatcmpl-` or `cmpl-` and 8 hexadecimal digits (vLLM's Rust front end).
    pub const ID_OF_8_HEX: EngineFacts = EngineFacts(1 << 14);
    /// `id` is `chatcmpl-` or `cmpl-` and 16 hexadecimal digits (vLLM's Python front end).
    pub const ID_OF_16_HEX: EngineFacts = EngineFacts(1 << 15);
    /// `id` is `embd-`, `pooling-`, `score-` or `classify-` and hexadecimal digits (vLLM).
    pub const VLLM_POOLING_ID: EngineFacts = EngineFacts(1 << 16);
    /// `id` is `chatcmpl-` or `cmpl-` and up to 3 digits, `resp_` and up to 6 digits, or `msg_` and 24 hexadecimal
    /// digits (Ollama).
    pub const OLLAMA_ID: EngineFacts = EngineFacts(1 << 17);
    /// `model` ends with `@main` (transformers serve).
    pub const MODEL_AT_MAIN: EngineFacts = EngineFacts(1 << 18);
    /// `id` is a prefix and the request's `X-Request-Id` (vLLM 0.32, both front ends).
    pub const ID_OF_REQUEST: EngineFacts = EngineFacts(1 << 19);
    /// The request's `X-Request-Id` that `id` contains is not a UUID.
    pub const ID_NO_UUID: EngineFacts = EngineFacts(1 << 20);
    /// A key that only LightLLM sends. It has no row in the table, but its responses have the marks of TGI.
    pub const LIGHTLLM: EngineFacts = EngineFacts(1 << 21);

    /// The union of both sets.
    pub const fn and(self, other: EngineFacts) -> EngineFacts {
        EngineFacts(self.0 | other.0)
    }

    /// True when every mark of `other` is set here.
    pub fn contains(self, other: EngineFacts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Adds the marks of `other`.
    pub fn insert(&mut self, other: EngineFacts) {
        self.0 |= other.0;
    }
}

/// Engine marks in the response headers, a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadMarks(u8);

impl HeadMarks {
    const NONE: HeadMarks = HeadMarks(0);
    /// `Server: llama.cpp`.
    const LLAMA_CPP: HeadMarks = HeadMarks(1);
    /// `server: uvicorn`: vLLM, SGLang, LMDeploy, TensorRT-LLM, transformers, and many others.
    const UVICORN: HeadMarks = HeadMarks(2);
    /// No `server` header: vLLM's Rust front end, Ollama, TGI, Dynamo, Triton, and servers behind a gateway that
    /// removes the header.
    pub const NAMELESS: HeadMarks = HeadMarks(4);
    /// `x-compute-type` without `x-tokenization-time` and `x-compute-tokens`; Hugging Face's embedding server sends all
    /// three.
    const TGI: HeadMarks = HeadMarks(8);
    /// `openai-processing-ms` without `openai-version`; OpenAI itself sends both.
    const PROCESSING_MS: HeadMarks = HeadMarks(16);
    /// `Content-Type` before `Date`, in Go's spelling and order.
    const GO: HeadMarks = HeadMarks(32);
    /// `application/x-ndjson`.
    const NDJSON: HeadMarks = HeadMarks(64);

    /// The marks of these headers, given as name and value.
    pub fn of<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone) -> HeadMarks {
        let value = |name: &str| headers.clone().find(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1);
        let has = |name| value(name).is_some();
        let place = |name| headers.clone().position(|field| field.0 == name);
        let server = value("server");
        let content_type = value("content-type").unwrap_or_default();
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

    /// True when every mark of `other` is set here.
    pub fn contains(self, other: HeadMarks) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Marks that together identify an engine on certain routes.
type Evidence = (HeadMarks, EngineFacts, fn(Route) -> bool, Engine);

/// The first match names the engine. Marks unique to one engine come first.
static EVIDENCE: [Evidence; 21] = [
    // Dynamo comes first, because it adds its mark to the responses of another engine.
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
    // Triton sends no `server` header; KServe's own server has the same API but runs on uvicorn.
    (HeadMarks::NAMELESS, EngineFacts::TRITON, any, Engine::Triton),
    (HeadMarks::UVICORN.and(HeadMarks::PROCESSING_MS), EngineFacts::NONE, any, Engine::LlamaCppPython),
    (HeadMarks::UVICORN, EngineFacts::VLLM_POOLING_ID, takes_input, Engine::Vllm),
    // Only vLLM uses the id format of chat completions for messages.
    (HeadMarks::UVICORN, EngineFacts::ID_OF_16_HEX, is_messages, Engine::Vllm),
    // vLLM derives the response id from the received `X-Request-Id`.
    (HeadMarks::UVICORN, EngineFacts::ID_OF_REQUEST, any, Engine::Vllm),
    // vLLM's Rust front end. Dynamo may also derive response ids from request ids, but only from UUIDs.
    (HeadMarks::NAMELESS, EngineFacts::ID_OF_8_HEX, generates, Engine::Vllm),
    (HeadMarks::NAMELESS, EngineFacts::ID_OF_REQUEST.and(EngineFacts::ID_NO_UUID), generates, Engine::Vllm),
    (HeadMarks::NAMELESS.and(HeadMarks::GO), EngineFacts::OLLAMA_ID, generates, Engine::Ollama),
    (HeadMarks::UVICORN, EngineFacts::MODEL_AT_MAIN, generates, Engine::Transformers),
    (
        HeadMarks::NDJSON.and(HeadMarks::NAMELESS).and(HeadMarks::GO),
        EngineFacts::NONE,
        Route::streams_by_default,
        Engine::Ollama,
    ),
];

impl Engine {
    /// The engine that these marks identify on this route.
    pub fn of_marks(head: HeadMarks, facts: EngineFacts, route: Route) -> Option<Engine> {
        if facts.contains(EngineFacts::LIGHTLLM) {
            return None;
        }
        let matches = |(heads, marks, on, _): &&Evidence| head.contains(*heads) && facts.contains(*marks) && on(route);
        EVIDENCE.iter().find(matches).map(|(.., engine)| *engine)
    }
}

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

/// The mark in `system_fingerprint`. vLLM: `vllm-0.32.0-9bb3537e`; llama.cpp: `b<build>-<commit>`; Ollama: `fp_ollama`;
/// TGI 3.3: its version and `native`, `dev0` or a commit (`3.3.6-sha-db931fc`).
pub(crate) fn of_fingerprint(word: &[u8]) -> EngineFacts {
    if word.starts_with(b"vllm-") {
        return EngineFacts::VLLM;
    }
    if word == b"fp_ollama" {
        return EngineFacts::OLLAMA;
    }
    if is_tgi_version(word) {
        return EngineFacts::TGI;
    }
    let build = word.strip_prefix(b"b").unwrap_or_default();
    let digits = count(build, u8::is_ascii_digit);
    if digits > 0 && build.get(digits) == Some(&b'-') { EngineFacts::LLAMA_CPP } else { EngineFacts::default() }
}

/// The mark in `id`: formats that few engines use (recorded from vLLM 0.32 with both front ends and from Ollama 0.17).
pub(crate) fn of_id(id: &[u8]) -> EngineFacts {
    let hex = |rest: &[u8], len: usize| rest.len() == len && count(rest, is_lower_hex) == len;
    let digits = |rest: &[u8], most: usize| (1..=most).contains(&rest.len()) && rest.iter().all(u8::is_ascii_digit);
    if let Some(rest) = id.strip_prefix(b"chatcmpl-").or(id.strip_prefix(b"cmpl-")) {
        return match rest {
            rest if hex(rest, 8) && !digits(rest, 8) => EngineFacts::ID_OF_8_HEX,
            rest if hex(rest, 16) => EngineFacts::ID_OF_16_HEX,
            rest if digits(rest, 3) => EngineFacts::OLLAMA_ID,
            _ => EngineFacts::default(),
        };
    }
    if id.strip_prefix(b"msg_").is_some_and(|rest| hex(rest, 24))
        || id.strip_prefix(b"resp_").is_some_and(|rest| digits(rest, 6))
    {
        return EngineFacts::OLLAMA_ID;
    }
    let pooled: [&[u8]; 4] = [b"embd-", b"pooling-", b"score-", b"classify-"];
    if pooled.iter().filter_map(|prefix| id.strip_prefix(*prefix)).any(|rest| hex(rest, 16) || hex(rest, 32)) {
        return EngineFacts::VLLM_POOLING_ID;
    }
    EngineFacts::default()
}

/// The mark in `model`: transformers serve 5 appends the revision (`org/name@main`).
pub(crate) fn of_model(model: &[u8]) -> EngineFacts {
    if model.ends_with(b"@main") { EngineFacts::MODEL_AT_MAIN } else { EngineFacts::default() }
}

/// True for three numbers separated by dots, a dash, and a suffix set by TGI's build.
fn is_tgi_version(word: &[u8]) -> bool {
    let mut rest = word;
    for end in [b'.', b'.', b'-'] {
        let digits = count(rest, u8::is_ascii_digit);
        match rest.get(digits..).and_then(<[u8]>::split_first) {
            Some((byte, after)) if digits > 0 && *byte == end => rest = after,
            _ => return false,
        }
    }
    [&b"native"[..], b"sha-", b"dev"].iter().any(|build| rest.starts_with(build))
}

fn count(bytes: &[u8], is: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| is(byte)).count()
}

fn is_lower_hex(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_map_to_their_engine() {
        for (word, facts) in [
            ("vllm-0.32.0-9bb3537e", EngineFacts::VLLM),
            ("fp_ollama", EngineFacts::OLLAMA),
            ("b0-unknown", EngineFacts::LLAMA_CPP),
            ("b6123-0c1e5709", EngineFacts::LLAMA_CPP),
            ("3.3.6-dev0-sha-db931fc", EngineFacts::TGI),
            ("2.0.1-native", EngineFacts::TGI),
            ("1.2.3-other", EngineFacts::default()),
            ("1.2-native", EngineFacts::default()),
            ("fp_44709d6fcb", EngineFacts::default()),
            ("b-", EngineFacts::default()),
            ("", EngineFacts::default()),
        ] {
            assert_eq!(of_fingerprint(word.as_bytes()), facts, "{word}");
        }
    }

    #[test]
    fn ids_and_models_map_to_engine_marks() {
        for (id, facts) in [
            ("chatcmpl-0a1b2c3d", EngineFacts::ID_OF_8_HEX),
            ("cmpl-deadbeef", EngineFacts::ID_OF_8_HEX),
            ("chatcmpl-12345678", EngineFacts::default()),
            ("chatcmpl-0a1b2c3d0a1b2c3d", EngineFacts::ID_OF_16_HEX),
            ("chatcmpl-my-req-0001", EngineFacts::default()),
            ("chatcmpl-520", EngineFacts::OLLAMA_ID),
            ("resp_774256", EngineFacts::OLLAMA_ID),
            ("msg_5885c0367b44dcaccc5d10cb", EngineFacts::OLLAMA_ID),
            ("msg_01XFDUDYJgAACzvnptvVoYEL", EngineFacts::default()),
            ("embd-a1c2c80ff5e5a5d2", EngineFacts::VLLM_POOLING_ID),
            ("embd-my-own", EngineFacts::default()),
            ("", EngineFacts::default()),
        ] {
            assert_eq!(of_id(id.as_bytes()), facts, "{id}");
        }
        assert_eq!(of_model(b"org/name@main"), EngineFacts::MODEL_AT_MAIN);
        assert_eq!(of_model(b"name@mainly"), EngineFacts::default());
    }

    fn named(route: Route, fields: &[(&str, &str)], facts: EngineFacts) -> Option<&'static str> {
        let head = HeadMarks::of(fields.iter().map(|(name, value)| (*name, value.as_bytes())));
        Engine::of_marks(head, facts, route).map(Engine::as_str)
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
            (&[UVICORN], EngineFacts::TGI.and(EngineFacts::LIGHTLLM)),
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
}
