//! The page about the figures of an exchange, made from what is told of each.

/// Every figure, in its order, and what it says.
const MEANINGS: [(&str, &str); 57] = [
    ("outcome", "How it ended: one word of [METRICS.md](METRICS.md), `tokometer.exchanges`."),
    ("status", "HTTP status; null where there was no answer."),
    ("operation", "What was asked, as OpenTelemetry names it: `chat`, `text_completion`, `embeddings`, ..."),
    ("engine", "The engine that answered; null where it is not known for sure."),
    ("model", "The model by the answer, or else by the request."),
    ("request_model", "The model by the request."),
    ("streaming", "Whether the answer is a stream of events; without an answer, whether one was asked for."),
    ("pair", "Number of the listen -> upstream pair, from 0."),
    ("connection", "Number of the connection in this process, from 1."),
    ("sequence", "Number of the exchange on its connection."),
    ("request_id", "`X-Request-Id`, of the request or else of the answer."),
    ("response_id", "`id` of the answer."),
    ("trace_id", "Trace id of `traceparent`."),
    ("finish_reasons", "Of each choice that gave one; an empty list where none did."),
    ("input_tokens", "Tokens of the prompt."),
    ("input_tokens_source", "What they are known from."),
    ("cached_tokens", "Those of the input that came out of a cache."),
    ("cache_creation_tokens", "Those of the input that were written to a cache."),
    ("input_audio_tokens", "Those of the input that were audio."),
    ("input_image_tokens", "Those of the input that were images."),
    ("reasoning_tokens", "Those of the output that were reasoning."),
    ("output_audio_tokens", "Those of the output that were audio."),
    ("output_tokens", "Tokens of the answer, as far as it came."),
    (
        "output_tokens_source",
        "What they are known from; `deltas_lower_bound` is a lower bound, `tokenizer` an estimate, the others are exact.",
    ),
    ("time_to_headers_ms", "To the end of the answer's head."),
    ("time_to_first_event_ms", "To the first event of a stream."),
    ("time_to_first_token_ms", "To the first token of a stream on any channel."),
    ("time_to_first_visible_ms", "To the first visible content of a stream."),
    ("last_token_ms", "To the last token of a stream."),
    ("ended_ms", "To the end of the exchange."),
    ("duration_ms", "The same, from the first byte of the request."),
    (
        "decode_tokens_per_second",
        "Tokens after the first event by the time from the first token to the last; null where a count is not exact.",
    ),
    ("decode_tokens_per_second_at_least", "The same where only a lower bound is known."),
    ("decode_tokens_per_second_estimated", "The same by the tokenizer's count."),
    ("chunks", "Events of a stream that carried a token."),
    ("events", "All its events."),
    ("longest_gap_ms", "The longest time between two tokens of one choice."),
    ("stalls", "Gaps over the stall threshold."),
    ("delivery_blocked_ms", "Time during which the client did not take what the server had sent."),
    ("queue_time_ms", "Time in the server's queue."),
    ("queue_time_source", "What it is known from ([QUEUE_TIME.md](QUEUE_TIME.md))."),
    ("engine_load_ms", "Time in which the engine loaded the model, by itself."),
    ("engine_prefill_ms", "Its prefill, by itself."),
    ("max_tokens", "Most tokens that the request allowed."),
    ("choices", "`n` of the request; 1 where it gave none."),
    ("request_bytes", "Bytes of the request's body."),
    ("response_bytes", "Bytes of the answer's body."),
    ("phase_request_ms", "The request comes."),
    ("phase_load_ms", "The model is loaded."),
    ("phase_preprocessing_ms", "The server prepares the prompt."),
    ("phase_queue_ms", "It waits in the queue."),
    ("phase_prefill_ms", "The prompt is read."),
    ("phase_waiting_ms", "Nothing came, and the engine did not say why."),
    ("phase_processing_ms", "The server works on an answer that is no stream."),
    ("phase_decode_ms", "From the first token to the last."),
    ("phase_finish_ms", "From the last token to the end."),
    ("phase_delivery_blocked_ms", "The client took nothing; taken out of the others."),
];

const HEAD: &str = "# The figures of an exchange

Made from the code; do not edit.

`tokometer replay --json` and the access log (`access_log.format: json`) tell these of each exchange, one JSON object per line.
Names and meanings are an interface: they stay, and new ones may join them. What is not known is null, never 0. Times (`_ms`) are
milliseconds and begin with the last byte of the request, where nothing else is said. The access log begins its lines with `time`,
when the first byte of the request came; `replay` ends its own with `recording`, the file's folder and name, and with `--timeline`
also with `timeline`. In the access log's text form what is null is left out.

The phases are parts of `duration_ms` and add up to it ([TRACES.md](TRACES.md)).

The program's exit codes are an interface too: 0 is good, 1 a failure, 2 wrong usage or a configuration that cannot be used.

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
    fn the_page_tells_of_every_figure_in_its_order() {
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
