//! Engine detection, and the engine settings that make counts and queue times exact.

use serde_json::Value;

use tokometer_decode::Engine;
use tokometer_decode::engine::Advice;

/// From a model list: each engine writes its own name into `owned_by`.
pub(super) fn of_models(models: &Value) -> Option<Engine> {
    models.pointer("/data/0/owned_by").and_then(Value::as_str).and_then(Engine::of_owner)
}

/// The advice for an engine.
pub(super) fn advice(engine: Option<Engine>) -> Advice {
    engine.map_or(Advice::GENERAL, |engine| engine.info().advice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn engine_is_recognised_by_the_owner_of_its_first_model() {
        assert_eq!(of_models(&json!({"data": [{"id": "m", "owned_by": "vllm"}]})), Some(Engine::Vllm));
        assert_eq!(of_models(&json!({"data": []})), None);
    }

    #[test]
    fn advice_names_the_flags_of_the_engine() {
        assert!(advice(Some(Engine::Vllm)).usage.contains("--enable-force-include-usage"));
        assert!(advice(Some(Engine::Sglang)).usage.contains("--stream-response-default-include-usage"));
        assert!(advice(Some(Engine::Vllm)).queue.contains("--enable-per-request-metrics"));
        assert!(advice(None).bypass.contains("127.0.0.1"));
    }
}
