//! Which API a path belongs to.

mod table;
#[cfg(test)]
mod tests;

use memchr::memchr2;

use super::Framing;
use super::dialect::Place;
use table::Api;
use table::OTHER;
use table::ROUTES;

/// What kind of request a path names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// OpenAI `/v1/chat/completions`.
    Chat,
    /// OpenAI `/v1/completions`.
    Completions,
    /// OpenAI `/v1/responses`.
    Responses,
    /// Anthropic `/v1/messages`.
    Messages,
    /// `/generate` of SGLang, LMDeploy and TGI: the body's shape says whose it is.
    Generate,
    /// TGI `/generate_stream`.
    TgiStream,
    /// TGI's compatible route, `POST /`: a stream or not, as its body asks.
    TgiCompat,
    /// llama.cpp's own `/completion`, and `/completions` without a prefix.
    LlamaCompletion,
    /// llama.cpp `/infill`.
    Infill,
    /// Ollama `/api/chat` (SGLang has it too).
    OllamaChat,
    /// Ollama `/api/generate` (SGLang has it too).
    OllamaGenerate,
    /// Triton `/v2/models/M/generate` and `generate_stream`.
    TritonGenerate,
    /// vLLM `/inference/v1/generate`: tokens in, tokens out.
    VllmGenerate,
    /// Cohere `/v2/chat` (vLLM).
    CohereChat,
    /// OpenAI `/v1/audio/transcriptions`.
    AudioTranscription,
    /// OpenAI `/v1/audio/translations`.
    AudioTranslation,
    /// `/v1/realtime`, a WebSocket.
    Realtime,
    /// Vectors for texts: OpenAI, Cohere, Ollama, llama.cpp, SGLang.
    Embeddings,
    /// Documents in the order of their fitness for a query.
    Rerank,
    /// How well two texts fit each other (vLLM, SGLang).
    Score,
    /// Classes of texts (vLLM, SGLang).
    Classify,
    /// The output of a pooling model as it is (vLLM, Dynamo).
    Pooling,
    /// `/invocations` (SageMaker), `/vertex`, `/vertex_generate`: any of the above, as the body's shape says.
    Invocations,
    /// vLLM's Rust front end by gRPC, `vllm.Inference/Generate`.
    VllmInference,
    /// The same as a stream, `vllm.Inference/GenerateStream`.
    VllmInferenceStream,
    /// `vllm serve --grpc`: `vllm.grpc.engine.VllmEngine/Generate`.
    VllmEngine,
    /// SGLang by gRPC: `sglang.grpc.scheduler.SglangScheduler/Generate`.
    SglangScheduler,
    /// TensorRT-LLM by gRPC: `trtllm.TrtllmService/Generate`.
    TensorrtService,
    /// Triton and KServe by gRPC: `inference.GRPCInferenceService/ModelInfer`.
    TritonInfer,
    /// The same as a stream of requests and one of answers, `ModelStreamInfer`: one exchange, whatever it holds.
    TritonInferStream,
    /// A question about the server itself: health, metrics, models. Relayed; no exchange of an API.
    Probe,
    /// Every other path. Counted, not read.
    #[default]
    Other,
}

/// What a request on a route makes an engine do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It generates tokens.
    Generates,
    /// It takes tokens in, and answers with numbers that are none.
    TakesInput,
    /// Neither, or not known.
    Neither,
}

impl Route {
    /// The route of a request by its method and target.
    pub fn of_request(method: &str, target: &str) -> Route {
        match (method, Route::of_target(target)) {
            ("GET" | "HEAD", route) if route == Route::Probe || Route::path_of(target) == "/" => Route::Probe,
            (_, Route::Probe) => Route::Other,
            (_, route) => route.asked_by(method),
        }
    }

    /// This route if a request with this method asks for what it is for, else [`Route::Other`]. An API is asked by
    /// POST; SGLang's `/generate` also by PUT; a WebSocket by GET. What else comes by GET is no generation:
    /// `/v1/responses/ID?stream=true` replays an answer that was counted.
    pub fn asked_by(self, method: &str) -> Route {
        let asked = match method {
            _ if self == Route::Probe => true,
            "POST" => self != Route::Realtime,
            "PUT" => self == Route::Generate,
            "GET" => self == Route::Realtime,
            _ => false,
        };
        if asked { self } else { Route::Other }
    }

    /// The route of this request target (origin form or absolute form, query and all), whatever stands before the
    /// API's own path (`/engine1/v1/chat/completions`) if that is long enough to be known there.
    pub fn of_target(target: &str) -> Route {
        let path = Route::path_of(target);
        let row = ROUTES
            .iter()
            .find(|api| api.whole.contains(&path) || api.paths.iter().any(|pattern| ends_with(path, pattern)));
        row.map_or(Route::Other, |api| api.route)
    }

    /// The path of a request target: no scheme and authority (absolute form), no query, no slash at the end.
    pub fn path_of(target: &str) -> &str {
        let end = memchr2(b'?', b'#', target.as_bytes()).unwrap_or(target.len());
        let target = target.get(..end).unwrap_or(target);
        let origin = if target.starts_with('/') { None } else { target.split_once("://") };
        let path = match origin {
            Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
            None => target,
        };
        if path == "/" { path } else { path.strip_suffix('/').unwrap_or(path) }
    }

    /// The route that configuration calls so.
    pub fn of_name(name: &str) -> Option<Route> {
        ROUTES.iter().find(|api| api.name == name).map(|api| api.route)
    }

    /// Every route, in the order of their numbers.
    pub fn all() -> impl ExactSizeIterator<Item = Route> + Clone {
        ROUTES.iter().map(|api| api.route)
    }

    /// What configuration calls the routes, in the order of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ROUTES.iter().map(|api| api.name)
    }

    /// What configuration calls this route.
    pub fn name(self) -> &'static str {
        self.api().name
    }

    /// `gen_ai.operation.name` of this route; `other` as long as its answers are not read.
    pub fn operation(self) -> &'static str {
        if self.is_read() { self.api().operation } else { OTHER }
    }

    /// True when a request on this route generates tokens, and its answers are read.
    pub fn generates(self) -> bool {
        self.is_read() && self.api().work == Work::Generates
    }

    /// What a request on this route makes an engine do, be its answers read or not.
    pub fn work(self) -> Work {
        self.api().work
    }

    /// True for the methods of gRPC services.
    pub fn is_rpc(self) -> bool {
        matches!(self, Route::VllmInference | Route::TritonInfer) || self.streams_rpc()
    }

    /// True for the methods of gRPC services that answer with a stream of messages, be it of one.
    pub fn streams_rpc(self) -> bool {
        matches!(
            self,
            Route::VllmInferenceStream
                | Route::VllmEngine
                | Route::SglangScheduler
                | Route::TensorrtService
                | Route::TritonInferStream
        )
    }

    /// True where a finish reason for every choice is the end of a stream. Elsewhere only a last event by name or `[DONE]`
    /// is: transcriptions give one reason per piece of a recording, and the others name their last event.
    pub fn ends_with_finish(self) -> bool {
        !matches!(
            self,
            Route::Responses
                | Route::Messages
                | Route::CohereChat
                | Route::AudioTranscription
                | Route::AudioTranslation
                | Route::Realtime
        )
    }

    /// True when its answers are read, because their dialect is known. What is not read is counted as
    /// [`Route::Other`].
    pub fn is_read(self) -> bool {
        let is_known = |framing| Place::root(self, framing) != Place::Unread;
        self.is_rpc() || is_known(Framing::Json) || is_known(Framing::Messages)
    }

    /// True where an answer with this framing gives its text piece by piece, each once, as a model writes it. Not those of
    /// SGLang's stream, which repeat all so far; nor what a model hears, nor messages of gRPC and realtime.
    pub fn writes_text(self, framing: Framing) -> bool {
        let told = matches!(framing, Framing::Sse | Framing::Ndjson | Framing::Json);
        let writes = match self {
            Route::Chat | Route::Completions | Route::Responses | Route::Messages | Route::CohereChat => true,
            Route::TgiStream | Route::TgiCompat | Route::LlamaCompletion | Route::Infill => true,
            Route::OllamaChat | Route::OllamaGenerate | Route::TritonGenerate => true,
            Route::Generate => framing == Framing::Json,
            _ => false,
        };
        told && writes
    }

    /// True where a body of plain text may be the answer: a transcription is one.
    pub(crate) fn answers_in_text(self) -> bool {
        matches!(self, Route::AudioTranscription | Route::AudioTranslation)
    }

    /// True when nothing ends a stream on this route but the end of its body.
    pub fn ends_with_body(self) -> bool {
        self == Route::TritonGenerate
    }

    fn api(self) -> &'static Api {
        static OF_OTHER: Api =
            Api { route: Route::Other, name: OTHER, operation: OTHER, work: Work::Neither, paths: &[], whole: &[] };
        ROUTES.get(self as usize).unwrap_or(&OF_OTHER)
    }
}

/// True when the last segments of a path are these; `*` is any segment that is not empty.
fn ends_with(path: &str, pattern: &str) -> bool {
    let mut segments = path.rsplit('/');
    pattern.rsplit('/').filter(|wanted| !wanted.is_empty()).all(|wanted| match segments.next() {
        Some(segment) => segment == wanted || (wanted == "*" && !segment.is_empty()),
        None => false,
    }) && segments.next().is_some()
}
