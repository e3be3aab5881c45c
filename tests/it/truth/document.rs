//! Generates `docs/reference/engine-support.md` from the recordings. `UPDATE=1` rewrites the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use tokometer_observe::measure::Record;

use super::{Case, all};

const INTRODUCTION: &str = "\
# Engine support

<!-- Generated from the results of tests/it/truth: `UPDATE=1 cargo test --test it truth::document` rewrites it. -->

The tables show what tokometer measures for each engine and API. Each row summarizes recordings of the real server
(`tests/fixtures/captures`) or, if marked `(fixture)`, responses written from the engine's source code
(`tests/fixtures/written`). Numbers in parentheses are the numbers of recordings with that result. The tests
(`tests/it/truth`) replay all recordings. They compare token counts with the engine's own counters, outcomes with those
that the recording client observed, and times with those of a naive parser.

- **Recognized as**: the engine that tokometer recognizes from the response; `-` if the response does not identify it.
- **Output tokens**, **Prompt tokens**: source of the count. `deltas_lower_bound` is a lower bound: the stream contained
  no count, or was aborted before the count was sent. With `observe.tokenizer`, tokometer tokenizes the response text
  instead ([Sources of token counts](#sources-of-token-counts)).
- **First token**: when the first token arrived, relative to the response headers and the first event of the stream.
  Unknown for non-streamed responses.
- **Other outcomes**: outcomes other than `ok`, with the engine's error type.
- **Queue time**: source of the queue time; `-` if the response reports no queue time.

Other protocols have separate tests: `tests/it/http2` (HTTP/2 and gRPC) and `tests/it/websocket` (`/v1/realtime`, and the Responses API). gRPC
responses from vLLM, SMG and TensorRT-LLM contain token counts or ids; responses from Triton do not.

A `ModelStreamInfer` call to Triton is recorded as one request, even if the call contains several requests. Its token
count is a lower bound. Tokometer cannot separate the requests in a call reliably: clients choose the request ids, so
ids may be empty or duplicated. A decoupled model marks a request's last response only if the client asks for this
mark. In a realtime session, each response is recorded as one request.

## Servers that deviate from their API

Tokometer reads these responses as users of such servers reported them (`tests/it/odd_servers.rs`,
`tests/it/odd_shapes.rs`, `tests/it/odd_values.rs`):

| The server | What tokometer records |
|---|---|
| sends no `content-type`, or a wrong one | the body is read by its first byte: an event stream or JSON. JSON lines are recognized at their second line, whose time their first event gets |
| begins with a byte order mark, sends no blank line between events, or sends `[done]` | events, as in a valid stream |
| sends an unknown format | outcome `ok` without token counts; the body counts as unread (`unknown_format`), and one line per model is logged |
| ends a response with a finish reason such as `abort`, `cancelled`, `error`, `timeout`, `network_error` or `insufficient_system_resource` while the client is connected (vLLM, SGLang, TensorRT-LLM, Zhipu, DeepSeek), or cancels a response of the Responses API | `error_in_stream`, unless a client aborted the request |
| aborts a request because a client called `/abort_request` (SGLang, LMDeploy), `/abort_requests` (vLLM) or `/v1/responses/ID/cancel` with its ID, or for all requests, on the same listener and during the request | `client_abort_mid_stream` or `client_abort_before_first_token`. The server must accept the call; tokometer remembers the last 32 calls for 60 s |
| sends finish reasons in another case, as an object, or as the text `null` | the reason, without case; `null` is no finish reason |
| names an event `error`, or sends a field `error:`, without an error in the data (Dynamo, llama.cpp) | `error_in_stream` |
| sends an `error` next to tokens without a value (an empty object, an empty message, the code `null`), or with a message and a code of success (0, 200) | no error |
| reports errors in `choices[].error` (OpenRouter), `x_groq.error` or `base_resp` (MiniMax) | `error_in_stream` |
| sends the text so far in `message` next to `delta` (Perplexity) | only `delta` counts |
| repeats the whole text in `message` of the last event (MiniMax) | only the earlier deltas count |
| sends no deltas on `/v1/responses` or in a realtime session, only the whole text at the end of a part, of an item or of the response | the first of these events has the first token; later ones repeat it |
| sends `usage` before the last tokens, or a `usage` below the number of events with tokens | a lower bound |
| sends running totals, and the client leaves before the finish reason (Dynamo) | a lower bound |
| reports more reasoning tokens than output tokens (xAI), or a native counter below the number of events with tokens | a lower bound |
| repeats the same `usage` in every event | no running count: gaps and stalls are measured as without it |
| sends `usage` in an event with an empty choice after the finish reason | an exact count |
| sends text as a part or in lists of parts, one tool call without a list (TGI 2.4), arguments as an object, `thinking`, `thinking_blocks` or `reasoning_details` | tokens, as for strings |
| names keys of a choice in camel case: `finishReason`, `toolCalls`, `functionCall`, `reasoningContent` | the same values as under their usual names |
| sends the output of a chat in `choices[].text`, or that of a completion in `choices[].delta` | tokens |
| sends images in `images` (OpenRouter), in a part with `image_url`, or in `image` (image models of Ollama) | output without tokens: `ok` if the response is complete |
| sends `prompt_progress` next to output (llama.cpp) | the output |
| sends log probabilities in `content` and in `tokens` | one token per entry of the first list |
| writes counts as strings or as floating-point numbers | the counts; fractions and negative numbers are ignored |
| names counts differently: `cached_tokens` (Kimi), `prompt_cache_hit_tokens` (DeepSeek), `prompt_eval_cached_count` (Ollama), `input_tokens` (mlx-vlm), `inputTokens`, `promptTokens`, `choices[].usage`, `choices[].delta.usage`, `x_groq.usage` | the same counts as under their usual names |
| sends one count under two names, one of them 0 (new-api) | the positive count |
| reports 0 prompt tokens | no prompt count, or the earlier one |
| reports only `total_tokens` for rerank or embeddings (older vLLM) | the prompt count |
| omits cache counts in a later `usage` of the Messages API, or sends 0 for them and for the input | the earlier counts are kept |
| repeats its estimate of the input in each `content_block_delta` (Dynamo) | no prompt count, until the server reports another one. Without another one, the output count is a lower bound |
| sends `metrics` or `timings` without values after the ones with values | the earlier values are kept |
| writes NaN or Infinity, or escapes letters of keys | values as in valid JSON |
| ends a stream with `finished` and `finish_reason` next to the last token (LightLLM), or serves the format of OpenAI on `/completions` | complete streams and their counts; LightLLM is not recognized as TGI |
| reports a negative duration (vLLM) | no duration |
| reports a queue time above the total time (SGLang, Dynamo), or several tokens without the duration of their computation (Ollama) | no queue time |

## Sources of token counts

Tokometer uses the first available source in this order: `usage`; `engine_span` (the engine's own span); `token_ids`
(token ids in the events); `native_counter` (an engine-specific counter); `tokenizer` (the tokenized response text);
`deltas_lower_bound` (the number of events with tokens). All sources except the last two are exact.

`tokenizer` is an estimate and is never reported as exact. It is not used for the `gen_ai` token metrics or the time per
output token, and decode rates computed from it have their own `source` value. Tokometer keeps the response text in
memory until the response ends. It then tokenizes the text with the `tokenizer.json` set in `observe.tokenizer`, and
discards the text.

In the recordings (`tests/it/truth/texts.rs`; one model, five servers), the estimate is often lower than the engine's
count. If the engine generated an end-of-text token, the estimate is one token too low, because the response text does
not contain this token. In responses with reasoning, the estimate is another 2 to 4 tokens too low: the text contains
neither the reasoning markers nor the white space that a parser removed. The difference is larger if the request
excludes reasoning from the response, if a stop string is removed, or if special tokens have no text. If a grammar
constrains the output, the engine may generate fewer tokens than the tokenizer produces for the same text, so the
estimate may be too high. If a response is aborted, only the received text is counted.

Tokens are not estimated for tool calls, multiple choices in one response (`n`), echoed prompts, audio, gRPC requests,
and realtime sessions. If an estimate is below the number of observed tokens, `tokenizer.json` is not the model's own,
so the estimate is discarded. `tokometer.tokenizer.uncounted` counts the responses without an estimate, by reason.
Prompts are not tokenized, because tokometer does not have the server's chat template.

";

/// Results of the recordings that one table row summarizes.
#[derive(Default)]
struct Row {
    named: BTreeSet<String>,
    counts: BTreeMap<String, usize>,
    inputs: BTreeMap<String, usize>,
    first_token: BTreeMap<String, usize>,
    finishes: BTreeMap<String, usize>,
    ends: BTreeMap<String, usize>,
    queue: BTreeMap<String, usize>,
    cases: Vec<String>,
}

impl Row {
    fn add(&mut self, case: &Case, record: &Record) {
        type Column = BTreeMap<String, usize>;
        let mut count = |of: fn(&mut Row) -> &mut Column, what: String| {
            *of(self).entry(what).or_default() += 1;
        };
        if let Some(output) = record.tokens.output {
            count(|row| &mut row.counts, format!("`{}`", output.source.as_str()));
        }
        if let Some(input) = record.tokens.input {
            count(|row| &mut row.inputs, format!("`{}`", input.source.as_str()));
        }
        if let Some(first) = record.times.first_token {
            let with = match () {
                () if Some(first) == record.times.headers => "with the headers",
                () if Some(first) == record.times.first_event => "with the first event",
                () => "after the first event",
            };
            count(|row| &mut row.first_token, with.to_owned());
        }
        let finishes: BTreeSet<&str> = record.response.finish_reasons.iter().map(|reason| reason.as_str()).collect();
        for reason in finishes {
            count(|row| &mut row.finishes, format!("`{reason}`"));
        }
        if !record.outcome.is_ok() {
            let kind = record.response.error_type.as_ref().map(|kind| format!(": {kind}")).unwrap_or_default();
            count(|row| &mut row.ends, format!("`{}`{kind}", record.outcome.as_str()));
        }
        if let Some(queue) = record.engine.queue {
            count(|row| &mut row.queue, format!("`{}`", queue.source.as_str()));
        }
        self.named.extend(record.labels.engine.map(|engine| format!("`{engine}`")));
        let kind = if case.is_written() { " (fixture)" } else { "" };
        self.cases.push(format!("`{}`{kind}", case.name));
    }

    fn cells(&self) -> [String; 8] {
        let counted = |map: &BTreeMap<String, usize>| {
            let mut parts: Vec<_> = map.iter().collect();
            parts.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            let parts: Vec<String> = parts.into_iter().map(|(what, n)| format!("{what} ({n})")).collect();
            if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
        };
        let named: Vec<&str> = self.named.iter().map(String::as_str).collect();
        let shown = self.cases.len().min(3);
        let more = self.cases.len() - shown;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        [
            if named.is_empty() { "-".to_owned() } else { named.join(", ") },
            counted(&self.counts),
            counted(&self.inputs),
            counted(&self.first_token),
            counted(&self.finishes),
            counted(&self.ends),
            counted(&self.queue),
            format!("{}{more}", self.cases[..shown].join(", ")),
        ]
    }
}

/// Generates the whole document.
fn made() -> String {
    let mut engines: BTreeMap<String, BTreeMap<(String, bool), Row>> = BTreeMap::new();
    for case in all() {
        let Some(record) = case.record() else { continue };
        let route = format!("{} {}", case.text("method"), case.text("path"));
        let read = record.labels.route != tokometer_decode::Route::Other;
        if case.recording.reads.is_empty() || !read {
            continue;
        }
        let streaming = record.labels.streaming == Some(true);
        engines.entry(case.engine.clone()).or_default().entry((route, streaming)).or_default().add(&case, &record);
    }
    let mut text = INTRODUCTION.to_owned();
    for (engine, rows) in engines {
        writeln!(text, "## {engine}\n").expect("cannot fail");
        text += "| Route | Streaming | Recognized as | Output tokens | Prompt tokens | First token | Finish reason | Other outcomes | Queue time | Recordings |\n";
        text += "|---|---|---|---|---|---|---|---|---|---|\n";
        for ((route, streaming), row) in rows {
            let streaming = if streaming { "yes" } else { "no" };
            writeln!(text, "| `{route}` | {streaming} | {} |", row.cells().join(" | ")).expect("cannot fail");
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[test]
fn engine_support_page_matches_the_recordings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/engine-support.md");
    let made = made();
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        fs::write(&path, &made).expect("docs is writable");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "docs/reference/engine-support.md is out of date: UPDATE=1 cargo test --test it truth::document"
    );
}
