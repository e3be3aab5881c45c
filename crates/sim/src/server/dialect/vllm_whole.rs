//! Non-streamed JSON bodies, with keys in vLLM's order (0.32.0).

use serde::Serialize;

use crate::server::api::Api;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Metrics;
use crate::server::dialect::json_text;
use crate::server::settings::Settings;

/// A key whose value is always null.
type Null = ();

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<OneOf<'a>>,
    service_tier: Null,
    system_fingerprint: &'a str,
    usage: Usage,
    #[serde(flatten)]
    prompt: Option<Prompt>,
    kv_transfer_params: Null,
    ec_transfer_params: Null,
    metrics: Option<Metrics>,
}

/// Members that only chat has.
#[derive(Serialize)]
struct Prompt {
    prompt_logprobs: Null,
    prompt_token_ids: Option<Vec<u64>>,
    prompt_text: Null,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Null,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    created_cache_tokens: u64,
    multimodal_tokens: Null,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OneOf<'a> {
    Chat {
        index: usize,
        message: Message<'a>,
        logprobs: Null,
        finish_reason: &'static str,
        stop_reason: Null,
        token_ids: Option<&'a [u32]>,
        routed_experts: Null,
    },
    Text {
        index: usize,
        text: &'a str,
        logprobs: Null,
        finish_reason: &'static str,
        stop_reason: Null,
        token_ids: Option<&'a [u32]>,
        prompt_logprobs: Null,
        prompt_token_ids: Option<Vec<u64>>,
        routed_experts: Null,
    },
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Null,
    annotations: Null,
    audio: Null,
    function_call: Null,
    reasoning: Null,
}

/// The body of a non-streamed response.
pub(crate) fn completion(context: &Context, choices: &[Choice], metrics: Option<Metrics>) -> String {
    let (job, identity) = (&context.job, &context.identity);
    let prompt_token_ids = || job.return_token_ids.then(|| (0..job.prompt_tokens).collect());
    let generated: u64 = choices.iter().map(|choice| choice.ids.len() as u64).sum();
    let choices = choices.iter().enumerate().map(|(index, choice)| {
        let finish_reason = choice.reason();
        let token_ids = job.return_token_ids.then_some(choice.ids.as_slice());
        match job.api {
            Api::Chat => OneOf::Chat {
                index,
                message: Message {
                    role: "assistant",
                    content: &choice.text,
                    refusal: (),
                    annotations: (),
                    audio: (),
                    function_call: (),
                    reasoning: (),
                },
                logprobs: (),
                finish_reason,
                stop_reason: (),
                token_ids,
                routed_experts: (),
            },
            _ => OneOf::Text {
                index,
                text: &choice.text,
                logprobs: (),
                finish_reason,
                stop_reason: (),
                token_ids,
                prompt_logprobs: (),
                prompt_token_ids: prompt_token_ids(),
                routed_experts: (),
            },
        }
    });
    json_text(&Completion {
        id: &identity.id,
        object: if job.api == Api::Chat { "chat.completion" } else { "text_completion" },
        created: identity.created,
        model: &job.model,
        choices: choices.collect(),
        service_tier: (),
        system_fingerprint: &identity.fingerprint,
        usage: Usage {
            prompt_tokens: job.prompt_tokens,
            total_tokens: job.prompt_tokens + generated,
            completion_tokens: generated,
            prompt_tokens_details: context.cached_details.then_some(PromptDetails {
                cached_tokens: job.cached_tokens,
                created_cache_tokens: 0,
                multimodal_tokens: (),
            }),
            completion_tokens_details: (),
        },
        prompt: (job.api == Api::Chat).then(|| Prompt {
            prompt_logprobs: (),
            prompt_token_ids: prompt_token_ids(),
            prompt_text: (),
        }),
        kv_transfer_params: (),
        ec_transfer_params: (),
        metrics,
    })
}

#[derive(Serialize)]
struct Models<'a> {
    object: &'static str,
    data: [Model<'a>; 1],
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: Null,
    max_model_len: u64,
    permission: [Permission; 1],
}

#[derive(Serialize)]
struct Permission {
    id: String,
    object: &'static str,
    created: u64,
    allow_create_engine: bool,
    allow_sampling: bool,
    allow_logprobs: bool,
    allow_search_indices: bool,
    allow_view: bool,
    allow_fine_tuning: bool,
    organization: &'static str,
    group: Null,
    is_blocking: bool,
}

/// `/v1/models`.
pub(crate) fn models(settings: &Settings, created: u64) -> String {
    let permission = Permission {
        id: format!("modelperm-{created:016x}"),
        object: "model_permission",
        created,
        allow_create_engine: false,
        allow_sampling: true,
        allow_logprobs: true,
        allow_search_indices: false,
        allow_view: true,
        allow_fine_tuning: false,
        organization: "*",
        group: (),
        is_blocking: false,
    };
    let model = Model {
        id: &settings.model,
        object: "model",
        created,
        owned_by: "vllm",
        root: &settings.model,
        parent: (),
        max_model_len: settings.max_model_len,
        permission: [permission],
    };
    json_text(&Models { object: "list", data: [model] })
}
