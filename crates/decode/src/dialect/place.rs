//! The known places of all dialects in one table, so that a place fits in one byte, and the values that are each read
//! from one place.

use super::{native, openai, typed};
use crate::response::Draft;
use crate::scan;
use crate::scan::Shape;

/// Declares [`Place`] with the expected type of each place, and the known keys or the elements of containers.
macro_rules! places {
    ($( $(#[$meta:meta])* $place:ident: $shape:ident $(($($argument:expr),+))?, )+) => {
        /// A known place in a response body.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Place { $( $(#[$meta])* $place, )+ }

        impl scan::Place for Place {
            fn shape(self) -> Shape<Place> {
                match self { $( Place::$place => Shape::$shape $(($($argument),+))?, )+ }
            }
        }
    };
}

#[rustfmt::skip]
places! {
    /// A text that is not decoded.
    Unread: Mark,
    /// The whole response of `/v1/chat/completions`.
    Chat: Object(&openai::CHAT),
    /// The whole response of `/v1/completions`.
    Completion: Object(&openai::COMPLETION),
    /// `id`
    Id: Word,
    /// `model`
    Model: Word,
    /// `object`
    Object: Word,
    /// `system_fingerprint`
    Fingerprint: Word,
    /// A key that only vLLM sends.
    VllmMark: Mark,
    /// A key that only SGLang sends.
    SglangMark: Mark,
    /// A key that only Ollama sends.
    OllamaMark: Mark,
    /// A key that only TensorRT-LLM sends.
    TensorrtLlmMark: Mark,
    /// A key that only LMDeploy sends.
    LmdeployMark: Mark,
    /// A key that only LightLLM sends.
    LightllmMark: Mark,
    /// A key that only Triton sends.
    TritonMark: Mark,
    /// `nvext` (Dynamo)
    Nvext: Object(&openai::NVEXT),
    /// `nvext.timing`
    NvextTiming: Object(&openai::NVEXT_TIMING),
    /// `prompt_progress`
    PromptProgress: Mark,
    /// `error`
    Error: TextOrOne(&openai::ERROR),
    /// `error.type`
    ErrorType: WordOrOne(&openai::ERROR_DETAIL),
    /// `error.code` of other events
    ErrorNumber: Number,
    /// `error.message`
    ErrorMessage: WordOrOne(&openai::ERROR_DETAIL),
    /// Any other value in `error`
    ErrorDetail: Texts(&openai::ERROR_DETAIL, Place::ErrorDetail),
    /// `base_resp` (MiniMax)
    BaseResponse: Object(&openai::BASE_RESPONSE),
    /// `base_resp.status_code`: 0 if there is no error
    BaseStatus: Number,
    /// `error_type` next to `error`
    OuterErrorType: Word,
    /// `type` next to `object: "error"`
    FlatErrorType: Word,
    /// `choices` of a chat
    ChatChoices: Array(Place::ChatChoice),
    /// `choices[]` of a chat
    ChatChoice: Object(&openai::CHAT_CHOICE),
    /// `choices` of a completion
    CompletionChoices: Array(Place::CompletionChoice),
    /// `choices[]` of a completion
    CompletionChoice: Object(&openai::COMPLETION_CHOICE),
    /// `choices[].index`
    Index: Number,
    /// `finish_reason`; some servers send SGLang's object
    FinishReason: WordOrOne(&native::FINISH_OBJECT),
    /// `choices[].finish_reason`, in either of its names
    ChoiceFinish: WordOrOne(&native::CHOICE_FINISH_OBJECT),
    /// `choices[].delta`
    Delta: Object(&openai::MESSAGE),
    /// `choices[].message`
    Message: Object(&openai::MESSAGE),
    /// `role`
    Role: Word,
    /// `content`: a text, a part, or a list of parts (Mistral, Magistral; Triton's lists of texts)
    Content: Texts(&openai::CONTENT_PART, Place::ContentPart),
    /// A part of `content`, or the text of a part
    ContentPart: TextOrOne(&openai::CONTENT_PART),
    /// `reasoning`, `reasoning_content`: a text, a part, or a list of parts
    Reasoning: Texts(&openai::REASONING_PART, Place::ReasoningPart),
    /// `reasoning_details`, `thinking_blocks`
    ReasoningDetails: OneOrMany(&openai::REASONING_PART, Place::ReasoningPart),
    /// A part of the reasoning, or the text of a part
    ReasoningPart: TextOrOne(&openai::REASONING_PART),
    /// An image, or a list of images
    Image: Texts(&openai::IMAGE, Place::Image),
    /// `refusal`
    Refusal: Text,
    /// `tool_calls`
    ToolCalls: OneOrMany(&openai::TOOL_CALL, Place::ToolCall),
    /// `tool_calls[]`
    ToolCall: Object(&openai::TOOL_CALL),
    /// `function_call`, `tool_calls[].function`, `tool_calls[].custom`
    Function: Object(&openai::FUNCTION),
    /// The name or the arguments of a function
    FunctionText: Text,
    /// `audio`
    Audio: Object(&openai::AUDIO),
    /// `audio.data`, `audio.transcript`
    AudioText: Text,
    /// `choices[].text` of a chat
    ChatText: Texts(&openai::CONTENT_PART, Place::ContentPart),
    /// `choices[].text`
    CompletionText: Texts(&openai::CONTENT_PART, Place::ContentPart),
    /// `choices[].token_ids`
    TokenIds: Array(Place::TokenId),
    /// `choices[].logprobs`
    Logprobs: Object(&openai::LOGPROBS),
    /// `choices[].logprobs.content`, `choices[].logprobs.tokens`
    LogprobList: Array(Place::Logprob),
    /// `usage`
    Usage: Object(&openai::USAGE),
    /// `x_groq`
    XGroq: Object(&openai::X_GROQ),
    /// `usage.reasoning_tokens`
    OuterReasoningTokens: Number,
    /// `usage.prompt_tokens_details`
    PromptDetails: Object(&openai::PROMPT_DETAILS),
    /// `usage.completion_tokens_details`
    CompletionDetails: Object(&openai::COMPLETION_DETAILS),
    /// `metrics` (vLLM)
    Metrics: Object(&openai::METRICS),
    /// `metrics.speculative_decoding`
    Speculation: Object(&openai::SPECULATION),
    /// `timings` (llama.cpp)
    Timings: Object(&openai::TIMINGS),
    /// `usage.prompt_tokens_details.multimodal_tokens` (vLLM)
    MultimodalTokens: Object(&openai::MULTIMODAL_TOKENS),

    // The counts, in one block: `Draft` stores each by its position in the block.
    /// `usage.prompt_tokens`
    PromptTokens: Number,
    /// `usage.completion_tokens`
    CompletionTokens: Number,
    /// `usage.prompt_tokens_details.cached_tokens`
    CachedTokens: Number,
    /// `usage.completion_tokens_details.reasoning_tokens`
    ReasoningTokens: Number,
    /// Prompt tokens that were written to the cache
    CacheCreationTokens: Number,
    /// Audio tokens of the prompt
    InputAudioTokens: Number,
    /// Image tokens of the prompt
    InputImageTokens: Number,
    /// Video tokens of the prompt
    InputVideoTokens: Number,
    /// Audio tokens of the response
    OutputAudioTokens: Number,
    /// `choices[].token_ids[]`
    TokenId: Mark,
    /// One entry of a log-probability list
    Logprob: Mark,
    /// `timings.cache_n`
    CacheN: Number,
    /// `timings.prompt_n`
    PromptN: Number,
    /// `timings.predicted_n`
    PredictedN: Number,
    /// Draft tokens proposed
    DraftTokens: Number,
    /// Draft tokens accepted
    AcceptedTokens: Number,

    // The durations, also in one block.
    /// `metrics.queue_time_ms`
    QueueMs: Number,
    /// `metrics.time_to_first_token_ms`
    PrefillMs: Number,
    /// `metrics.generation_time_ms`, `timings.predicted_ms`
    DecodeMs: Number,
    /// `timings.prompt_ms`
    PromptMs: Number,
    /// `load_duration`
    LoadNs: Number,
    /// `total_duration`
    TotalNs: Number,

    /// `type` of an event
    EventType: Word,
    /// `delta`, or its text; `type` determines its meaning
    EventDelta: Texts(&typed::EVENT_DELTA, Place::EventDelta),
    /// `sequence_number`
    SequenceNumber: Mark,
    /// A whole event of `/v1/responses` or of realtime
    ResponseEvent: Object(&typed::RESPONSE_EVENT),
    /// `response`, or the whole body of `/v1/responses`
    Response: Object(&typed::RESPONSE),
    /// `status`
    Status: Word,
    /// `incomplete_details`, `status_details`
    StatusDetails: Object(&typed::STATUS_DETAILS),
    /// `incomplete_details.reason`
    StatusReason: Word,
    /// `item`
    Item: Object(&typed::ITEM),
    /// The name, arguments or input of an item
    ItemText: Text,
    /// `output` of a response
    ResponseOutput: Array(Place::Item),
    /// A text that earlier events may have sent in pieces
    WholeText: Text,
    /// Such a text, or an object with one
    WholePart: TextOrOne(&typed::WHOLE_PART),
    /// Such a text, such an object, or a list of them
    WholeParts: Texts(&typed::WHOLE_PART, Place::WholePart),
    /// The `type` of such an object
    WholeType: Word,
    /// `error` with a `code`
    CodedError: TextOrOne(&typed::CODED_ERROR),
    /// `error.code` of typed events, which is also the error type
    ErrorCode: Number,
    /// `code` of an event
    EventCode: Word,
    /// `session`
    Session: Object(&typed::SESSION),
    /// `session.type`
    SessionType: Word,
    /// `session.audio`
    SessionAudio: Object(&typed::SESSION_AUDIO),
    /// `session.audio.input`
    SessionInput: Object(&typed::SESSION_INPUT),
    /// `session.audio.input.transcription`
    SessionTranscription: Object(&typed::SESSION_TRANSCRIPTION),

    /// A whole event of `/v1/messages`
    MessageEvent: Object(&typed::MESSAGE_EVENT),
    /// The whole body of `/v1/messages`
    MessageBody: Object(&typed::MESSAGE_BODY),
    /// `message` of `message_start`
    MessageStart: Object(&typed::MESSAGE_START),
    /// `message.usage` of `message_start`
    MessageStartUsage: Object(&typed::MESSAGE_START_USAGE),
    /// `usage` of `message_delta`, or of a body
    MessageUsage: Object(&typed::MESSAGE_USAGE),
    /// `delta` of a block or of the message
    BlockDelta: Object(&typed::BLOCK_DELTA),
    /// `content`
    ContentBlocks: Array(Place::ContentBlock),
    /// `content[]`, `content_block`
    ContentBlock: Object(&typed::CONTENT_BLOCK),

    /// A whole event of `/v2/chat`
    CohereEvent: Object(&typed::COHERE_EVENT),
    /// The whole body of `/v2/chat`
    CohereBody: Object(&typed::COHERE_BODY),
    /// `delta`
    CohereDelta: Object(&typed::COHERE_DELTA),
    /// `delta.message`
    CohereMessage: Object(&typed::COHERE_MESSAGE),
    /// `message` of a body
    CohereWhole: Object(&typed::COHERE_WHOLE),
    /// `message.content` of a body
    CohereContents: Array(Place::CohereContent),
    /// `message.content[]`, `delta.message.content`
    CohereContent: Object(&typed::COHERE_CONTENT),
    /// `usage`
    CohereUsage: Object(&typed::COHERE_USAGE),
    /// `usage.tokens`
    CohereTokens: Object(&openai::USAGE),

    /// A whole event of a transcription
    TranscriptEvent: Object(&openai::TRANSCRIPT_EVENT),
    /// The whole body of a transcription
    TranscriptBody: Object(&openai::TRANSCRIPT_BODY),

    // The engines' own routes.
    /// The whole response of `/generate`: one object or an array.
    Generate: OneOrMany(&native::GENERATE, Place::Generated),
    /// One element of a `/generate` array
    Generated: Object(&native::GENERATE),
    /// `predictions` of SGLang: an array of responses
    Predictions: Array(Place::Predicted),
    /// One element of `predictions`
    Predicted: Object(&native::PREDICTED),
    /// `predictions` of TGI: an array of texts
    PredictedTexts: Array(Place::Content),
    /// `meta_info` (SGLang, LMDeploy)
    MetaInfo: Object(&native::META_INFO),
    /// `meta_info.finish_reason`
    FinishObject: Object(&native::FINISH_OBJECT),
    /// `meta_info.queue_time`
    QueueSeconds: Number,
    /// `meta_info.e2e_latency`
    TotalSeconds: Number,
    /// `nvext.timing.total_time_ms`
    TotalMs: Number,
    /// The whole response of `/generate_stream` or `/` (TGI): one object or an array.
    Tgi: OneOrMany(&native::TGI, Place::TgiResponse),
    /// One element of a TGI array
    TgiResponse: Object(&native::TGI),
    /// `token`
    TgiToken: Object(&native::TGI_TOKEN),
    /// `token.special`
    Special: Mark,
    /// `generated_text`: a text, or a list of texts (LightLLM)
    GeneratedText: Texts(&openai::CONTENT_PART, Place::ContentPart),
    /// `details`
    Details: Object(&native::DETAILS),
    /// The whole response of `/completion` or `/infill` (llama.cpp): one object or an array.
    LlamaCpp: OneOrMany(&native::LLAMA_CPP, Place::LlamaCppResponse),
    /// One element of a llama.cpp array
    LlamaCppResponse: Object(&native::LLAMA_CPP),
    /// `tokens_predicted`
    TokensPredicted: Number,
    /// `stop` (llama.cpp), `done` (Ollama)
    Stop: Mark,
    /// `stop_type`
    StopType: Word,
    /// `stopped_eos`, `stopped_word`
    StoppedAtEnd: Mark,
    /// `stopped_limit`
    StoppedAtLimit: Mark,
    /// The whole response of `/api/chat` or `/api/generate` (Ollama)
    Ollama: Object(&native::OLLAMA),
    /// `message`
    OllamaMessage: Object(&native::OLLAMA_MESSAGE),
    /// `message.images`
    Images: Texts(&openai::IMAGE, Place::Image),
    /// `prompt_eval_duration`
    PromptNs: Number,
    /// `eval_duration`
    DecodeNs: Number,
    /// Prompt tokens, in an engine-specific key
    CounterInput: Number,
    /// Cached prompt tokens, in an engine-specific key
    CounterCached: Number,
    /// Reasoning tokens, in an engine-specific key
    CounterReasoning: Number,
    /// Running total of output tokens, in an engine-specific key of every event
    RunningOutput: Number,
    /// Output tokens, in an engine-specific key of the last event
    TotalOutput: Number,

    /// The whole body of embeddings and similar APIs: one object or an array.
    InputOnly: OneOrMany(&openai::INPUT_ONLY, Place::InputOnlyResponse),
    /// One element of such an array
    InputOnlyResponse: Object(&openai::INPUT_ONLY_ELEMENT),
    /// `meta`
    InputMeta: Object(&openai::INPUT_META),
    /// `meta.tokens`
    InputTokens: Object(&openai::INPUT_TOKENS),
    /// `meta.billed_units`
    BilledUnits: Object(&openai::BILLED_UNITS),
    /// `usage` of such a body
    InputUsage: Object(&openai::INPUT_USAGE),
    /// Prompt tokens, in a key that is used only if no other key has them
    SpareInput: Number,

    /// The whole response of `/inference/v1/generate`
    VllmGenerate: Object(&openai::VLLM_GENERATE),

    /// The whole response of Triton's generate extension
    Triton: Object(&native::TRITON),
}

/// Declares a struct of values, with the place of each value. `count` and `duration` are the methods of [`Draft`].
macro_rules! values {
    ($(#[$meta:meta])* $name:ident {
        $( $(#[$doc:meta])* $value:ident: $type:ty = $read:ident($place:ident), )+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name { $( $(#[$doc])* pub $value: Option<$type>, )+ }

        impl $name {
            /// The values of the event being decoded.
            pub(crate) fn of(draft: &Draft) -> $name {
                $name { $( $value: draft.$read(Place::$place), )+ }
            }

            /// These values, and those of `earlier` that are absent here.
            pub fn or(self, earlier: $name) -> $name {
                $name { $( $value: self.$value.or(earlier.$value), )+ }
            }
        }
    };
}

values! {
    /// Parts of the token counts in `usage`, which few engines report.
    #[derive(Eq)]
    TokenParts {
        /// Prompt tokens written to the cache: `prompt_tokens_details.cache_write_tokens` (OpenAI),
        /// `created_cache_tokens` (vLLM), `cache_creation_input_tokens` (Anthropic).
        cache_creation: u64 = count(CacheCreationTokens),
        /// Audio tokens of the prompt: `prompt_tokens_details.audio_tokens`, or vLLM's `multimodal_tokens.audio`.
        input_audio: u64 = count(InputAudioTokens),
        /// Image tokens of the prompt: `prompt_tokens_details.image_tokens`, or vLLM's `multimodal_tokens.image`.
        input_image: u64 = count(InputImageTokens),
        /// Video tokens of the prompt: `prompt_tokens_details.video_tokens` (SGLang), or vLLM's
        /// `multimodal_tokens.video`.
        input_video: u64 = count(InputVideoTokens),
        /// Audio tokens of the response: `completion_tokens_details.audio_tokens`.
        output_audio: u64 = count(OutputAudioTokens),
    }
}

impl TokenParts {
    /// All counts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Option<u64>> {
        let TokenParts { cache_creation, input_audio, input_image, input_video, output_audio } = self;
        [cache_creation, input_audio, input_image, input_video, output_audio].into_iter()
    }
}

values! {
    /// Timings reported by the engine, converted to milliseconds.
    EngineTiming {
        /// vLLM `metrics.queue_time_ms`, SGLang `meta_info.queue_time`, Dynamo `nvext.timing.prefill_wait_time_ms`: time
        /// in the scheduler's queue.
        queue_ms: f64 = duration(QueueMs),
        /// vLLM `metrics.time_to_first_token_ms`: from scheduling to the first token, excluding the queue. Dynamo
        /// `nvext.timing.prefill_time_ms`.
        prefill_ms: f64 = duration(PrefillMs),
        /// vLLM `metrics.generation_time_ms`, llama.cpp `timings.predicted_ms`, Ollama `eval_duration`.
        decode_ms: f64 = duration(DecodeMs),
        /// llama.cpp `timings.prompt_ms`, Ollama `prompt_eval_duration`.
        prompt_ms: f64 = duration(PromptMs),
        /// Ollama `load_duration`: from the request until the model runner is ready, including the time to unload
        /// another model.
        load_ms: f64 = duration(LoadNs),
        /// Ollama `total_duration`, SGLang `meta_info.e2e_latency`, Dynamo `nvext.timing.total_time_ms`.
        total_ms: f64 = duration(TotalNs),
        /// llama.cpp `timings.cache_n`: cached prompt tokens.
        cached_tokens: u64 = count(CacheN),
        /// llama.cpp `timings.prompt_n`: computed prompt tokens.
        prompt_tokens: u64 = count(PromptN),
        /// llama.cpp `timings.predicted_n`: output tokens so far.
        predicted_tokens: u64 = count(PredictedN),
        /// Speculative decoding: draft tokens proposed.
        draft_tokens: u64 = count(DraftTokens),
        /// Speculative decoding: draft tokens accepted.
        accepted_tokens: u64 = count(AcceptedTokens),
    }
}

/// The first and the last count.
const COUNTS: (Place, Place) = (Place::PromptTokens, Place::AcceptedTokens);
/// The first and the last duration.
const DURATIONS: (Place, Place) = (Place::QueueMs, Place::TotalNs);

impl Place {
    /// Number of counts.
    pub(crate) const COUNTS: usize = Place::slot(COUNTS.1, COUNTS) + 1;
    /// Number of durations.
    pub(crate) const DURATIONS: usize = Place::slot(DURATIONS.1, DURATIONS) + 1;

    /// Index among the counts; at least [`Place::COUNTS`] for any other place.
    pub(crate) const fn count_slot(self) -> usize {
        self.slot(COUNTS)
    }

    /// Index among the durations; at least [`Place::DURATIONS`] for any other place.
    pub(crate) const fn duration_slot(self) -> usize {
        self.slot(DURATIONS)
    }

    const fn slot(self, block: (Place, Place)) -> usize {
        (self as usize).wrapping_sub(block.0 as usize)
    }
}
