//! The known places of all dialects in one set, so that a place is one byte.

use super::openai;
use super::openai_chat;
use super::openai_completions;
use crate::decode::Route;
use crate::decode::scan;
use crate::decode::scan::Shape;

/// A place in an answer that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// Nothing in the text is known.
    Unread,
    /// The whole answer of `/v1/chat/completions`.
    Chat,
    /// The whole answer of `/v1/completions`.
    Completion,
    /// `id`
    Id,
    /// `model`
    Model,
    /// `object`
    Object,
    /// `system_fingerprint`
    Fingerprint,
    /// A key that only vLLM sends.
    VllmMark,
    /// A key that only SGLang sends.
    SglangMark,
    /// `prompt_progress`
    PromptProgress,
    /// `error`
    Error,
    /// `error.type`
    ErrorType,
    /// `error_type` beside `error`
    OuterErrorType,
    /// `type` beside `object: "error"`
    FlatErrorType,
    /// `choices` of a chat
    ChatChoices,
    /// `choices[]` of a chat
    ChatChoice,
    /// `choices` of a completion
    CompletionChoices,
    /// `choices[]` of a completion
    CompletionChoice,
    /// `choices[].index`
    Index,
    /// `choices[].finish_reason`
    FinishReason,
    /// `choices[].delta`
    Delta,
    /// `choices[].message`
    Message,
    /// `role`
    Role,
    /// `content`
    Content,
    /// `reasoning`, `reasoning_content`
    Reasoning,
    /// `refusal`
    Refusal,
    /// `tool_calls`
    ToolCalls,
    /// `tool_calls[]`
    ToolCall,
    /// `function_call`, `tool_calls[].function`, `tool_calls[].custom`
    Function,
    /// The name or the arguments of a function
    FunctionText,
    /// `audio`
    Audio,
    /// `audio.data`, `audio.transcript`
    AudioText,
    /// `choices[].text`
    CompletionText,
    /// `choices[].token_ids`
    TokenIds,
    /// `choices[].token_ids[]`
    TokenId,
    /// `choices[].logprobs`
    Logprobs,
    /// `choices[].logprobs.content`, `choices[].logprobs.tokens`
    LogprobList,
    /// One entry of it
    Logprob,
    /// `usage`
    Usage,
    /// `usage.prompt_tokens`
    PromptTokens,
    /// `usage.completion_tokens`
    CompletionTokens,
    /// `usage.reasoning_tokens`
    OuterReasoningTokens,
    /// `usage.prompt_tokens_details`
    PromptDetails,
    /// `usage.prompt_tokens_details.cached_tokens`
    CachedTokens,
    /// `usage.completion_tokens_details`
    CompletionDetails,
    /// `usage.completion_tokens_details.reasoning_tokens`
    ReasoningTokens,
    /// `metrics` (vLLM)
    Metrics,
    /// `metrics.queue_time_ms`
    QueueMs,
    /// `metrics.time_to_first_token_ms`
    PrefillMs,
    /// `metrics.generation_time_ms`, `timings.predicted_ms`
    DecodeMs,
    /// `metrics.mean_itl_ms`
    MeanItlMs,
    /// `metrics.speculative_decoding`
    Speculation,
    /// Draft tokens proposed
    DraftTokens,
    /// Draft tokens accepted
    AcceptedTokens,
    /// `timings` (llama.cpp)
    Timings,
    /// `timings.prompt_ms`
    PromptMs,
    /// `timings.cache_n`
    CacheN,
    /// `timings.prompt_n`
    PromptN,
    /// `timings.predicted_n`
    PredictedN,
}

impl Place {
    /// The place of the whole answer on this route. The one switch of a dialect: a route whose answers lie at
    /// [`Place::Unread`] is counted, not read ([`Route::is_read`]).
    pub(crate) fn root(route: Route) -> Place {
        match route {
            Route::Chat => Place::Chat,
            Route::Completions => Place::Completion,
            // Their dialects are not read yet: a line of its own above this one switches a route on.
            Route::Responses
            | Route::Messages
            | Route::Generate
            | Route::TgiStream
            | Route::TgiCompat
            | Route::LlamaCompletion
            | Route::Infill
            | Route::OllamaChat
            | Route::OllamaGenerate
            | Route::TritonGenerate
            | Route::VllmGenerate
            | Route::CohereChat
            | Route::AudioTranscription
            | Route::AudioTranslation
            | Route::Realtime
            | Route::Embeddings
            | Route::Rerank
            | Route::Score
            | Route::Classify
            | Route::Pooling
            | Route::Invocations => Place::Unread,
            Route::Probe | Route::Other => Place::Unread,
        }
    }
}

impl scan::Place for Place {
    fn shape(self) -> Shape<Place> {
        match self {
            Place::Unread
            | Place::VllmMark
            | Place::SglangMark
            | Place::PromptProgress
            | Place::TokenId
            | Place::Logprob => Shape::Mark,
            Place::Chat => Shape::Object(&openai_chat::ANSWER),
            Place::ChatChoices => Shape::Array(Place::ChatChoice),
            Place::ChatChoice => Shape::Object(&openai_chat::CHOICE),
            Place::Delta | Place::Message => Shape::Object(&openai_chat::MESSAGE),
            Place::ToolCalls => Shape::Array(Place::ToolCall),
            Place::ToolCall => Shape::Object(&openai_chat::TOOL_CALL),
            Place::Function => Shape::Object(&openai_chat::FUNCTION),
            Place::Audio => Shape::Object(&openai_chat::AUDIO),
            Place::Completion => Shape::Object(&openai_completions::ANSWER),
            Place::CompletionChoices => Shape::Array(Place::CompletionChoice),
            Place::CompletionChoice => Shape::Object(&openai_completions::CHOICE),
            Place::Error => Shape::Object(&openai::ERROR),
            Place::TokenIds => Shape::Array(Place::TokenId),
            Place::Logprobs => Shape::Object(&openai::LOGPROBS),
            Place::LogprobList => Shape::Array(Place::Logprob),
            Place::Usage => Shape::Object(&openai::USAGE),
            Place::PromptDetails => Shape::Object(&openai::PROMPT_DETAILS),
            Place::CompletionDetails => Shape::Object(&openai::COMPLETION_DETAILS),
            Place::Metrics => Shape::Object(&openai::METRICS),
            Place::Speculation => Shape::Object(&openai::SPECULATION),
            Place::Timings => Shape::Object(&openai::TIMINGS),
            Place::Content
            | Place::Reasoning
            | Place::Refusal
            | Place::FunctionText
            | Place::AudioText
            | Place::CompletionText => Shape::Text,
            Place::Id
            | Place::Model
            | Place::Object
            | Place::Fingerprint
            | Place::ErrorType
            | Place::OuterErrorType
            | Place::FlatErrorType
            | Place::FinishReason
            | Place::Role => Shape::Word,
            Place::Index
            | Place::PromptTokens
            | Place::CompletionTokens
            | Place::OuterReasoningTokens
            | Place::CachedTokens
            | Place::ReasoningTokens
            | Place::QueueMs
            | Place::PrefillMs
            | Place::DecodeMs
            | Place::MeanItlMs
            | Place::DraftTokens
            | Place::AcceptedTokens
            | Place::PromptMs
            | Place::CacheN
            | Place::PromptN
            | Place::PredictedN => Shape::Number,
        }
    }
}
