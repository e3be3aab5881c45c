//! Rendering of responses, one file per dialect. The dialects share the generated text, its tokens, and the times.

mod cohere;
mod dynamo;
mod llama_cpp;
mod messages;
mod ollama;
mod refusal;
mod responses;
mod sglang;
mod tensorrt_llm;
mod tgi;
mod transcription;
mod triton;
mod vectors;
mod vllm;
mod vllm_generate;
mod vllm_whole;

use std::time::Duration;

use serde::Serialize;

use crate::server::api::Api;
use crate::server::api::Imitation;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::front::Media;
use crate::server::generation::Piece;
use crate::server::job::Job;
use crate::server::settings::Settings;

pub(crate) use crate::server::dialect::ollama::tags;
pub(crate) use crate::server::dialect::refusal::refusal;
pub(crate) use crate::server::dialect::vectors::vectors;
pub(crate) use crate::server::dialect::vllm_whole::models;

/// Identifiers of one response.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Sixteen hexadecimal digits, or the client's request id.
    pub(crate) id: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// vLLM's configuration fingerprint.
    pub(crate) fingerprint: String,
}

/// What a dialect knows about its request from the start.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) job: Job,
    pub(crate) identity: Identity,
    /// `--enable-prompt-tokens-details` of vLLM.
    pub(crate) cached_details: bool,
    /// `--enable-per-request-metrics` of vLLM, `--enable-metrics` of SGLang.
    pub(crate) metrics: bool,
}

impl Context {
    pub(crate) fn new(job: Job, identity: Identity, settings: &Settings) -> Context {
        Context { job, identity, cached_details: settings.prompt_tokens_details, metrics: settings.per_request_metrics }
    }
}

/// Durations of the phases of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) queue: Duration,
    /// From scheduling to the first token.
    pub(crate) prefill: Duration,
    /// From the first token to the last so far.
    pub(crate) decode: Duration,
}

impl Times {
    pub(crate) fn total(&self) -> Duration {
        self.queue + self.prefill + self.decode
    }
}

/// Result of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// Tokens over all sequences.
    pub(crate) generated: u64,
    pub(crate) finish: Finish,
    pub(crate) times: Times,
}

/// One choice of a response that is not streamed.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) finish: Option<Finish>,
}

impl Choice {
    /// Finish reason, as most APIs name it.
    pub(crate) fn reason(&self) -> &'static str {
        if self.finish == Some(Finish::Length) { "length" } else { "stop" }
    }
}

/// A response that is not streamed.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Headers specific to this API, with their line ends.
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl From<String> for Whole {
    fn from(body: String) -> Whole {
        Whole { headers: String::new(), body }
    }
}

/// How a stream ends after an error event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterError {
    /// With the terminator of the transfer coding.
    Ends,
    /// The connection closes in mid-stream.
    Breaks,
}

/// One API of one engine, for one request.
pub(crate) trait Dialect: Send {
    /// Format of the stream.
    fn media(&self) -> Media {
        Media::Events
    }

    /// Events sent with the headers, before any token.
    fn open(&mut self, _out: &mut Chunks) {}

    /// Events before the first token, in the same write.
    fn begin(&mut self, _out: &mut Chunks, _times: &Times) {}

    /// Tokens of one sequence.
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece);

    /// Events after the last token; without `marked` the mark that the response is complete is omitted.
    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool);

    /// Reports that the engine failed.
    fn error(&mut self, out: &mut Chunks) -> AfterError;

    /// A truncated event.
    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"id\":\"chatcmpl-\n\n"));
    }

    /// Keep-alive comment.
    fn comment(&self) -> Option<&'static [u8]> {
        None
    }

    /// Whether pieces with the same text render to identical bytes.
    fn repeats(&self) -> bool {
        false
    }

    /// The response as a whole, not streamed.
    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole;
}

/// The dialect of a request.
pub(crate) fn of(context: Context) -> Box<dyn Dialect> {
    match (context.job.api, context.job.engine) {
        (Api::Chat, Imitation::Dynamo) => Box::new(dynamo::Chat::new(context)),
        (Api::Chat, Imitation::TensorRtLlm) => Box::new(tensorrt_llm::Chat::new(context)),
        (Api::Responses, _) => Box::new(responses::Responses::new(context)),
        (Api::Messages, _) => Box::new(messages::Messages::new(context)),
        (Api::Sglang | Api::LmDeploy, _) => Box::new(sglang::Generate::new(context)),
        (Api::LlamaCompletion | Api::LlamaInfill, _) => Box::new(llama_cpp::Completion::new(context)),
        (Api::TgiGenerate | Api::TgiStream | Api::TgiCompat, _) => Box::new(tgi::Generate::new(context)),
        (Api::OllamaChat | Api::OllamaGenerate, _) => Box::new(ollama::Generate::new(context)),
        (Api::TritonGenerate | Api::TritonStream, _) => Box::new(triton::Generate::new(context)),
        (Api::VllmGenerate, _) => Box::new(vllm_generate::Generate::new(context)),
        (Api::CohereChat, _) => Box::new(cohere::Chat::new(context)),
        (Api::Transcription | Api::Translation, _) => Box::new(transcription::Transcription::new(context)),
        _ => Box::new(vllm::OpenAi::new(context)),
    }
}

/// vLLM's values with `--enable-per-request-metrics`, in its order and units.
#[derive(Clone, Copy, Debug, Serialize)]
struct Metrics {
    /// From scheduling to the first token: excludes the queue.
    time_to_first_token_ms: f64,
    /// From the first token to the last.
    generation_time_ms: f64,
    queue_time_ms: f64,
    mean_itl_ms: Option<f64>,
    /// Over prefill and generation.
    tokens_per_second: Option<f64>,
}

impl Metrics {
    /// vLLM reports none for several sequences.
    fn of(context: &Context, summary: &Summary) -> Option<Metrics> {
        let (times, tokens) = (summary.times, summary.generated);
        let inference = (times.prefill + times.decode).as_secs_f64();
        (context.metrics && context.job.choices == 1).then(|| Metrics {
            time_to_first_token_ms: ms(times.prefill),
            generation_time_ms: ms(times.decode),
            queue_time_ms: ms(times.queue),
            mean_itl_ms: (tokens > 1).then(|| ms(times.decode) / (tokens - 1) as f64),
            tokens_per_second: (inference > 0.0).then(|| tokens as f64 / inference),
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Error text of vLLM 0.32.0 when its engine dies.
pub(crate) const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// Writes to a `Vec`, which cannot fail.
macro_rules! put {
    ($to:expr, $($format:tt)*) => {{
        let written = std::io::Write::write_fmt($to, format_args!($($format)*));
        debug_assert!(written.is_ok());
    }};
}
use put;

/// Serializes to a `Vec`, which cannot fail for these types.
fn json(to: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(to, value);
    debug_assert!(written.is_ok());
}

/// These types contain nothing that JSON cannot represent.
pub(crate) fn json_text(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The `[DONE]` event.
fn done(out: &mut Chunks) {
    out.chunk(|event| event.extend_from_slice(b"data: [DONE]\n\n"));
}

/// vLLM's error on its smaller routes after its engine has died.
fn died(out: &mut Chunks) {
    out.chunk(|event| {
        let error = format!(r#""message":"{DEAD}","type":"InternalServerError","param":null,"code":500"#);
        put!(event, "data: {{\"error\":{{{error}}}}}\n\n");
    });
    done(out);
}
