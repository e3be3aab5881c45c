//! A record as one line of JSON: the names are an interface.

use std::time::Duration;

use serde::Serialize;

use crate::measure::Record;

/// The figures of one exchange. Absent is `null`. Times are milliseconds since the last byte of the request.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Engine as recognised (`gen_ai.provider.name`).
    pub engine: Option<&'static str>,
    /// `chat`, `text_completion` or `other`.
    pub operation: &'static str,
    /// Model of the answer, else of the request.
    pub model: Option<String>,
    /// The answer is a stream of events.
    pub streaming: Option<bool>,
    /// HTTP status.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: &'static str,
    /// One per choice.
    pub finish_reasons: Vec<&'static str>,
    /// Prompt tokens, cached ones included.
    pub input_tokens: Option<u64>,
    /// Where the number comes from.
    pub input_tokens_source: Option<&'static str>,
    /// Prompt tokens out of the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens into the engine's cache.
    pub cache_creation_tokens: Option<u64>,
    /// Prompt tokens that were audio.
    pub input_audio_tokens: Option<u64>,
    /// Prompt tokens that were images.
    pub input_image_tokens: Option<u64>,
    /// Output tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Output tokens that were audio.
    pub output_audio_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Where the number comes from; `deltas_lower_bound` says that it is one.
    pub output_tokens_source: Option<&'static str>,
    /// Response head.
    pub time_to_headers_ms: Option<f64>,
    /// First event.
    pub time_to_first_event_ms: Option<f64>,
    /// First token of any channel.
    pub time_to_first_token_ms: Option<f64>,
    /// First text of the answer itself.
    pub time_to_first_visible_ms: Option<f64>,
    /// Last token.
    pub last_token_ms: Option<f64>,
    /// Output tokens per second between first and last token.
    pub decode_tokens_per_second: Option<f64>,
    /// Events that carried a token; `null` for an answer that is not streamed.
    pub chunks: Option<u64>,
    /// Time in the server's queue.
    pub queue_time_ms: Option<f64>,
    /// Where the number comes from.
    pub queue_time_source: Option<&'static str>,
    /// Longest gap between two tokens.
    pub longest_gap_ms: Option<f64>,
    /// Gaps over the stall threshold.
    pub stalls: u32,
    /// Time during which the client did not take bytes.
    pub delivery_blocked_ms: f64,
    /// End of the exchange.
    pub ended_ms: Option<f64>,
    /// A lower bound of the decode rate, where the count is one.
    pub decode_tokens_per_second_at_least: Option<f64>,
    /// `id` of the answer.
    pub response_id: Option<String>,
    /// `x-request-id`.
    pub request_id: Option<String>,
    /// The caller's trace id.
    pub trace_id: Option<String>,
}

impl From<&Record> for Line {
    fn from(record: &Record) -> Line {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let since = |then| record.since_requested(then).map(ms);
        let labels = &record.labels;
        let streamed = labels.streaming == Some(true) && labels.route.generates();
        Line {
            engine: labels.engine,
            operation: labels.route.operation(),
            model: labels.response_model.as_ref().or(labels.request_model.as_ref()).map(|m| m.to_string()),
            streaming: labels.streaming,
            status: record.status,
            outcome: record.outcome.as_str(),
            finish_reasons: record.finish_reasons.iter().map(|r| r.as_str()).collect(),
            input_tokens: record.input_tokens.map(|n| n.tokens),
            input_tokens_source: record.input_tokens.map(|n| n.source.as_str()),
            cached_tokens: record.cached_tokens,
            cache_creation_tokens: record.cache_creation_tokens,
            input_audio_tokens: record.input_audio_tokens,
            input_image_tokens: record.input_image_tokens,
            reasoning_tokens: record.reasoning_tokens,
            output_audio_tokens: record.output_audio_tokens,
            output_tokens: record.output_tokens.map(|n| n.tokens),
            output_tokens_source: record.output_tokens.map(|n| n.source.as_str()),
            time_to_headers_ms: since(record.headers),
            time_to_first_event_ms: since(record.first_event),
            time_to_first_token_ms: since(record.first_token),
            time_to_first_visible_ms: since(record.first_visible),
            last_token_ms: since(record.last_token),
            decode_tokens_per_second: record.decode_rate,
            chunks: streamed.then_some(record.chunks),
            queue_time_ms: record.queue.map(|q| ms(q.value)),
            queue_time_source: record.queue.map(|q| q.source.as_str()),
            longest_gap_ms: record.longest_gap.map(ms),
            stalls: record.stalls,
            delivery_blocked_ms: ms(record.delivery_blocked),
            ended_ms: since(Some(record.ended)),
            decode_tokens_per_second_at_least: record.decode_rate_at_least,
            response_id: record.response_id.as_ref().map(|id| id.to_string()),
            request_id: record.request_id.as_ref().map(|id| id.to_string()),
            trace_id: record.trace.map(|t| format!("{:032x}", t.trace_id)),
        }
    }
}
