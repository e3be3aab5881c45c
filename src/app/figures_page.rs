//! Generates the documentation page of the request values.

/// The values in their order, with their meanings.
const MEANINGS: [(&str, &str); 57] = [
    ("outcome", "Outcome of the request, as listed in [METRICS.md](METRICS.md), `tokometer.exchanges`."),
    ("status", "HTTP status; null without a response."),
    ("operation", "Operation, by its OpenTelemetry name: `chat`, `text_completion`, `embeddings`, ..."),
    ("engine", "The engine that sent the response; null if it is not known for certain."),
    ("model", "Model name of the response, otherwise of the request."),
    ("request_model", "Model name of the request."),
    ("streaming", "Whether the response is a stream of events; without a response, whether the request asked for one."),
    ("pair", "Index of the listener, from 0."),
    ("connection", "Number of the connection in this process, from 1."),
    ("sequence", "Number of the request on its connection."),
    ("request_id", "`X-Request-Id` of the request, otherwise of the response."),
    ("response_id", "`id` of the response."),
    ("trace_id", "Trace id of `traceparent`."),
    ("finish_reasons", "Finish reasons of the choices that reported one; an empty list if none did."),
    ("input_tokens", "Prompt tokens."),
    ("input_tokens_source", "Source of the count."),
    ("cached_tokens", "Input tokens read from a cache."),
    ("cache_creation_tokens", "Input tokens written to a cache."),
    ("input_audio_tokens", "Audio input tokens."),
    ("input_image_tokens", "Image input tokens."),
    ("reasoning_tokens", "Reasoning output tokens."),
    ("output_audio_tokens", "Audio output tokens."),
    ("output_tokens", "Tokens of the response, up to where it ended."),
    (
        "output_tokens_source",
        "Source of the count; `deltas_lower_bound` is a lower bound, `tokenizer` an estimate, the others are exact.",
    ),
    ("time_to_headers_ms", "Time to the end of the response headers."),
    ("time_to_first_event_ms", "Time to the first event of a stream."),
    ("time_to_first_token_ms", "Time to the first token of a stream on any channel."),
    ("time_to_first_visible_ms", "Time to the first visible content of a stream."),
    ("last_token_ms", "Time to the last token of a stream."),
    ("ended_ms", "Time to the end of the request."),
    ("duration_ms", "Time from the first byte of the request to its end."),
    (
        "decode_tokens_per_second",
        "Tokens after the first event, divided by the time from the first token to the last; null if a count is not exact.",
    ),
    ("decode_tokens_per_second_at_least", "The same, if only a lower bound of the tokens is known."),
    ("decode_tokens_per_second_estimated", "The same, from the tokenizer's count."),
    ("chunks", "Stream events that contained a token."),
    ("events", "All stream events."),
    ("longest_gap_ms", "Longest time between two tokens of one choice."),
    ("stalls", "Gaps above the stall threshold."),
    ("delivery_blocked_ms", "Time blocked on a slow client (backpressure)."),
    ("queue_time_ms", "Time in the server's queue."),
    ("queue_time_source", "Source of the queue time ([QUEUE_TIME.md](QUEUE_TIME.md))."),
    ("engine_load_ms", "Model load time, as reported by the engine."),
    ("engine_prefill_ms", "Prefill time, as reported by the engine."),
    ("max_tokens", "Maximum tokens allowed by the request."),
    ("choices", "`n` of the request; 1 if it has none."),
    ("request_bytes", "Bytes of the request body."),
    ("response_bytes", "Bytes of the response body."),
    ("phase_request_ms", "The request is received."),
    ("phase_load_ms", "The model is loaded."),
    ("phase_preprocessing_ms", "The server preprocesses the prompt."),
    ("phase_queue_ms", "The request waits in the queue."),
    ("phase_prefill_ms", "Prefill."),
    ("phase_waiting_ms", "Nothing was received, and the engine did not report why."),
    ("phase_processing_ms", "The server processes a response that is not streamed."),
    ("phase_decode_ms", "From the first token to the last."),
    ("phase_finish_ms", "From the last token to the end."),
    ("phase_delivery_blocked_ms", "Blocked on a slow client; not included in the other phases."),
];

const HEAD: &str = "# Request values

Generated from the code; do not edit.

`tokometer replay --json` and the access log (`access_log.format: json`) write these values for each request, one JSON object
per line. Names and meanings are a stable interface: they do not change, but new ones may be added. Unknown values are null,
never 0. Times (`_ms`) are in milliseconds and start at the last byte of the request unless noted otherwise. Access log lines
start with `time`, when the first byte of the request was received. Lines of `replay` end with `recording`, the file's directory
and name, and with `--timeline` also `timeline`. The access log's text format omits null values.

The phases are parts of `duration_ms` and add up to it ([TRACES.md](TRACES.md)).

The program's exit codes are a stable interface too: 0 is success, 1 a failure, 2 wrong usage or an invalid configuration.

| name | meaning |
|---|---|
";

/// The page, in Markdown.
pub fn markdown() -> String {
    let rows = MEANINGS.iter().map(|(name, meaning)| format!("| `{name}` | {meaning} |\n"));
    std::iter::once(HEAD.to_owned()).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;
    use std::time::Instant;

    use super::*;
    use crate::app::figures::figures;
    use tokometer_observe::measure::Labels;
    use tokometer_observe::measure::Outcome;
    use tokometer_observe::measure::Record;

    #[test]
    fn page_lists_every_value_in_order() {
        let labels = Labels {
            pair: 0,
            route: tokometer_decode::Route::Chat,
            engine: None,
            request_model: None,
            response_model: None,
            streaming: None,
        };
        let record = Record::new(labels, Instant::now(), Outcome::Ok, Duration::ZERO);
        let names: Vec<&str> = figures(&record).into_iter().map(|(name, _)| name).collect();
        assert_eq!(MEANINGS.map(|(name, _)| name).as_slice(), names);
    }
}
