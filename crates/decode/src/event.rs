//! What one event of a response said, in numbers: never its text.

/// The channels on which an event carried something that is not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels(pub u8);

impl Channels {
    /// Answer text (`delta.content`, `text`, `response.output_text.delta`).
    pub const CONTENT: Channels = Channels(1);
    /// Reasoning text (`delta.reasoning`, `delta.reasoning_content`, `thinking`).
    pub const REASONING: Channels = Channels(2);
    /// A tool or function call, its name or its arguments.
    pub const TOOL: Channels = Channels(4);
    /// A refusal.
    pub const REFUSAL: Channels = Channels(8);
    /// Audio data or its transcript.
    pub const AUDIO: Channels = Channels(16);

    /// True when no channel is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True when every channel of `other` is set here.
    pub fn contains(self, other: Channels) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when any channel of `other` is set here.
    pub fn intersects(self, other: Channels) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets the channels of `other` too.
    pub fn insert(&mut self, other: Channels) {
        self.0 |= other.0;
    }
}

/// Why a choice ended. A closed set: what an engine says beside it is [`FinishReason::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FinishReason {
    /// The model or a stop string ended it.
    Stop,
    /// The token limit ended it.
    Length,
    /// It ends in a tool call.
    ToolCalls,
    /// It ends in a (legacy) function call.
    FunctionCall,
    /// A content filter ended it.
    ContentFilter,
    /// The engine aborted it.
    Abort,
    /// The engine saw a repetition and ended it (vLLM).
    Repetition,
    /// The engine failed.
    Error,
    /// It is complete, and nothing says why: `status` of the Responses API. Answers with calls say so too, and those of
    /// llama.cpp and Ollama 0.17 at the token limit.
    Completed,
    /// Nothing was asked but that the model be loaded (Ollama).
    Load,
    /// Nothing was asked but that the model be unloaded (Ollama).
    Unload,
    /// Any other word.
    Other,
}

impl FinishReason {
    /// True where nothing was to be generated.
    pub fn is_idle(self) -> bool {
        matches!(self, FinishReason::Load | FinishReason::Unload)
    }

    /// The word on the wire, or `other`.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::FunctionCall => "function_call",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::Abort => "abort",
            FinishReason::Repetition => "repetition",
            FinishReason::Error => "error",
            FinishReason::Completed => "completed",
            FinishReason::Load => "load",
            FinishReason::Unload => "unload",
            FinishReason::Other => "other",
        }
    }

    /// The reason that this word on the wire means.
    pub fn from_wire(word: &[u8]) -> FinishReason {
        match word {
            b"stop" | b"eos_token" => FinishReason::Stop,
            b"length" | b"max_tokens" => FinishReason::Length,
            b"tool_calls" => FinishReason::ToolCalls,
            b"function_call" => FinishReason::FunctionCall,
            b"content_filter" => FinishReason::ContentFilter,
            b"abort" | b"cancelled" => FinishReason::Abort,
            b"repetition" => FinishReason::Repetition,
            b"error" => FinishReason::Error,
            // Anthropic Messages.
            b"end_turn" | b"stop_sequence" => FinishReason::Stop,
            b"model_context_window_exceeded" => FinishReason::Length,
            b"tool_use" => FinishReason::ToolCalls,
            b"refusal" => FinishReason::ContentFilter,
            // OpenAI Responses and realtime: `status`, and the reason beside it.
            b"completed" => FinishReason::Completed,
            b"max_output_tokens" => FinishReason::Length,
            b"failed" => FinishReason::Error,
            b"turn_detected" | b"client_cancelled" => FinishReason::Abort,
            // Cohere chat.
            b"COMPLETE" | b"STOP_SEQUENCE" => FinishReason::Stop,
            b"MAX_TOKENS" => FinishReason::Length,
            b"TOOL_CALL" => FinishReason::ToolCalls,
            b"ERROR" | b"TIMEOUT" => FinishReason::Error,
            // llama.cpp `stop_type`.
            b"eos" | b"word" => FinishReason::Stop,
            b"limit" => FinishReason::Length,
            // Ollama `done_reason`.
            b"load" => FinishReason::Load,
            b"unload" => FinishReason::Unload,
            _ => FinishReason::Other,
        }
    }
}

/// Up to 8 finish reasons of one event or exchange; further ones are counted, not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finishes {
    kept: [Option<FinishReason>; 8],
    len: u32,
}

impl Finishes {
    /// Adds one.
    pub fn push(&mut self, reason: FinishReason) {
        if let Some(place) = self.kept.get_mut(self.len as usize) {
            *place = Some(reason);
        }
        self.len = self.len.saturating_add(1);
    }

    /// How many there were, also those that are not kept.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True when there was none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kept ones, in order.
    pub fn iter(&self) -> impl Iterator<Item = FinishReason> + '_ {
        self.kept.iter().flatten().copied()
    }
}

/// A `usage` object, as far as its keys were there. Token counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `prompt_tokens`, `input_tokens`: the whole prompt, cached tokens included, also where the API leaves them out
    /// (Messages: the sum of its three parts).
    pub input: Option<u64>,
    /// `completion_tokens`: reasoning tokens included.
    pub output: Option<u64>,
    /// `prompt_tokens_details.cached_tokens`.
    pub cached: Option<u64>,
    /// Prompt tokens written to the cache: `prompt_tokens_details.cache_write_tokens` (OpenAI), `created_cache_tokens`
    /// (vLLM), `cache_creation_input_tokens` (Anthropic).
    pub cache_creation: Option<u64>,
    /// `completion_tokens_details.reasoning_tokens`, or SGLang's top-level `reasoning_tokens`.
    pub reasoning: Option<u64>,
    /// Audio tokens of the prompt: `prompt_tokens_details.audio_tokens`, or vLLM's `multimodal_tokens.audio`.
    pub input_audio: Option<u64>,
    /// Image tokens of the prompt: `prompt_tokens_details.image_tokens`, or vLLM's `multimodal_tokens.image`.
    pub input_image: Option<u64>,
    /// Audio tokens of the answer: `completion_tokens_details.audio_tokens`.
    pub output_audio: Option<u64>,
    /// True when the event had no choice (`choices: []`): the total of the request, not of one choice.
    pub total: bool,
    /// True when it came before the answer (`message_start` of the Messages API): Ollama 0.17 guesses it from the length
    /// of the text.
    pub early: bool,
}

/// Counts in an engine's own dialect. Tokens; in a whole body the sum over its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The whole prompt, cached tokens included.
    pub input: Option<u64>,
    /// Output so far, reasoning and the end-of-text token included.
    pub output: Option<u64>,
    /// Prompt tokens out of the engine's cache.
    pub cached: Option<u64>,
    /// Output tokens that were reasoning.
    pub reasoning: Option<u64>,
    /// Every event has it, so that what `output` grew by is what the event brought (SGLang and LMDeploy
    /// `meta_info.completion_tokens`, llama.cpp `tokens_predicted`). Else it comes at the end, as a total.
    pub running: bool,
}

/// What an engine said of its own times, in its own words. Milliseconds, whatever the unit it sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineTiming {
    /// vLLM `metrics.queue_time_ms`, SGLang `meta_info.queue_time`, Dynamo `nvext.timing.prefill_wait_time_ms`: waiting for
    /// the scheduler.
    pub queue_ms: Option<f64>,
    /// vLLM `metrics.time_to_first_token_ms`: scheduled to first token; leaves the queue out. Dynamo
    /// `nvext.timing.prefill_time_ms`.
    pub prefill_ms: Option<f64>,
    /// vLLM `metrics.generation_time_ms`, llama.cpp `timings.predicted_ms`, Ollama `eval_duration`.
    pub decode_ms: Option<f64>,
    /// vLLM `metrics.mean_itl_ms`.
    pub mean_itl_ms: Option<f64>,
    /// llama.cpp `timings.prompt_ms`, Ollama `prompt_eval_duration`.
    pub prompt_ms: Option<f64>,
    /// Ollama `load_duration`: from the request until the model's runner was ready, waiting for another model's to go
    /// included.
    pub load_ms: Option<f64>,
    /// Ollama `total_duration`.
    pub total_ms: Option<f64>,
    /// llama.cpp `timings.cache_n`: prompt tokens that came from the cache.
    pub cached_tokens: Option<u64>,
    /// llama.cpp `timings.prompt_n`: prompt tokens that were computed.
    pub prompt_tokens: Option<u64>,
    /// llama.cpp `timings.predicted_n`: output tokens so far.
    pub predicted_tokens: Option<u64>,
    /// Speculative decoding: draft tokens proposed.
    pub draft_tokens: Option<u64>,
    /// Speculative decoding: draft tokens accepted.
    pub accepted_tokens: Option<u64>,
}

impl EngineTiming {
    /// The part of `total_ms` of which the engine tells nothing. In Ollama 0.17 the request waits for a slot of its runner
    /// then; some 5 ms of it, and 0.1 ms for each token, are templating, tokenizing and passing tokens on. A duration that
    /// is not there was 0 (Go's `omitempty`); but loading always takes a while, and SGLang's copy of the API, which has no
    /// `load_duration`, tells a total alone.
    pub fn untold_ms(&self) -> Option<f64> {
        let told = self.load_ms? + self.prompt_ms.unwrap_or(0.0) + self.decode_ms.unwrap_or(0.0);
        self.total_ms.map(|total| total - told).filter(|untold| *untold >= 0.0)
    }
}

/// Marks of an engine in the body's shape, a set of bits; `observe` weighs them with the response head's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFacts(pub u32);

impl EngineFacts {
    /// No mark.
    pub const NONE: EngineFacts = EngineFacts(0);
    /// `system_fingerprint` begins with `vllm-`, or a key that vLLM's Python front end sends is there
    /// (`prompt_token_ids`, `kv_transfer_params`; not `stop_reason`, which TensorRT-LLM sends too).
    pub const VLLM: EngineFacts = EngineFacts(1);
    /// `matched_stop`, `meta_info.weight_version`, or `message.images: null` in Ollama's shape, is there (SGLang 0.5).
    pub const SGLANG: EngineFacts = EngineFacts(2);
    /// `timings.predicted_n`, `tokens_predicted` or `prompt_progress` is there, or `system_fingerprint` begins with
    /// `b<digits>-` (llama.cpp).
    pub const LLAMA_CPP: EngineFacts = EngineFacts(4);
    /// `system_fingerprint` is `fp_ollama`, or `load_duration` is there, which SGLang's copy of the API does not tell.
    pub const OLLAMA: EngineFacts = EngineFacts(8);
    /// `system_fingerprint` is a version of TGI, or `generated_text` is there.
    pub const TGI: EngineFacts = EngineFacts(1 << 8);
    /// `avg_decoded_tokens_per_iter` is there (TensorRT-LLM 1.x).
    pub const TENSORRT_LLM: EngineFacts = EngineFacts(1 << 9);
    /// A space stands between an event's JSON and its line feed (TensorRT-LLM's role event).
    pub const SPACE_BEFORE_END: EngineFacts = EngineFacts(1 << 10);
    /// `nvext` is there (Dynamo).
    pub const DYNAMO: EngineFacts = EngineFacts(1 << 11);
    /// `gen_tokens` is there, or `meta_info.routed_experts`, which SGLang has too if asked, beside marks of its own
    /// (LMDeploy 0.18).
    pub const LMDEPLOY: EngineFacts = EngineFacts(1 << 12);
    /// `model_version` is there in an answer of the generate extension (Triton, and KServe's own server).
    pub const TRITON: EngineFacts = EngineFacts(1 << 13);
    /// `id` is `chatcmpl-` or `cmpl-` and 8 hexadecimal digits (vLLM's Rust front end).
    pub const ID_OF_8_HEX: EngineFacts = EngineFacts(1 << 14);
    /// `id` is `chatcmpl-` or `cmpl-` and 16 hexadecimal digits (vLLM's Python front end).
    pub const ID_OF_16_HEX: EngineFacts = EngineFacts(1 << 15);
    /// `id` is `embd-`, `pooling-`, `score-` or `classify-` and hexadecimal digits (vLLM).
    pub const VLLM_POOLING_ID: EngineFacts = EngineFacts(1 << 16);
    /// `id` is `chatcmpl-` or `cmpl-` and up to 3 digits, `resp_` and up to 6, or `msg_` and 24 hexadecimal digits
    /// (Ollama).
    pub const OLLAMA_ID: EngineFacts = EngineFacts(1 << 17);
    /// `model` ends with `@main` (transformers serve).
    pub const MODEL_AT_MAIN: EngineFacts = EngineFacts(1 << 18);
    /// `id` is a prefix and the request's own `X-Request-Id` (vLLM 0.32, both front ends).
    pub const ID_OF_REQUEST: EngineFacts = EngineFacts(1 << 19);
    /// That is no UUID.
    pub const ID_NO_UUID: EngineFacts = EngineFacts(1 << 20);

    /// Both marks.
    pub const fn and(self, other: EngineFacts) -> EngineFacts {
        EngineFacts(self.0 | other.0)
    }

    /// True when every mark of `other` is set here.
    pub fn contains(self, other: EngineFacts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets the marks of `other` too.
    pub fn insert(&mut self, other: EngineFacts) {
        self.0 |= other.0;
    }
}

/// What one event of a stream said, or the whole body of an answer that is not streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamEvent {
    /// `choices[].index` of the event's last choice.
    pub choice: u32,
    /// How many choices the event carried (`0`: `choices: []` or no such key; only chats, completions and vLLM's
    /// transcriptions have choices).
    pub choices: u32,
    /// Channels with something in them: at least one token, and visible.
    pub channels: Channels,
    /// The event gave a role.
    pub role: bool,
    /// An empty text delta without a role, finish included: in vLLM's Python front end and TensorRT-LLM a token whose
    /// text is held back (or the end-of-text token), elsewhere nothing.
    pub empty_delta: bool,
    /// Elements of `token_ids` in this event, if the key was there and an array.
    pub token_ids: Option<u32>,
    /// Elements of `logprobs.content` or `logprobs.tokens`, if there.
    pub logprobs: Option<u32>,
    /// A prompt was echoed or measured here: llama.cpp's `prompt_progress`. No token.
    pub progress: bool,
    /// `usage`, when it was an object.
    pub usage: Option<Usage>,
    /// Counts of the engine's own, where it gives them in place of `usage`.
    pub counter: Option<Counter>,
    /// `finish_reason` of each choice that gave a non-empty one, in order.
    pub finishes: Finishes,
    /// The choice says that it has ended, with or without a reason: llama.cpp's `stop: true`, Ollama's `done: true`, TGI's
    /// `generated_text`. These streams have no other end mark.
    pub ended: bool,
    /// An error envelope: `error` is an object or a string, or `object` is `error` (SGLang). `detail` alone, as FastAPI
    /// sends it, is none: there the status says it.
    pub error: bool,
    /// The `[DONE]` marker.
    pub done: bool,
    /// The last event of an answer, by the name it gives itself: `response.completed`, `response.incomplete`,
    /// `response.failed`, `message_stop`, `message-end`, `transcript.text.done`; realtime's `response.done` and
    /// `transcription.done`.
    pub end: bool,
    /// The answer is not here yet, and is to be asked for later: `status` of a response is `queued` or `in_progress`. So
    /// say the first events of a stream too; of a whole body it is all that is answered (a background request).
    pub pending: bool,
    /// The message carried something that is not read: tensors of which none is text (Triton).
    pub unread: bool,
    /// A client's message that asks for an answer (realtime): `response.create`, `input_audio_buffer.commit`.
    pub asks: bool,
    /// vLLM `metrics`, llama.cpp `timings`, SGLang's queue time, or Ollama's durations.
    pub timing: Option<EngineTiming>,
    /// The event was not JSON that the scanner could follow to its end.
    pub malformed: bool,
}

impl StreamEvent {
    /// What is certain of an event of which only a beginning came: that something was said, and where, and that it is an error. Its
    /// numbers may lack digits, and others that belong to them.
    pub(crate) fn beginning(self) -> StreamEvent {
        let StreamEvent { choice, choices, channels, role, progress, error, malformed, .. } = self;
        StreamEvent { choice, choices, channels, role, progress, error, malformed, ..StreamEvent::default() }
    }
}
