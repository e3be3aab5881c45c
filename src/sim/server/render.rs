//! Events as vLLM 0.32.0 (Python front end) writes them: JSON without blanks, one event per HTTP chunk.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use crate::sim::server::engine::Finish;
use crate::sim::server::generation::Piece;
use crate::sim::server::job::Api;
use crate::sim::server::job::Job;
use crate::sim::server::settings::Settings;

/// What names one answer.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
    pub(crate) fingerprint: String,
}

/// What vLLM tells with `--enable-per-request-metrics`, in its order and units.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Timing {
    /// From scheduling to the first token: without the queue.
    time_to_first_token_ms: f64,
    /// From the first token to the last.
    generation_time_ms: f64,
    queue_time_ms: f64,
    mean_itl_ms: Option<f64>,
    /// Over prefill and generation.
    tokens_per_second: Option<f64>,
}

impl Timing {
    pub(crate) fn new(queue: Duration, first_token: Duration, generation: Duration, tokens: u64) -> Timing {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let inference = (first_token + generation).as_secs_f64();
        Timing {
            time_to_first_token_ms: ms(first_token),
            generation_time_ms: ms(generation),
            queue_time_ms: ms(queue),
            mean_itl_ms: (tokens > 1).then(|| ms(generation) / (tokens - 1) as f64),
            tokens_per_second: (inference > 0.0).then(|| tokens as f64 / inference),
        }
    }
}

/// Renders the events of one stream.
#[derive(Debug)]
pub(crate) struct Events<'a> {
    job: &'a Job,
    fingerprint: &'a str,
    cached_details: bool,
    /// `data: {"id":...,"choices":[`, the same in every event.
    prefix: Vec<u8>,
    /// The event being made; its length has to be known before it is framed.
    event: Vec<u8>,
}

/// A string as JSON, quotes included.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes to a `Vec`, which cannot fail.
macro_rules! put {
    ($to:expr, $($format:tt)*) => {{
        let written = write!($to, $($format)*);
        debug_assert!(written.is_ok());
    }};
}

impl<'a> Events<'a> {
    pub(crate) fn new(job: &'a Job, identity: &'a Identity, settings: &Settings) -> Events<'a> {
        let object = match job.api {
            Api::Chat => "chat.completion.chunk",
            Api::Completions => "text_completion",
        };
        let (id, model) = (quoted(&identity.id), quoted(&job.model));
        let created = identity.created;
        let mut prefix = Vec::new();
        put!(prefix, r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#);
        let cached_details = settings.prompt_tokens_details;
        Events { job, fingerprint: &identity.fingerprint, cached_details, prefix, event: Vec::new() }
    }

    /// The event that opens a choice; only chat has one.
    pub(crate) fn role(&mut self, out: &mut Vec<u8>, choice: u32) {
        if self.job.api != Api::Chat {
            return;
        }
        self.begin();
        put!(
            self.event,
            r#"{{"index":{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]"#
        );
        self.continuous_usage(0);
        self.event.extend_from_slice(b",\"prompt_token_ids\":");
        self.prompt_token_ids(true);
        self.event.extend_from_slice(b",\"prompt_text\":null}");
        self.frame(out);
    }

    /// An event with tokens.
    pub(crate) fn tokens(&mut self, out: &mut Vec<u8>, piece: &Piece) {
        self.begin();
        let finish = match piece.finish {
            None => "null",
            Some(Finish::Length) => "\"length\"",
            Some(Finish::Stop | Finish::Fault) => "\"stop\"",
        };
        let event = &mut self.event;
        match self.job.api {
            Api::Chat => {
                put!(event, r#"{{"index":{},"delta":{{"content":"#, piece.choice);
                json(event, &piece.text);
                put!(event, r#"}},"logprobs":null,"finish_reason":{finish}"#);
                if piece.finish.is_some() {
                    event.extend_from_slice(b",\"stop_reason\":null");
                }
            }
            Api::Completions => {
                put!(event, r#"{{"index":{},"text":"#, piece.choice);
                json(event, &piece.text);
                put!(event, r#","logprobs":null,"finish_reason":{finish},"stop_reason":null,"prompt_token_ids":"#);
                self.prompt_token_ids(piece.generated == piece.tokens);
            }
        }
        self.event.extend_from_slice(b",\"token_ids\":");
        match self.job.return_token_ids {
            true => numbers(&mut self.event, piece.ids.iter().copied()),
            false => self.event.extend_from_slice(b"null"),
        }
        self.event.extend_from_slice(b"}]");
        self.continuous_usage(piece.generated);
        if piece.finish.is_some() && !self.job.include_usage {
            put!(self.event, r#","system_fingerprint":"{}""#, self.fingerprint);
        }
        self.event.push(b'}');
        self.frame(out);
    }

    /// The last event before `[DONE]`, if usage was asked for.
    pub(crate) fn usage(&mut self, out: &mut Vec<u8>, generated: u64, timing: Option<Timing>) {
        if !self.job.include_usage {
            return;
        }
        self.begin();
        let prompt = self.job.prompt_tokens;
        put!(
            self.event,
            r#"],"usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{generated}"#,
            prompt + generated
        );
        if self.cached_details {
            self.event.extend_from_slice(match self.job.api {
                Api::Chat => br#","prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}"#,
                Api::Completions => br#","prompt_tokens_details":{"cached_tokens":0}"#,
            });
        }
        put!(self.event, r#"}},"system_fingerprint":"{}""#, self.fingerprint);
        if let Some(timing) = timing {
            self.event.extend_from_slice(b",\"metrics\":");
            json(&mut self.event, &timing);
        }
        self.event.push(b'}');
        self.frame(out);
    }

    fn begin(&mut self) {
        self.event.clear();
        self.event.extend_from_slice(&self.prefix);
    }

    fn continuous_usage(&mut self, generated: u64) {
        if !self.job.continuous_usage {
            return;
        }
        let prompt = self.job.prompt_tokens;
        let total = prompt + generated;
        put!(
            self.event,
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{generated}"#
        );
        if self.job.api == Api::Chat {
            self.event.extend_from_slice(b",\"completion_tokens_details\":null");
        }
        self.event.push(b'}');
    }

    /// The prompt has no real ids: they are its positions.
    fn prompt_token_ids(&mut self, first: bool) {
        if self.job.return_token_ids && first {
            numbers(&mut self.event, 0..self.job.prompt_tokens as u32);
        } else {
            self.event.extend_from_slice(b"null");
        }
    }

    fn frame(&mut self, out: &mut Vec<u8>) {
        self.event.extend_from_slice(b"\n\n");
        chunk(out, &self.event);
    }
}

/// Writes what JSON can hold to a `Vec`, which cannot fail.
fn json(to: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(to, value);
    debug_assert!(written.is_ok());
}

fn numbers(to: &mut Vec<u8>, numbers: impl Iterator<Item = u32>) {
    to.push(b'[');
    for (index, number) in numbers.enumerate() {
        put!(to, "{}{number}", if index > 0 { "," } else { "" });
    }
    to.push(b']');
}

/// Appends `payload` as one HTTP chunk.
pub(crate) fn chunk(out: &mut Vec<u8>, payload: &[u8]) {
    put!(out, "{:x}\r\n", payload.len());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Appends the marker after the last event.
pub(crate) fn done(out: &mut Vec<u8>) {
    chunk(out, b"data: [DONE]\n\n");
}

/// Appends the end of a chunked body.
pub(crate) fn terminate(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n\r\n");
}
