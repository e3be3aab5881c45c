//! Decoder for the request parameters that determine how to interpret the response.

mod abort;
mod keys;
mod limits;
mod parameters;

use super::framing::Multipart;
use super::scan::{Pause, Scanner, protobuf};
use crate::dialect::grpc::{Method, RequestField};
use crate::{Engine, Route};
use abort::AbortRequest;
pub use abort::Aborted;
use keys::Place;
pub(crate) use limits::Limits;
pub use limits::OutputLimit;
use parameters::Parameters;

/// Incremental decoder for one request body, JSON or a form, in fixed memory. Prompts and files are skipped.
#[derive(Clone, Debug)]
pub struct RequestDecoder {
    scanner: Scanner<Place>,
    /// Boxed: only audio uploads use forms.
    form: Option<Box<Multipart>>,
    /// Boxed: few requests use gRPC.
    grpc: Option<Box<GrpcRequest>>,
    /// Boxed: few requests abort others.
    abort: Option<Box<AbortRequest>>,
    parameters: Parameters,
    route: Route,
    /// The engine, if known.
    engine: Option<Engine>,
    /// The response is streamed unless the request has `stream: false`.
    streams_unasked: bool,
    /// Several APIs share the path.
    is_shared: bool,
}

/// Decodes the first message of a gRPC request; later messages on the same stream are separate requests.
#[derive(Clone, Debug)]
struct GrpcRequest {
    scanner: protobuf::Scanner<RequestField>,
    done: bool,
    whole: bool,
}

impl GrpcRequest {
    fn new(method: &Method) -> GrpcRequest {
        GrpcRequest { scanner: protobuf::Scanner::new(method.request), done: false, whole: false }
    }

    fn feed(&mut self, bytes: &[u8], parameters: &mut Parameters) {
        if !self.done {
            self.scanner.feed(bytes, parameters);
        }
    }

    fn end_message(&mut self) {
        if !self.done {
            self.done = true;
            self.whole = self.scanner.finish();
        }
    }
}

/// The request parameters that are present in the decoded part of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts<'a> {
    /// `model`, truncated to 128 bytes.
    pub model: Option<&'a str>,
    /// `stream`, or the route's default once the body is complete.
    pub stream: Option<bool>,
    /// `n`: choices per prompt (llama.cpp also `n_cmpl`, SGLang `sampling_params.n`).
    pub n: Option<u64>,
    /// Maximum output tokens per choice, if the engine reads the key on this route: `max_completion_tokens`, else
    /// `max_tokens` or `max_output_tokens` (Responses). Also llama.cpp's `n_predict`, Ollama's `options.num_predict`,
    /// and `max_new_tokens` of SGLang (`sampling_params`) and TGI (`parameters`).
    pub max_tokens: Option<u64>,
    /// `echo`: the response begins with the prompt.
    pub echo: Option<bool>,
    /// Number of prompts, if the request has a list: the strings or arrays in `prompt` (SGLang: `text`, `input_ids`),
    /// the `documents` to rank, or the `instances` (Vertex AI).
    pub prompts: Option<u64>,
    /// The API that accepts this body, on a path shared by several APIs ([`Route::Invocations`]). Texts under `input`
    /// count as embeddings, although vLLM also classifies and pools them.
    pub api: Option<Route>,
    /// This engine computes only the prefill, and another engine decodes: vLLM's `kv_transfer_params.do_remote_decode`
    /// with a limit of one token.
    pub prefill_leg: bool,
    /// TensorRT-LLM's `disaggregated_params.request_type: "context_only"`: the same, whatever the limit is. Other
    /// engines ignore the key.
    pub context_only: bool,
    /// The whole body was decoded as JSON, a form or a gRPC message.
    pub complete: bool,
}

impl RequestDecoder {
    /// Decoder for a request on this route. Bodies are ignored unless the route is decoded ([`Route::is_read`]) or
    /// shared by several APIs.
    pub fn new(route: Route) -> Self {
        let is_shared = route.is_shared();
        let root = if route.is_read() || is_shared { Place::Body } else { Place::Unread };
        Self {
            scanner: Scanner::new(root),
            form: None,
            grpc: route.grpc().map(|method| Box::new(GrpcRequest::new(method))),
            abort: (route == Route::Abort).then(Box::default),
            parameters: Parameters::default(),
            route,
            engine: None,
            streams_unasked: route.streams_by_default(),
            is_shared,
        }
    }

    /// Like `new`, for a body with this `content-type`: `multipart/form-data` is decoded as a form, everything else as
    /// JSON.
    pub fn of_content_type(route: Route, content_type: Option<&[u8]>) -> Self {
        let form = content_type.filter(|_| route.is_read()).and_then(Multipart::of_content_type);
        Self { form: form.map(Box::new), ..Self::new(route) }
    }

    /// Sets the engine, which determines the keys of [`RequestFacts::max_tokens`].
    #[must_use]
    pub fn of_engine(self, engine: Option<Engine>) -> Self {
        Self { engine, ..self }
    }

    /// Reads the id of the request that a call aborts, if it is in the target.
    #[must_use]
    pub fn of_target(mut self, target: &str) -> Self {
        if let Some(abort) = &mut self.abort {
            abort.target(target);
        }
        self
    }

    /// Decodes the next bytes of the body, after transfer and content decoding; for gRPC, the bytes of the messages.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(grpc) = &mut self.grpc {
            return grpc.feed(bytes, &mut self.parameters);
        }
        if let Some(abort) = &mut self.abort {
            return abort.feed(bytes);
        }
        if let Some(form) = &mut self.form {
            let parameters = &mut self.parameters;
            return form.feed(bytes, &mut |name, value| parameters.field(name, value));
        }
        self.scanner.feed(bytes, Pause::Never, &mut self.parameters);
    }

    /// Ends a gRPC message.
    pub fn end_message(&mut self) {
        if let Some(grpc) = &mut self.grpc {
            grpc.end_message();
        }
    }

    /// The parameters known so far.
    pub fn facts(&self) -> RequestFacts<'_> {
        let (parameters, complete) = (&self.parameters, self.is_complete());
        let limit = self.output_limit();
        RequestFacts {
            model: parameters.model.text(),
            stream: parameters
                .stream
                .or(parameters.parameters_stream.filter(|_| parameters.instances.is_some()))
                .or((complete && self.streams_unasked).then_some(true))
                .filter(|_| !parameters.stream_is_odd),
            n: parameters.n,
            max_tokens: parameters.limits.applied(self.limit_keys().0.and(self.limit_keys().1)),
            echo: parameters.echo,
            prompts: parameters.prompts(),
            api: parameters.shape.api().filter(|_| self.is_shared),
            prefill_leg: (parameters.remote_decode == Some(true) || parameters.context_only)
                && limit == OutputLimit { largest: 1, certain: true },
            context_only: parameters.context_only,
            complete,
        }
    }

    /// The requests that this request aborts ([`Route::Abort`]); `None` if the body is incomplete and needed.
    pub fn aborted(&self) -> Option<Aborted> {
        self.abort.as_ref()?.aborted()
    }

    fn is_complete(&self) -> bool {
        match (&self.grpc, &self.form) {
            (Some(grpc), _) => grpc.whole,
            (None, Some(form)) => form.is_done(),
            (None, None) => self.scanner.is_done(),
        }
    }

    /// The limit on output tokens. Unlike [`RequestFacts::max_tokens`], it cannot be less than the number of tokens
    /// that the engine generates, however the engine reads the body.
    pub fn output_limit(&self) -> OutputLimit {
        let (certain, possible) = self.limit_keys();
        let limit = self.parameters.limits.evidence(certain, possible);
        OutputLimit { certain: limit.certain && self.is_complete(), ..limit }
    }

    /// The keys that the engine certainly reads, and those that it may also read.
    fn limit_keys(&self) -> (Limits, Limits) {
        let instances = self.parameters.instances;
        let route = if self.is_shared { self.parameters.shape.api() } else { Some(self.route) };
        let (certain, possible) = route.map_or((Limits::NONE, Limits::ALL), |route| route.limits(self.engine));
        match instances.filter(|_| self.is_shared) {
            None => (certain, possible),
            // Each instance has its own limit, so the limit per choice is known only for a single instance.
            Some(1) => (Limits::NONE, certain.and(possible).and(Limits::INSTANCE)),
            Some(_) => (Limits::NONE, certain.and(possible)),
        }
    }
}
