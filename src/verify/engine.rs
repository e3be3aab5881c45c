//! Which engine the server is, and what it has to be told so that counts and waits are exact.

use serde_json::Value;

/// An engine, by what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Vllm,
    Sglang,
    LlamaCpp,
    Ollama,
    LmDeploy,
    TensorRtLlm,
    Dynamo,
    Tgi,
    Unknown,
}

impl Engine {
    /// From a list of models: who owns the first of them. Each engine writes a word of its own there.
    pub(super) fn of_models(models: &Value) -> Engine {
        match models.pointer("/data/0/owned_by").and_then(Value::as_str) {
            Some("vllm") => Engine::Vllm,
            Some("sglang") => Engine::Sglang,
            Some("llamacpp") => Engine::LlamaCpp,
            Some("library") => Engine::Ollama,
            Some("lmdeploy") => Engine::LmDeploy,
            Some("tensorrt_llm") => Engine::TensorRtLlm,
            Some("nvidia") => Engine::Dynamo,
            _ => Engine::Unknown,
        }
    }

    /// From the name that the relay gives it (`gen_ai.provider.name`).
    pub(super) fn of_name(name: &str) -> Engine {
        match name {
            "vllm" => Engine::Vllm,
            "sglang" => Engine::Sglang,
            "llama_cpp" => Engine::LlamaCpp,
            "ollama" => Engine::Ollama,
            "lmdeploy" => Engine::LmDeploy,
            "tensorrt_llm" => Engine::TensorRtLlm,
            "dynamo" => Engine::Dynamo,
            "tgi" => Engine::Tgi,
            _ => Engine::Unknown,
        }
    }

    /// Its name; `None` for one that is not known.
    pub(super) fn name(self) -> Option<&'static str> {
        Some(match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
            Engine::LlamaCpp => "llama.cpp",
            Engine::Ollama => "Ollama",
            Engine::LmDeploy => "LMDeploy",
            Engine::TensorRtLlm => "TensorRT-LLM",
            Engine::Dynamo => "Dynamo",
            Engine::Tgi => "TGI",
            Engine::Unknown => return None,
        })
    }

    /// What makes the counts of streams exact whose clients do not ask for usage.
    pub(super) fn mend_usage(self) -> &'static str {
        match self {
            Engine::Vllm => "start vLLM with --enable-force-include-usage",
            Engine::Sglang => "start SGLang with --stream-response-default-include-usage",
            Engine::Ollama => {
                "let clients ask with stream_options.include_usage, or use Ollama's own /api/chat, which always counts"
            }
            Engine::Tgi => {
                "let clients ask with stream_options.include_usage, or use TGI's own /generate_stream with details"
            }
            _ => {
                "let clients ask with stream_options.include_usage, or mount the model's tokenizer.json for an estimate \
                 (observe.tokenizer); docs/ENGINES.md says what each engine tells"
            }
        }
    }

    /// What makes the server tell how long a request waited.
    pub(super) fn mend_queue(self) -> &'static str {
        match self {
            Engine::Vllm => {
                "start vLLM with --enable-per-request-metrics, or with --otlp-traces-endpoint toward the relay (docs/QUEUE.md)"
            }
            Engine::Sglang => "let SGLang send its spans to the relay (docs/QUEUE.md)",
            Engine::TensorRtLlm => "let TensorRT-LLM send its spans to the relay (docs/QUEUE.md)",
            Engine::Dynamo => "let clients ask with nvext.extra_fields, as docs/QUEUE_TIME.md says",
            Engine::Ollama => "use Ollama's own /api/chat, which tells its durations",
            _ => "docs/QUEUE_TIME.md says what each engine tells",
        }
    }

    /// What keeps it from being reached past the relay.
    pub(super) fn mend_bypass(self) -> &'static str {
        match self {
            Engine::Vllm | Engine::Sglang | Engine::LlamaCpp => "start the server with --host 127.0.0.1",
            Engine::Ollama => "start the server with OLLAMA_HOST=127.0.0.1:PORT",
            Engine::LmDeploy => "start the server with --server-name 127.0.0.1",
            Engine::Tgi => "start the server with --hostname 127.0.0.1",
            _ => "bind the server to 127.0.0.1",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_engine_is_known_by_its_list_of_models_or_by_the_relays_name_for_it() {
        assert_eq!(Engine::of_models(&json!({"data": [{"id": "m", "owned_by": "vllm"}]})), Engine::Vllm);
        assert_eq!(Engine::of_models(&json!({"data": []})), Engine::Unknown);
        assert_eq!(Engine::of_name("llama_cpp"), Engine::LlamaCpp);
        assert_eq!(Engine::of_name(""), Engine::Unknown);
    }

    #[test]
    fn every_engine_has_a_mend_for_what_it_lacks() {
        assert!(Engine::Vllm.mend_usage().contains("--enable-force-include-usage"));
        assert!(Engine::Sglang.mend_usage().contains("--stream-response-default-include-usage"));
        assert!(Engine::Vllm.mend_queue().contains("--enable-per-request-metrics"));
        assert!(Engine::Unknown.mend_bypass().contains("127.0.0.1"));
    }
}
