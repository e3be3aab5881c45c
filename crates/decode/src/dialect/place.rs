//! The known places of all dialects in one enum, so that a place fits in one byte.

use super::anthropic_messages;
use super::cohere_chat;
use super::input_only;
use super::llama_cpp;
use super::nvext;
use super::ollama;
use super::openai;
use super::openai_chat;
use super::openai_completions;
use super::openai_responses;
use super::sglang;
use super::tgi;
use super::transcription;
use super::triton;
use super::vllm_generate;
use crate::Framing;
use crate::Route;
use crate::scan;
use crate::scan::Shape;

/// A known place in a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// A text of which nothing is decoded.
    Unread,
    /// The whole response of `/v1/chat/completions`.
    Chat,
    /// The whole response of `/v1/completions`.
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
    /// A key that only Ollama sends.
    OllamaMark,
    /// A key that only TensorRT-LLM sends.
    TensorrtMark,
    /// A key that only LMDeploy sends.
    LmdeployMark,
    /// `nvext` (Dynamo)
    Nvext,
    /// `nvext.timing`
    NvextTiming,
    /// `prompt_progress`
    PromptProgress,
    /// `error`
    Error,
    /// `error.type`
    ErrorType,
    /// `error_type` next to `error`
    OuterErrorType,
    /// `type` next to `object: "error"`
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
    /// Prompt tokens that were written to the cache
    CacheCreationTokens,
    /// Audio tokens of the prompt
    InputAudioTokens,
    /// Image tokens of the prompt
    InputImageTokens,
    /// Audio tokens of the response
    OutputAudioTokens,
    /// `usage.prompt_tokens_details.multimodal_tokens` (vLLM)
    MultimodalTokens,

    /// `type` of an event
    EventType,
    /// `delta`, if it is a string; `type` determines its meaning
    EventDelta,
    /// `sequence_number`
    SequenceNumber,
    /// A whole event of `/v1/responses` or of realtime
    ResponseEvent,
    /// `response`, or the whole body of `/v1/responses`
    Response,
    /// `status`
    Status,
    /// `incomplete_details`, `status_details`
    StatusDetails,
    /// `incomplete_details.reason`
    StatusReason,
    /// `item`
    Item,
    /// The name, the arguments or the input of an item
    ItemText,
    /// `error` with a `code`
    CodedError,
    /// `error.code`, or `code` of an event
    ErrorCode,
    /// `usage` with the key names of `/v1/responses` or of chats
    TokenUsage,
    /// `session`
    Session,
    /// `session.type`
    SessionType,
    /// `session.audio`
    SessionAudio,
    /// `session.audio.input`
    SessionInput,
    /// `session.audio.input.transcription`
    SessionTranscription,

    /// A whole event of `/v1/messages`
    MessageEvent,
    /// The whole body of `/v1/messages`
    MessageBody,
    /// `message` of `message_start`
    MessageStart,
    /// `message.usage` of `message_start`
    MessageStartUsage,
    /// `usage` of `message_delta`, or of a body
    MessageUsage,
    /// `delta` of a block or of the message
    BlockDelta,
    /// `content`
    ContentBlocks,
    /// `content[]`, `content_block`
    ContentBlock,

    /// A whole event of `/v2/chat`
    CohereEvent,
    /// The whole body of `/v2/chat`
    CohereBody,
    /// `delta`
    CohereDelta,
    /// `delta.message`
    CohereMessage,
    /// `message` of a body
    CohereWhole,
    /// `message.content` of a body
    CohereContents,
    /// `message.content[]`, `delta.message.content`
    CohereContent,
    /// `usage`
    CohereUsage,
    /// `usage.tokens`
    CohereTokens,

    /// A whole event of a transcription
    TranscriptEvent,
    /// The whole body of a transcription
    TranscriptBody,

    // The engines' own routes.
    /// The whole response of `/generate`: one object or an array.
    Generate,
    /// One element of it
    Generated,
    /// `predictions` of SGLang: an array of responses
    Predictions,
    /// One element of it
    Predicted,
    /// `predictions` of TGI: an array of texts
    PredictedTexts,
    /// `meta_info` (SGLang, LMDeploy)
    MetaInfo,
    /// `meta_info.finish_reason`
    FinishObject,
    /// `meta_info.queue_time`
    QueueSeconds,
    /// The whole response of `/generate_stream` or `/` (TGI): one object or an array.
    Tgi,
    /// One element of it
    TgiAnswer,
    /// `token`
    TgiToken,
    /// `token.special`
    Special,
    /// `generated_text`
    GeneratedText,
    /// `details`
    Details,
    /// The whole response of `/completion` or `/infill` (llama.cpp): one object or an array.
    LlamaCpp,
    /// One element of it
    LlamaCppAnswer,
    /// `tokens_predicted`
    TokensPredicted,
    /// `stop`
    Stop,
    /// `stop_type`
    StopType,
    /// `stopped_eos`, `stopped_word`
    StoppedAtEnd,
    /// `stopped_limit`
    StoppedAtLimit,
    /// The whole response of `/api/chat` or `/api/generate` (Ollama)
    Ollama,
    /// `message`
    OllamaMessage,
    /// `message.images`
    Images,
    /// `done`
    OllamaDone,
    /// `total_duration`
    TotalNs,
    /// `load_duration`
    LoadNs,
    /// `prompt_eval_duration`
    PromptNs,
    /// `eval_duration`
    DecodeNs,
    /// Prompt tokens in the engine's own key
    CounterInput,
    /// Cached prompt tokens in the engine's own key
    CounterCached,
    /// Reasoning tokens in the engine's own key
    CounterReasoning,
    /// Running total of output tokens, in an engine's own key that every event has
    RunningOutput,
    /// Output tokens in an engine's own key that the last event has
    TotalOutput,

    /// The whole body of embeddings and similar APIs: one object or an array.
    InputOnly,
    /// One element of it
    InputOnlyAnswer,
    /// `meta`
    InputMeta,
    /// `meta.tokens`
    InputTokens,
    /// `meta.billed_units`
    BilledUnits,
    /// `meta.billed_units.input_tokens`
    BilledTokens,

    /// The whole response of `/inference/v1/generate`
    VllmGenerate,

    /// The whole response of Triton's generate extension
    Triton,
    /// `model_version`
    TritonMark,
}

impl Place {
    /// The place of a whole event on this route, or of the whole response if it is one JSON text. This alone enables a
    /// dialect: responses with the root [`Place::Unread`] are counted, not decoded ([`Route::is_read`]).
    pub(crate) fn root(route: Route, framing: Framing) -> Place {
        let is_body = framing == Framing::Json;
        match route {
            // Plain text has no known places.
            _ if framing == Framing::Text => Place::Unread,
            Route::Chat => Place::Chat,
            Route::Completions => Place::Completion,
            Route::Responses if is_body => Place::Response,
            Route::Responses => Place::ResponseEvent,
            Route::Messages if is_body => Place::MessageBody,
            Route::Messages => Place::MessageEvent,
            Route::CohereChat if is_body => Place::CohereBody,
            Route::CohereChat => Place::CohereEvent,
            Route::AudioTranscription | Route::AudioTranslation if is_body => Place::TranscriptBody,
            Route::AudioTranscription | Route::AudioTranslation => Place::TranscriptEvent,
            // Its responses are messages after an upgrade, in no other framing.
            Route::Realtime if framing == Framing::Messages => Place::ResponseEvent,
            Route::Realtime => Place::Unread,
            Route::Generate => Place::Generate,
            Route::TgiStream | Route::TgiCompat => Place::Tgi,
            Route::LlamaCompletion | Route::Infill => Place::LlamaCpp,
            Route::OllamaChat | Route::OllamaGenerate => Place::Ollama,
            Route::Embeddings | Route::Rerank | Route::Score | Route::Classify | Route::Pooling => Place::InputOnly,
            Route::VllmGenerate => Place::VllmGenerate,
            Route::TritonGenerate => Place::Triton,
            // The request body determines which other route applies.
            Route::Invocations => Place::Unread,
            // Protobuf messages, which `grpc` decodes.
            Route::VllmInference
            | Route::VllmInferenceStream
            | Route::VllmEngine
            | Route::SglangScheduler
            | Route::TensorrtService
            | Route::TritonInfer
            | Route::TritonInferStream => Place::Unread,
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
            | Place::OllamaMark
            | Place::TensorrtMark
            | Place::LmdeployMark
            | Place::TritonMark
            | Place::PromptProgress
            | Place::TokenId
            | Place::Logprob
            | Place::SequenceNumber
            | Place::Special
            | Place::Stop
            | Place::StoppedAtEnd
            | Place::StoppedAtLimit
            | Place::Images
            | Place::OllamaDone => Shape::Mark,
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
            Place::Nvext => Shape::Object(&nvext::NVEXT),
            Place::NvextTiming => Shape::Object(&nvext::TIMING),
            Place::InputOnly => Shape::OneOrMany(&input_only::ANSWER, Place::InputOnlyAnswer),
            Place::InputOnlyAnswer => Shape::Object(&input_only::ONE_OF_SEVERAL),
            Place::InputMeta => Shape::Object(&input_only::META),
            Place::InputTokens => Shape::Object(&input_only::TOKENS),
            Place::BilledUnits => Shape::Object(&input_only::BILLED),
            Place::VllmGenerate => Shape::Object(&vllm_generate::ANSWER),
            Place::Triton => Shape::Object(&triton::ANSWER),
            Place::MultimodalTokens => Shape::Object(&openai::MULTIMODAL_TOKENS),
            Place::ResponseEvent => Shape::Object(&openai_responses::EVENT),
            Place::Response => Shape::Object(&openai_responses::RESPONSE),
            Place::StatusDetails => Shape::Object(&openai_responses::STATUS_DETAILS),
            Place::Item => Shape::Object(&openai_responses::ITEM),
            Place::CodedError => Shape::Object(&openai_responses::CODED_ERROR),
            Place::TokenUsage | Place::CohereTokens => Shape::Object(&openai_responses::USAGE),
            Place::Session => Shape::Object(&openai_responses::SESSION),
            Place::SessionAudio => Shape::Object(&openai_responses::SESSION_AUDIO),
            Place::SessionInput => Shape::Object(&openai_responses::SESSION_INPUT),
            Place::SessionTranscription => Shape::Object(&openai_responses::SESSION_TRANSCRIPTION),
            Place::MessageEvent => Shape::Object(&anthropic_messages::EVENT),
            Place::MessageBody => Shape::Object(&anthropic_messages::MESSAGE),
            Place::MessageStart => Shape::Object(&anthropic_messages::START),
            Place::MessageStartUsage => Shape::Object(&anthropic_messages::START_USAGE),
            Place::MessageUsage => Shape::Object(&anthropic_messages::USAGE),
            Place::BlockDelta => Shape::Object(&anthropic_messages::DELTA),
            Place::ContentBlocks => Shape::Array(Place::ContentBlock),
            Place::ContentBlock => Shape::Object(&anthropic_messages::BLOCK),
            Place::CohereEvent => Shape::Object(&cohere_chat::EVENT),
            Place::CohereBody => Shape::Object(&cohere_chat::BODY),
            Place::CohereDelta => Shape::Object(&cohere_chat::DELTA),
            Place::CohereMessage => Shape::Object(&cohere_chat::MESSAGE),
            Place::CohereWhole => Shape::Object(&cohere_chat::WHOLE),
            Place::CohereContents => Shape::Array(Place::CohereContent),
            Place::CohereContent => Shape::Object(&cohere_chat::CONTENT),
            Place::CohereUsage => Shape::Object(&cohere_chat::USAGE),
            Place::TranscriptEvent => Shape::Object(&transcription::EVENT),
            Place::TranscriptBody => Shape::Object(&transcription::BODY),
            Place::Generate => Shape::OneOrMany(&sglang::ANSWER, Place::Generated),
            Place::Generated => Shape::Object(&sglang::ANSWER),
            Place::Predictions => Shape::Array(Place::Predicted),
            Place::Predicted => Shape::Object(&sglang::PREDICTED),
            Place::PredictedTexts => Shape::Array(Place::Content),
            Place::MetaInfo => Shape::Object(&sglang::META_INFO),
            Place::FinishObject => Shape::Object(&sglang::FINISH),
            Place::Tgi => Shape::OneOrMany(&tgi::ANSWER, Place::TgiAnswer),
            Place::TgiAnswer => Shape::Object(&tgi::ANSWER),
            Place::TgiToken => Shape::Object(&tgi::TOKEN),
            Place::Details => Shape::Object(&tgi::DETAILS_KEYS),
            Place::LlamaCpp => Shape::OneOrMany(&llama_cpp::ANSWER, Place::LlamaCppAnswer),
            Place::LlamaCppAnswer => Shape::Object(&llama_cpp::ANSWER),
            Place::Ollama => Shape::Object(&ollama::ANSWER),
            Place::OllamaMessage => Shape::Object(&ollama::MESSAGE),
            Place::Content
            | Place::Reasoning
            | Place::Refusal
            | Place::FunctionText
            | Place::AudioText
            | Place::CompletionText
            | Place::EventDelta
            | Place::ItemText
            | Place::GeneratedText => Shape::Text,
            Place::Id
            | Place::Model
            | Place::Object
            | Place::Fingerprint
            | Place::ErrorType
            | Place::OuterErrorType
            | Place::FlatErrorType
            | Place::FinishReason
            | Place::Role
            | Place::EventType
            | Place::Status
            | Place::StatusReason
            | Place::ErrorCode
            | Place::SessionType
            | Place::StopType => Shape::Word,
            Place::Index
            | Place::BilledTokens
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
            | Place::PredictedN
            | Place::CacheCreationTokens
            | Place::InputAudioTokens
            | Place::InputImageTokens
            | Place::OutputAudioTokens
            | Place::QueueSeconds
            | Place::TokensPredicted
            | Place::TotalNs
            | Place::LoadNs
            | Place::PromptNs
            | Place::DecodeNs
            | Place::CounterInput
            | Place::CounterCached
            | Place::CounterReasoning
            | Place::RunningOutput
            | Place::TotalOutput => Shape::Number,
        }
    }
}
