//! Engine detection, and the engine settings that make counts and queue times exact.

use serde_json::Value;

/// An engine, as far as the fixes differ.
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
    /// From a model list: each engine writes its own name into `owned_by`.
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

    /// From the proxy's name for it (`gen_ai.provider.name`).
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

    /// Display name; `None` for an unknown engine.
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

    /// How to get exact token counts for streams whose clients do not ask for usage.
    pub(super) fn mend_usage(self) -> &'static str {
        match self {
            Engine::Vllm => "start vLLM with --enable-force-include-usage",
            Engine::Sglang => "start SGLang with --stream-response-default-include-usage",
            Engine::Ollama => {
                "let clients set stream_options.include_usage, or use Ollama's own /api/chat, which always counts"
            }
            Engine::Tgi => {
                "let clients set stream_options.include_usage, or use TGI's own /generate_stream with details"
            }
            _ => {
                "let clients set stream_options.include_usage, or mount the model's tokenizer.json for an estimate \
                 (observe.tokenizer); docs/ENGINES.md lists what each engine reports"
            }
        }
    }

    /// How to make the server report queue times.
    pub(super) fn mend_queue(self) -> &'static str {
        match self {
            Engine::Vllm => {
                "start vLLM with --enable-per-request-metrics, or with --otlp-traces-endpoint pointing to tokometer (docs/QUEUE.md)"
            }
            Engine::Sglang => "let SGLang send its spans to tokometer (docs/QUEUE.md)",
            Engine::TensorRtLlm => "let TensorRT-LLM send its spans to tokometer (docs/QUEUE.md)",
            Engine::Dynamo => "let clients set nvext.extra_fields (docs/QUEUE_TIME.md)",
            Engine::Ollama => "use Ollama's own /api/chat, which reports its durations",
            _ => "docs/QUEUE_TIME.md lists what each engine reports",
        }
    }

    /// How to keep clients from bypassing the proxy.
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
    fn engine_is_recognised_by_model_list_or_provider_name() {
        assert_eq!(Engine::of_models(&json!({"data": [{"id": "m", "owned_by": "vllm"}]})), Engine::Vllm);
        assert_eq!(Engine::of_models(&json!({"data": []})), Engine::Unknown);
        assert_eq!(Engine::of_name("llama_cpp"), Engine::LlamaCpp);
        assert_eq!(Engine::of_name(""), Engine::Unknown);
    }

    #[test]
    fn fixes_name_the_flags_of_the_engine() {
        assert!(Engine::Vllm.mend_usage().contains("--enable-force-include-usage"));
        assert!(Engine::Sglang.mend_usage().contains("--stream-response-default-include-usage"));
        assert!(Engine::Vllm.mend_queue().contains("--enable-per-request-metrics"));
        assert!(Engine::Unknown.mend_bypass().contains("127.0.0.1"));
    }
}
