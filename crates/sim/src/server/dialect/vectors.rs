//! Responses of models that generate nothing: embeddings, classes, scores (recordings `embeddings`, `pooling`, `rerank`
//! of vLLM 0.32.0 and of Ollama 0.17.4), and the size of a prompt.

use crate::server::api::Api;
use crate::server::dialect::Context;
use crate::server::dialect::Times;
use crate::server::dialect::json_text;

/// Dimensions of an embedding.
const DIMENSIONS: u64 = 64;

/// The body of a response.
pub(crate) fn vectors(context: &Context, times: &Times) -> String {
    let (job, identity) = (&context.job, &context.identity);
    let (id, created, model) = (&identity.id, identity.created, json_text(&job.model));
    let prompt = job.prompt_tokens;
    let each = |one: &dyn Fn(u64) -> String| (0..job.inputs).map(one).collect::<Vec<String>>().join(",");
    let usage = format!(
        r#""usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt},"completion_tokens":0,"prompt_tokens_details":null,"completion_tokens_details":null}}"#
    );
    let list = |prefix: &str, data: String| {
        format!(
            r#"{{"id":"{prefix}-{id}","object":"list","created":{created},"model":{model},"data":[{data}],{usage}}}"#
        )
    };
    match job.api {
        Api::CountTokens => format!(r#"{{"input_tokens":{prompt}}}"#),
        Api::Pooling => list(
            "pooling",
            each(&|index| format!(r#"{{"index":{index},"object":"pooling","data":{}}}"#, vector(index))),
        ),
        Api::Classify => list(
            "classify",
            each(&|index| format!(r#"{{"index":{index},"label":"LABEL_0","probs":[0.75,0.25],"num_classes":2}}"#)),
        ),
        Api::Score => {
            list("score", each(&|index| format!(r#"{{"index":{index},"object":"score","score":{:?}}}"#, score(index))))
        }
        Api::Rerank => {
            let results = each(&|index| {
                let score = score(index);
                format!(
                    r#"{{"index":{index},"document":{{"text":"","multi_modal":null}},"relevance_score":{score:?}}}"#
                )
            });
            let usage = format!(r#"{{"prompt_tokens":{prompt},"total_tokens":{prompt}}}"#);
            format!(r#"{{"id":"score-{id}","model":{model},"usage":{usage},"results":[{results}]}}"#)
        }
        Api::OllamaEmbed => {
            let (vectors, total) = (each(&vector), times.total().as_nanos());
            format!(
                r#"{{"model":{model},"embeddings":[{vectors}],"total_duration":{total},"load_duration":{},"prompt_eval_count":{prompt}}}"#,
                total / 2
            )
        }
        Api::OllamaEmbeddings => format!(r#"{{"embedding":{}}}"#, vector(0)),
        _ => list(
            "embd",
            each(&|index| format!(r#"{{"index":{index},"object":"embedding","embedding":{}}}"#, vector(index))),
        ),
    }
}

/// An embedding that depends only on the input's index.
fn vector(index: u64) -> String {
    let numbers: Vec<f64> = (0..DIMENSIONS).map(|at| score(index + at)).collect();
    json_text(&numbers)
}

/// A number between -1 and 1.
fn score(index: u64) -> f64 {
    ((index + 1) as f64 * 0.618_033_988_75).sin()
}
