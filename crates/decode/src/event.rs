//! The metadata of one response event: counts and markers, never its text.

use crate::{EngineTiming, TokenParts};

/// The channels on which an event carried a non-empty value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels(pub u8);

impl Channels {
    /// Response text (`delta.content`, `text`, `response.output_text.delta`).
    pub const CONTENT: Channels = Channels(1);
    /// Reasoning text (`delta.reasoning`, `delta.reasoning_content`, `thinking`).
    pub const REASONING: Channels = Channels(2);
    /// A tool or function call: its name or its arguments.
    pub const TOOL: Channels = Channels(4);
    /// A refusal.
    pub const REFUSAL: Channels = Channels(8);
    /// Audio data or its transcript.
    pub const AUDIO: Channels = Channels(16);
    /// All channels.
    pub const ALL: Channels = Channels(31);

    /// True when no channel is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True when every channel of `other` is set here.
    pub fn contains(self, other: Channels) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when at least one channel of `other` is set here.
    pub fn intersects(self, other: Channels) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds the channels of `other`.
    pub fn insert(&mut self, other: Channels) {
        self.0 |= other.0;
    }
}

tokometer_metrics::closed_enum! {
    /// Why a choice ended. A closed set: any unknown word maps to [`FinishReason::Other`].
    pub enum FinishReason {
        /// End of text or a stop string.
        Stop = "stop",
        /// The token limit.
        Length = "length",
        /// A tool call.
        ToolCalls = "tool_calls",
        /// A (legacy) function call.
        FunctionCall = "function_call",
        /// A content filter.
        ContentFilter = "content_filter",
        /// Given up by the engine.
        Abort = "abort",
        /// Canceled: the status `cancelled` of the Responses API and of realtime, and realtime's `turn_detected` and
        /// `client_cancelled`. In realtime, a client or a user cancels.
        Canceled = "canceled",
        /// Repetition detected by the engine (vLLM).
        Repetition = "repetition",
        /// Engine failure.
        Error = "error",
        /// Complete, without a more precise reason: `status` of the Responses API. Responses with tool calls also have
        /// it, as do responses of llama.cpp and Ollama 0.17 that reached the token limit.
        Completed = "completed",
        /// The request only loaded the model (Ollama).
        Load = "load",
        /// The request only unloaded the model (Ollama).
        Unload = "unload",
        /// Any other word.
        Other = "other",
    }
}

impl FinishReason {
    /// True if no output was requested: the request only loaded or unloaded the model.
    pub fn is_idle(self) -> bool {
        matches!(self, FinishReason::Load | FinishReason::Unload)
    }

    /// Maps a finish reason as sent by a server, in any case. `None` if the choice has not finished.
    pub fn from_wire(word: &[u8]) -> Option<FinishReason> {
        let mut lower = [0; 56];
        let lower = lower.get_mut(..word.len()).map(|lower| {
            lower.copy_from_slice(word);
            lower.make_ascii_lowercase();
            &*lower
        });
        Some(match lower.unwrap_or_default() {
            // Not finished: DashScope's "null", llama.cpp's `stop_type`, watsonx.
            b"" if word.is_empty() => return None,
            b"null" | b"none" | b"not_finished" => return None,
            b"stop" | b"eos_token" | b"end_id" | b"stop_words" | b"stop_token" => FinishReason::Stop,
            b"length" | b"max_tokens" | b"model_length" => FinishReason::Length,
            b"tool_calls" => FinishReason::ToolCalls,
            b"function_call" => FinishReason::FunctionCall,
            // Zhipu: `sensitive`; Gemini: `safety`; Bedrock: `guardrail_intervened`.
            b"content_filter" | b"sensitive" | b"safety" | b"guardrail_intervened" => FinishReason::ContentFilter,
            b"abort" | b"aborted" => FinishReason::Abort,
            b"cancelled" | b"canceled" => FinishReason::Canceled,
            b"repetition" => FinishReason::Repetition,
            // DeepSeek: `insufficient_system_resource`; Zhipu: `network_error`; TensorRT-LLM and Cohere: `timeout`.
            b"error" | b"timeout" | b"insufficient_system_resource" | b"network_error" => FinishReason::Error,
            // Anthropic Messages.
            b"end_turn" | b"stop_sequence" => FinishReason::Stop,
            b"model_context_window_exceeded" => FinishReason::Length,
            b"tool_use" => FinishReason::ToolCalls,
            b"refusal" => FinishReason::ContentFilter,
            // OpenAI Responses and realtime: `status` and its more precise reason.
            b"completed" => FinishReason::Completed,
            b"max_output_tokens" => FinishReason::Length,
            b"failed" => FinishReason::Error,
            b"turn_detected" | b"client_cancelled" => FinishReason::Canceled,
            // Cohere chat.
            b"complete" => FinishReason::Stop,
            b"tool_call" => FinishReason::ToolCalls,
            // llama.cpp `stop_type`.
            b"eos" | b"word" => FinishReason::Stop,
            b"limit" => FinishReason::Length,
            // Ollama `done_reason`.
            b"load" => FinishReason::Load,
            b"unload" => FinishReason::Unload,
            _ => FinishReason::Other,
        })
    }
}

/// Up to 8 finish reasons of one event or request. Further reasons are counted but not stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finishes {
    kept: [Option<FinishReason>; 8],
    len: u16,
}

impl Finishes {
    /// Adds one reason.
    pub fn push(&mut self, reason: FinishReason) {
        if let Some(place) = self.kept.get_mut(usize::from(self.len)) {
            *place = Some(reason);
        }
        self.len = self.len.saturating_add(1);
    }

    /// The number of reasons, including those not stored.
    pub fn len(&self) -> u32 {
        self.len.into()
    }

    /// True when there are no reasons.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stored reasons, in order.
    pub fn iter(&self) -> impl Iterator<Item = FinishReason> + '_ {
        self.kept.iter().flatten().copied()
    }
}

/// A `usage` object: token counts, `None` if the key was absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `prompt_tokens`, `input_tokens`: the whole prompt. Cached tokens in this `usage` are always included, also for
    /// APIs that exclude them (Messages: the sum of its three input counts).
    pub input: Option<u64>,
    /// `completion_tokens`, including reasoning tokens.
    pub output: Option<u64>,
    /// `prompt_tokens_details.cached_tokens`.
    pub cached: Option<u64>,
    /// `completion_tokens_details.reasoning_tokens`, or SGLang's top-level `reasoning_tokens`.
    pub reasoning: Option<u64>,
    /// Parts of these counts.
    pub parts: TokenParts,
    /// True when the event had no choice (`choices: []`): the usage then covers the request, not one choice.
    pub total: bool,
    /// True when `input` is the sum of counts that later events may omit because they have not changed (Messages): it
    /// then lacks `cached` or `parts.cache_creation` if this `usage` does.
    pub cached_apart: bool,
    /// True when the usage preceded the end of the output (`message_start` of the Messages API, and Dynamo's
    /// `content_block_delta`). Ollama 0.17 and Dynamo then send an input count estimated from the text length.
    pub early: bool,
}

/// Token counts in an engine-specific format; for a whole body, the sum over its responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The whole prompt, including cached tokens.
    pub input: Option<u64>,
    /// Output tokens so far, including reasoning tokens and the end-of-text token.
    pub output: Option<u64>,
    /// Prompt tokens served from the engine's cache.
    pub cached: Option<u64>,
    /// Reasoning tokens in the output.
    pub reasoning: Option<u64>,
    /// True when every event has the count, so that the increase of `output` is the event's token count (SGLang and
    /// LMDeploy `meta_info.completion_tokens`, llama.cpp `tokens_predicted`). Otherwise only the last event has the
    /// total.
    pub running: bool,
}

impl EngineTiming {
    /// The part of `total_ms` that is in no other duration. In Ollama 0.17 it is the wait for a runner slot, plus about
    /// 5 ms and 0.1 ms per token for templating, tokenizing and forwarding tokens. `computed`: prompt tokens that were not
    /// cached. `output`: output tokens.
    ///
    /// An absent duration is 0 (Go's `omitempty`), but several tokens take time, so their duration is then unknown, and
    /// so is the rest. Ollama always sends `load_duration`; SGLang's copy of the API does not.
    pub fn unreported_ms(&self, computed: u64, output: u64) -> Option<f64> {
        let of = |ms: Option<f64>, tokens| ms.filter(|ms| *ms > 0.0).or((tokens <= 1).then_some(0.0));
        let known = self.load_ms? + of(self.prompt_ms, computed)? + of(self.decode_ms, output)?;
        self.total_ms.map(|total| total - known).filter(|rest| *rest >= 0.0)
    }
}

/// The content of one stream event, or of a whole non-streamed body.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamEvent {
    /// `choices[].index` of the event's last choice.
    pub choice: u32,
    /// Number of choices in the event; 0 if `choices` is empty or absent. Only chats, completions and vLLM's
    /// transcriptions have choices.
    pub choices: u32,
    /// Non-empty channels. If any is set, the event has at least one visible token.
    pub channels: Channels,
    /// The event has a role.
    pub role: bool,
    /// An empty text delta without a role, possibly with a finish reason. In vLLM's Python front end and TensorRT-LLM
    /// it is a token whose text is held back, or the end-of-text token; in other engines it has no meaning.
    pub empty_delta: bool,
    /// Length of `token_ids` in this event, if it is an array.
    pub token_ids: Option<u32>,
    /// Length of `logprobs.content` or `logprobs.tokens`, if present.
    pub logprobs: Option<u32>,
    /// The event has an image. It is output without tokens, because many image models generate none.
    pub image: bool,
    /// The event reports prompt progress, and has no token, finish reason or `usage`: llama.cpp's `prompt_progress`.
    pub progress: bool,
    /// `usage`, if it is an object.
    pub usage: Option<Usage>,
    /// Counts in an engine-specific format, sent instead of `usage`.
    pub counter: Option<Counter>,
    /// Each non-empty `finish_reason` of the event's choices, in order.
    pub finishes: Finishes,
    /// The choice is marked as ended, with or without a reason: llama.cpp's `stop: true`, Ollama's `done: true`, TGI's
    /// `generated_text`. These streams have no other end marker.
    pub ended: bool,
    /// An error envelope: `error` is a string or an object with a value, or `object` is `error` (SGLang). FastAPI's
    /// `detail` alone does not count: the HTTP status already reports that error.
    pub error: bool,
    /// The `[DONE]` marker.
    pub done: bool,
    /// Last event of a response, by type: `response.completed`, `response.incomplete`, `response.failed`,
    /// `response.cancelled`, `message_stop`, `message-end`, `transcript.text.done`; in realtime `response.done` and `transcription.done`.
    pub end: bool,
    /// The response is not available yet: `status` is `queued` or `in_progress`, as in the first events of a stream. A
    /// whole body with this status has no output; the client polls for it (background request).
    pub pending: bool,
    /// The message has content that is not decoded: tensors other than text (Triton).
    pub unread: bool,
    /// The event is a client message that requests a response (realtime): `response.create`,
    /// `input_audio_buffer.commit`.
    pub asks: bool,
    /// vLLM `metrics`, llama.cpp `timings`, SGLang's queue time, or Ollama's durations.
    pub timing: Option<EngineTiming>,
    /// The event is not JSON, or is incomplete.
    pub malformed: bool,
}

impl StreamEvent {
    /// True if the event has anything that the dialect knows, apart from the end marker.
    pub fn is_recognised(&self) -> bool {
        let (malformed, done) = (self.malformed, self.done);
        *self != StreamEvent { malformed, done, ..StreamEvent::default() }
    }

    /// Keeps only what is certain in a truncated event: its choice, its output, and whether it is an error. Numbers
    /// may lack digits, or related numbers may be missing.
    pub(crate) fn beginning(self) -> StreamEvent {
        let StreamEvent { choice, choices, channels, image, role, progress, error, malformed, .. } = self;
        StreamEvent { choice, choices, channels, image, role, progress, error, malformed, ..StreamEvent::default() }
    }
}
