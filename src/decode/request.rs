//! Reads one request, as far as it says what to expect of the response.

use super::dialect::Asks;
use super::dialect::Capture;
use super::dialect::asks;
use super::framing::GrpcFramer;
use super::framing::Multipart;
use super::scan;
use super::scan::Keys;
use super::scan::Pause;
use super::scan::Scanner;
use super::scan::Shape;
use super::scan::Sink;
use super::scan::protobuf;
use crate::decode::Route;

/// Reads the body of one request, JSON or a form, cut anywhere, in fixed memory. Prompts and files are stepped over.
#[derive(Clone, Debug)]
pub struct RequestDecoder {
    scanner: Scanner<Place>,
    /// Boxed: only recordings to transcribe come in one.
    form: Option<Box<Multipart>>,
    /// Boxed: few requests come by gRPC.
    grpc: Option<Box<GrpcRequest>>,
    asked: Asked,
    /// An answer is streamed unless the request says `stream: false`.
    streams_unasked: bool,
    /// Several APIs share the path.
    is_shared: bool,
}

/// Reads the first message of a gRPC request; later ones on the same stream are requests of their own.
#[derive(Clone, Debug)]
struct GrpcRequest {
    framer: GrpcFramer,
    scanner: protobuf::Scanner<Asks>,
    done: bool,
    whole: bool,
}

impl GrpcRequest {
    fn of(route: Route) -> Option<Box<GrpcRequest>> {
        let scanner = protobuf::Scanner::new(asks(route)?);
        Some(Box::new(GrpcRequest { framer: GrpcFramer::new(), scanner, done: false, whole: false }))
    }

    fn feed(&mut self, mut bytes: &[u8], asked: &mut Asked) {
        while !self.done
            && let Some(part) = self.framer.next(&mut bytes)
        {
            if !part.compressed {
                self.scanner.feed(part.bytes, asked);
            }
            if part.last {
                self.done = true;
                self.whole = !part.compressed && self.scanner.finish();
            }
        }
    }
}

/// What a request asked for, as far as it said so and as far as the body was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts<'a> {
    /// `model`, cut to 128 bytes.
    pub model: Option<&'a str>,
    /// `stream`, or what its absence means on this route.
    pub stream: Option<bool>,
    /// `n`: answers per prompt (llama.cpp also `n_cmpl`, SGLang `sampling_params.n`).
    pub n: Option<u64>,
    /// `max_completion_tokens`, else `max_tokens` or `max_output_tokens` (Responses): output tokens per answer. llama.cpp's
    /// `n_predict`, Ollama's `options.num_predict`, and `max_new_tokens` of SGLang (`sampling_params`) and TGI
    /// (`parameters`).
    pub max_tokens: Option<u64>,
    /// `stream_options.include_usage`.
    pub include_usage: Option<bool>,
    /// `stream_options.continuous_usage_stats` (vLLM, SGLang).
    pub continuous_usage: Option<bool>,
    /// `return_token_ids` (vLLM).
    pub return_token_ids: Option<bool>,
    /// `echo`: the first text of the answer is the prompt.
    pub echo: Option<bool>,
    /// Prompts, if `prompt` (SGLang `text`, `input_ids`) is an array of strings or of arrays.
    pub prompts: Option<u64>,
    /// The API that takes a body of this shape, for a path that several APIs share ([`Route::Invocations`]). Texts under
    /// `input` are taken for embeddings, though vLLM also classifies and pools them.
    pub api: Option<Route>,
    /// The whole body was read, and was JSON or a form.
    pub complete: bool,
}

impl RequestDecoder {
    /// For a request on this route. Nothing is read of a route whose answers are not ([`Route::is_read`]).
    pub fn new(route: Route) -> Self {
        let is_shared = route == Route::Invocations;
        let root = if route.is_read() || is_shared { Place::Body } else { Place::Unread };
        let streams_unasked = matches!(route, Route::OllamaChat | Route::OllamaGenerate);
        Self {
            scanner: Scanner::new(root),
            form: None,
            grpc: GrpcRequest::of(route),
            asked: Asked::new(),
            streams_unasked,
            is_shared,
        }
    }

    /// The same for a body of this `content-type`: `multipart/form-data` is read as such, all else as JSON.
    pub fn of_content_type(route: Route, content_type: Option<&[u8]>) -> Self {
        let form = content_type.filter(|_| route.is_read()).and_then(Multipart::of_content_type);
        Self { form: form.map(Box::new), ..Self::new(route) }
    }

    /// Takes the next bytes of the body, without its transfer and content codings.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(grpc) = &mut self.grpc {
            return grpc.feed(bytes, &mut self.asked);
        }
        if let Some(form) = &mut self.form {
            let asked = &mut self.asked;
            return form.feed(bytes, &mut |name, value| asked.field(name, value));
        }
        self.scanner.feed(bytes, Pause::Never, &mut self.asked);
    }

    /// What is known so far.
    pub fn facts(&self) -> RequestFacts<'_> {
        let asked = &self.asked;
        let complete = match (&self.grpc, &self.form) {
            (Some(grpc), _) => grpc.whole,
            (None, Some(form)) => form.is_done(),
            (None, None) => self.scanner.is_done(),
        };
        RequestFacts {
            model: asked.model.text(),
            stream: asked.stream.or((complete && self.streams_unasked).then_some(true)),
            n: asked.n,
            max_tokens: asked.max_completion_tokens.or(asked.max_tokens).or(asked.max_output_tokens),
            include_usage: asked.include_usage,
            continuous_usage: asked.continuous_usage,
            return_token_ids: asked.return_token_ids,
            echo: asked.echo,
            prompts: asked.prompts,
            api: asked.shape.api().filter(|_| self.is_shared),
            complete,
        }
    }
}

/// A place in a request that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Unread,
    Body,
    Model,
    Stream,
    N,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    StreamOptions,
    IncludeUsage,
    ContinuousUsage,
    ReturnTokenIds,
    Echo,
    Prompt,
    PromptItem,
    Sampling,
    /// A key that tells the APIs apart.
    Telling(Shapes),
}

/// Which of the keys that tell the APIs apart a body has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shapes(u8);

impl Shapes {
    const MESSAGES: Shapes = Shapes(1);
    const PROMPT: Shapes = Shapes(2);
    const INPUT: Shapes = Shapes(4);
    const INPUTS: Shapes = Shapes(8);
    const QUERY: Shapes = Shapes(16);
    const DOCUMENTS: Shapes = Shapes(32);
    const TEXT_1: Shapes = Shapes(64);

    fn has(self, shape: Shapes) -> bool {
        self.0 & shape.0 != 0
    }

    fn insert(&mut self, shape: Shapes) {
        self.0 |= shape.0;
    }

    /// What vLLM 0.33, SGLang 0.5 and TGI 3.3 make of such a body at `/invocations`.
    fn api(self) -> Option<Route> {
        match self {
            shape if shape.has(Shapes::MESSAGES) => Some(Route::Chat),
            shape if shape.has(Shapes::PROMPT) => Some(Route::Completions),
            shape if shape.has(Shapes::QUERY) && shape.has(Shapes::DOCUMENTS) => Some(Route::Rerank),
            shape if shape.has(Shapes::TEXT_1) => Some(Route::Score),
            shape if shape.has(Shapes::INPUTS) => Some(Route::TgiCompat),
            shape if shape.has(Shapes::INPUT) => Some(Route::Embeddings),
            _ => None,
        }
    }
}

static BODY: Keys<Place> = Keys::new(&[
    ("model", Place::Model),
    ("stream", Place::Stream),
    ("stream_options", Place::StreamOptions),
    ("max_tokens", Place::MaxTokens),
    ("max_completion_tokens", Place::MaxCompletionTokens),
    ("max_output_tokens", Place::MaxOutputTokens),
    ("n", Place::N),
    ("prompt", Place::Prompt),
    ("echo", Place::Echo),
    ("return_token_ids", Place::ReturnTokenIds),
    // The engines' own routes.
    ("n_predict", Place::MaxCompletionTokens),
    ("n_cmpl", Place::N),
    ("text", Place::Prompt),
    ("input_ids", Place::Prompt),
    ("sampling_params", Place::Sampling),
    ("parameters", Place::Sampling),
    ("options", Place::Sampling),
    // What tells the APIs of a shared path apart.
    ("messages", Place::Telling(Shapes::MESSAGES)),
    ("input", Place::Telling(Shapes::INPUT)),
    ("inputs", Place::Telling(Shapes::INPUTS)),
    ("query", Place::Telling(Shapes::QUERY)),
    ("documents", Place::Telling(Shapes::DOCUMENTS)),
    ("text_1", Place::Telling(Shapes::TEXT_1)),
]);

/// SGLang `sampling_params`, TGI `parameters`, Ollama `options`.
static SAMPLING: Keys<Place> = Keys::new(&[
    ("max_new_tokens", Place::MaxCompletionTokens),
    ("num_predict", Place::MaxCompletionTokens),
    ("n", Place::N),
]);

static STREAM_OPTIONS: Keys<Place> =
    Keys::new(&[("include_usage", Place::IncludeUsage), ("continuous_usage_stats", Place::ContinuousUsage)]);

impl scan::Place for Place {
    fn shape(self) -> Shape<Place> {
        match self {
            Place::Body => Shape::Object(&BODY),
            Place::StreamOptions => Shape::Object(&STREAM_OPTIONS),
            Place::Sampling => Shape::Object(&SAMPLING),
            Place::Prompt => Shape::Array(Place::PromptItem),
            Place::Model => Shape::Word,
            Place::N | Place::MaxTokens | Place::MaxCompletionTokens | Place::MaxOutputTokens => Shape::Number,
            Place::Unread
            | Place::Stream
            | Place::IncludeUsage
            | Place::ContinuousUsage
            | Place::ReturnTokenIds
            | Place::Echo
            | Place::Telling(_)
            | Place::PromptItem => Shape::Mark,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    model: Capture<128>,
    stream: Option<bool>,
    n: Option<u64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    include_usage: Option<bool>,
    continuous_usage: Option<bool>,
    return_token_ids: Option<bool>,
    echo: Option<bool>,
    prompts: Option<u64>,
    shape: Shapes,
}

impl Asked {
    fn new() -> Self {
        Self {
            model: Capture::new(),
            stream: None,
            n: None,
            max_tokens: None,
            max_completion_tokens: None,
            max_output_tokens: None,
            include_usage: None,
            continuous_usage: None,
            return_token_ids: None,
            echo: None,
            prompts: None,
            shape: Shapes::default(),
        }
    }
}

impl Asked {
    /// A field of a form (vLLM 0.33: vllm/entrypoints/speech_to_text/transcription/protocol.py).
    fn field(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"model" => {
                self.model.clear();
                self.model.push(value);
                self.model.settle();
            }
            b"stream" => self.stream = boolean_of_form(value),
            b"stream_include_usage" => self.include_usage = boolean_of_form(value),
            b"stream_continuous_usage_stats" => self.continuous_usage = boolean_of_form(value),
            b"max_completion_tokens" => self.max_completion_tokens = whole_number(value),
            _ => {}
        }
    }
}

/// A boolean as the forms of pydantic, and so vLLM and SGLang, take it.
fn boolean_of_form(value: &[u8]) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    if is(&["true", "1", "on", "yes", "t", "y"]) {
        Some(true)
    } else {
        is(&["false", "0", "off", "no", "f", "n"]).then_some(false)
    }
}

fn whole_number(written: &[u8]) -> Option<u64> {
    std::str::from_utf8(written).ok()?.parse().ok()
}

impl protobuf::Sink<Asks> for Asked {
    fn begin(&mut self, _: Asks, _: u64) {}

    fn part(&mut self, asks: Asks, part: &[u8]) {
        if asks == Asks::Model {
            self.model.push(part);
        }
    }

    fn end(&mut self, asks: Asks) {
        if asks == Asks::Model {
            self.model.settle();
        }
    }

    fn number(&mut self, asks: Asks, value: u64) {
        match asks {
            Asks::N => self.n = Some(value),
            Asks::MaxTokens => self.max_tokens = Some(value),
            Asks::Stream => self.stream = Some(value != 0),
            Asks::Model | Asks::Options => {}
        }
    }
}

impl Sink<Place> for Asked {
    fn begin(&mut self, place: Place, first: u8) {
        let boolean = match first {
            b't' => Some(true),
            b'f' => Some(false),
            _ => None,
        };
        match place {
            Place::Stream => self.stream = boolean,
            Place::IncludeUsage => self.include_usage = boolean,
            Place::ContinuousUsage => self.continuous_usage = boolean,
            Place::ReturnTokenIds => self.return_token_ids = boolean,
            Place::Echo => self.echo = boolean,
            Place::Prompt => self.shape.insert(Shapes::PROMPT),
            Place::Telling(shape) => self.shape.insert(shape),
            Place::PromptItem if matches!(first, b'"' | b'[') => {
                self.prompts = Some(self.prompts.unwrap_or(0).saturating_add(1));
            }
            _ => {}
        }
    }

    fn text(&mut self, _: Place, _: bool) {}

    fn wants_word(&mut self, _: Place) -> bool {
        self.model.clear();
        true
    }

    fn word_part(&mut self, _: Place, part: &[u8]) {
        self.model.push(part);
    }

    fn word_end(&mut self, _: Place) {
        self.model.settle();
    }

    fn number(&mut self, place: Place, written: &[u8]) {
        let value = whole_number(written);
        match place {
            Place::N => self.n = value,
            Place::MaxTokens => self.max_tokens = value,
            Place::MaxCompletionTokens => self.max_completion_tokens = value,
            Place::MaxOutputTokens => self.max_output_tokens = value,
            _ => {}
        }
    }
}
