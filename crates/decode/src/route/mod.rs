//! Maps a request to its API by method and path.

mod table;
#[cfg(test)]
mod tests;

use memchr::memchr2;

use super::Framing;
use super::dialect::Place;
use table::Api;
use table::OTHER;
use table::ROUTES;

/// The API that a path belongs to.
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
    /// `/generate` of SGLang, LMDeploy and TGI, distinguished by the body.
    Generate,
    /// TGI `/generate_stream`.
    TgiStream,
    /// TGI's compatibility route, `POST /`: streamed or not, depending on the request body.
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
    /// Embeddings: OpenAI, Cohere, Ollama, llama.cpp, SGLang.
    Embeddings,
    /// Documents ranked by relevance to a query.
    Rerank,
    /// Similarity of two texts (vLLM, SGLang).
    Score,
    /// Text classification (vLLM, SGLang).
    Classify,
    /// The raw output of a pooling model (vLLM, Dynamo).
    Pooling,
    /// `/invocations` (SageMaker), `/vertex`, `/vertex_generate`: any of the above, determined by the body.
    Invocations,
    /// vLLM's Rust front end over gRPC, `vllm.Inference/Generate`.
    VllmInference,
    /// The same, streamed: `vllm.Inference/GenerateStream`.
    VllmInferenceStream,
    /// `vllm serve --grpc`: `vllm.grpc.engine.VllmEngine/Generate`.
    VllmEngine,
    /// SGLang over gRPC: `sglang.grpc.scheduler.SglangScheduler/Generate`.
    SglangScheduler,
    /// TensorRT-LLM over gRPC: `trtllm.TrtllmService/Generate`.
    TensorrtService,
    /// Triton and KServe over gRPC: `inference.GRPCInferenceService/ModelInfer`.
    TritonInfer,
    /// The same as a bidirectional stream, `ModelStreamInfer`: counted as one request, however many it carries.
    TritonInferStream,
    /// A query about the server itself: health, metrics, models. Forwarded, but not counted as an API request.
    Probe,
    /// Every other path: counted, not decoded.
    #[default]
    Other,
}

/// The work that requests on a route cause in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It generates tokens.
    Generates,
    /// Processes input tokens and returns values that are not tokens.
    TakesInput,
    /// Neither, or not known.
    Neither,
}

impl Route {
    /// The route of a request, by its method and target.
    pub fn of_request(method: &str, target: &str) -> Route {
        match (method, Route::of_target(target)) {
            ("GET" | "HEAD", route) if route == Route::Probe || Route::path_of(target) == "/" => Route::Probe,
            (_, Route::Probe) => Route::Other,
            (_, route) => route.asked_by(method),
        }
    }

    /// This route if the method is the one its API uses, else [`Route::Other`]. APIs use POST; SGLang's `/generate`
    /// also PUT; a WebSocket GET. Any other GET generates nothing: `/v1/responses/ID?stream=true` replays a response
    /// that was already counted.
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

    /// The route of this request target (origin form or absolute form, including the query). A prefix before the API's
    /// own path is ignored (`/engine1/v1/chat/completions`), except where that path is too short to be unambiguous.
    pub fn of_target(target: &str) -> Route {
        let path = Route::path_of(target);
        let row = ROUTES
            .iter()
            .find(|api| api.whole.contains(&path) || api.paths.iter().any(|pattern| ends_with(path, pattern)));
        row.map_or(Route::Other, |api| api.route)
    }

    /// The path of a request target, without scheme, authority, query and trailing slash.
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

    /// The route with this configuration name.
    pub fn of_name(name: &str) -> Option<Route> {
        ROUTES.iter().find(|api| api.name == name).map(|api| api.route)
    }

    /// All routes, in enum order.
    pub fn all() -> impl ExactSizeIterator<Item = Route> + Clone {
        ROUTES.iter().map(|api| api.route)
    }

    /// The configuration names of all routes, in table order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ROUTES.iter().map(|api| api.name)
    }

    /// The configuration name of this route.
    pub fn name(self) -> &'static str {
        self.api().name
    }

    /// The value of `gen_ai.operation.name` for this route; `other` if its responses are not decoded.
    pub fn operation(self) -> &'static str {
        if self.is_read() { self.api().operation } else { OTHER }
    }

    /// True when requests on this route generate tokens and their responses are decoded.
    pub fn generates(self) -> bool {
        self.is_read() && self.api().work == Work::Generates
    }

    /// The work of requests on this route, whether or not their responses are decoded.
    pub fn work(self) -> Work {
        self.api().work
    }

    /// True for gRPC methods.
    pub fn is_rpc(self) -> bool {
        matches!(self, Route::VllmInference | Route::TritonInfer) || self.streams_rpc()
    }

    /// True for gRPC methods whose response is a stream of messages, even if there is only one.
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

    /// True where a stream ends once every choice has a finish reason. Elsewhere only a last event by name or `[DONE]`
    /// ends it: transcriptions have one finish reason per segment of the recording, and the other APIs name their last
    /// event.
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

    /// True when the dialect of its responses is known, so that they are decoded. Other routes are counted as
    /// [`Route::Other`].
    pub fn is_read(self) -> bool {
        let is_known = |framing| Place::root(self, framing) != Place::Unread;
        self.is_rpc() || is_known(Framing::Json) || is_known(Framing::Messages)
    }

    /// True where a response with this framing contains each piece of the generated text exactly once. Excluded are
    /// SGLang's streams, which repeat the text so far; transcriptions; and messages of gRPC and realtime.
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

    /// True where a plain-text body may be the response: transcriptions.
    pub(crate) fn answers_in_text(self) -> bool {
        matches!(self, Route::AudioTranscription | Route::AudioTranslation)
    }

    /// True when only the end of the body ends a stream on this route.
    pub fn ends_with_body(self) -> bool {
        self == Route::TritonGenerate
    }

    fn api(self) -> &'static Api {
        static OF_OTHER: Api =
            Api { route: Route::Other, name: OTHER, operation: OTHER, work: Work::Neither, paths: &[], whole: &[] };
        ROUTES.get(self as usize).unwrap_or(&OF_OTHER)
    }
}

/// True when the path ends with these segments; `*` matches any non-empty segment.
fn ends_with(path: &str, pattern: &str) -> bool {
    let mut segments = path.rsplit('/');
    pattern.rsplit('/').filter(|wanted| !wanted.is_empty()).all(|wanted| match segments.next() {
        Some(segment) => segment == wanted || (wanted == "*" && !segment.is_empty()),
        None => false,
    }) && segments.next().is_some()
}
