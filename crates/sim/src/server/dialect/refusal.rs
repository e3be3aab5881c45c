//! Error envelopes of responses with an error status.

use crate::server::api::Api;
use crate::server::api::Imitation;
use crate::server::dialect::json_text;
use crate::server::job::Refusal;

/// The body of an error response. Keys are in the engines' order, which a JSON map would not preserve.
pub(crate) fn refusal(api: Api, engine: Imitation, refusal: &Refusal) -> String {
    let (status, kind, message) = (refusal.status, refusal.kind, json_text(&refusal.message));
    let param = json_text(&refusal.param);
    match (api, engine) {
        (Api::Messages | Api::CountTokens, _) => {
            let kind = match status {
                404 => "not_found_error",
                429 => "rate_limit_error",
                529 => "overloaded_error",
                400..=499 => "invalid_request_error",
                _ => "api_error",
            };
            format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#)
        }
        (_, Imitation::LlamaCpp) => {
            let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
            format!(r#"{{"error":{{"code":{status},"message":{message},"type":"{kind}"}}}}"#)
        }
        (_, Imitation::Tgi) => {
            let kind = match status {
                429 => "overloaded",
                400..=499 => "validation",
                _ => "generation",
            };
            format!(r#"{{"error":{message},"error_type":"{kind}"}}"#)
        }
        (_, Imitation::Ollama | Imitation::Triton) => format!(r#"{{"error":{message}}}"#),
        (Api::Sglang | Api::LmDeploy, _) => format!(r#"{{"error":{{"message":{message}}}}}"#),
        (_, Imitation::Sglang) => {
            format!(r#"{{"object":"error","message":{message},"type":"{kind}","param":null,"code":{status}}}"#)
        }
        (_, Imitation::Dynamo) => format!(r#"{{"message":{message},"type":"{kind}","code":{status}}}"#),
        // vLLM's; the code is a number.
        _ => format!(r#"{{"error":{{"message":{message},"type":"{kind}","param":{param},"code":{status}}}}}"#),
    }
}
