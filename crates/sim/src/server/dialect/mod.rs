//! How each API puts an answer into bytes. One file per dialect; what they share is the text that was generated, its
//! tokens, and the times.

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

/// What names one answer.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Sixteen hexadecimal digits, or what the client called its request.
    pub(crate) id: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// What tells vLLM's configuration.
    pub(crate) fingerprint: String,
}

/// What a dialect knows of its request from the start.
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

/// Where the time of a request went.
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

/// What a request came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// Tokens over all sequences.
    pub(crate) generated: u64,
    pub(crate) finish: Finish,
    pub(crate) times: Times,
}

/// One choice of an answer that is not streamed.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) finish: Option<Finish>,
}

impl Choice {
    /// How it ended, in the words of most APIs.
    pub(crate) fn reason(&self) -> &'static str {
        if self.finish == Some(Finish::Length) { "length" } else { "stop" }
    }
}

/// An answer that is not streamed.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Headers that only this API has, with their line ends.
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl From<String> for Whole {
    fn from(body: String) -> Whole {
        Whole { headers: String::new(), body }
    }
}

/// How a stream goes on after an error was told in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterError {
    /// It ends as the transfer coding wants it.
    Ends,
    /// The connection is closed in mid-stream.
    Breaks,
}

/// One API of one engine, for one request.
pub(crate) trait Dialect: Send {
    /// What a stream is made of.
    fn media(&self) -> Media {
        Media::Events
    }

    /// Events that wait for no token: they follow the head.
    fn open(&mut self, _out: &mut Chunks) {}

    /// What comes before the first token, in the same write.
    fn begin(&mut self, _out: &mut Chunks, _times: &Times) {}

    /// Tokens of one sequence.
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece);

    /// What follows the last token; an end that is not `marked` lacks what tells the client that the answer is whole.
    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool);

    /// Tells that the engine failed.
    fn error(&mut self, out: &mut Chunks) -> AfterError;

    /// An event that is cut off.
    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"id\":\"chatcmpl-\n\n"));
    }

    /// What it sends while there is nothing to say.
    fn comment(&self) -> Option<&'static [u8]> {
        None
    }

    /// Whether the events of pieces with the same text are the same bytes.
    fn repeats(&self) -> bool {
        false
    }

    /// The answer in one piece.
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

/// What vLLM tells with `--enable-per-request-metrics`, in its order and units.
#[derive(Clone, Copy, Debug, Serialize)]
struct Metrics {
    /// From scheduling to the first token: without the queue.
    time_to_first_token_ms: f64,
    /// From the first token to the last.
    generation_time_ms: f64,
    queue_time_ms: f64,
    mean_itl_ms: Option<f64>,
    /// Over prefill and generation.
    tokens_per_second: Option<f64>,
}

impl Metrics {
    /// vLLM tells none for several sequences.
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

/// Text that tells what a generation that failed did: the message of vLLM 0.32.0 when its engine dies.
pub(crate) const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// Writes to a `Vec`, which cannot fail.
macro_rules! put {
    ($to:expr, $($format:tt)*) => {{
        let written = std::io::Write::write_fmt($to, format_args!($($format)*));
        debug_assert!(written.is_ok());
    }};
}
use put;

/// Writes what JSON can hold to a `Vec`, which cannot fail.
fn json(to: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(to, value);
    debug_assert!(written.is_ok());
}

/// These types have nothing in them that JSON cannot hold.
pub(crate) fn json_text(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The event after the last one, where an API has it.
fn done(out: &mut Chunks) {
    out.chunk(|event| event.extend_from_slice(b"data: [DONE]\n\n"));
}

/// What vLLM says on its smaller routes when its engine has died.
fn died(out: &mut Chunks) {
    out.chunk(|event| {
        let error = format!(r#""message":"{DEAD}","type":"InternalServerError","param":null,"code":500"#);
        put!(event, "data: {{\"error\":{{{error}}}}}\n\n");
    });
    done(out);
}
