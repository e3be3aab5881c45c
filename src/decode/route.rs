//! Which API a path belongs to.

use super::dialect::Place;

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

/// A row of the table of routes.
#[derive(Debug)]
struct Api {
    route: Route,
    /// What configuration calls it.
    name: &'static str,
    operation: &'static str,
    work: Work,
    /// Paths of its own, that may stand behind any prefix (`/engine1/v1/chat/completions`). `*` is any one segment.
    paths: &'static [&'static str],
    /// Paths too short to be known behind a prefix: `/images/generate` is not TGI's. They are the whole path.
    whole: &'static [&'static str],
}

/// The routes. `operation` is `gen_ai.operation.name`: the words of the OpenTelemetry GenAI conventions where they have one
/// (`chat`, `text_completion`, `embeddings`), else our own.
///
/// Paths that look like one of these and are not generations of one answer, and so are `other`: `/v1/messages/count_tokens`,
/// `/v1/responses/ID/cancel`, `…/render` and `/tokenize` (nothing is generated), LMDeploy's `/v1/encode` (a tokenizer), and
/// vLLM's `/v1/chat/completions/batch` (its times are no single request's).
static ROUTES: [Api; 24] = [
    Api {
        route: Route::Chat,
        name: "chat",
        operation: "chat",
        work: Work::Generates,
        paths: &["/chat/completions"],
        whole: &[],
    },
    Api {
        route: Route::Completions,
        name: "completions",
        operation: "text_completion",
        work: Work::Generates,
        paths: &["/v1/completions"],
        whole: &[],
    },
    Api {
        route: Route::Responses,
        name: "responses",
        operation: "chat",
        work: Work::Generates,
        paths: &["/v1/responses"],
        whole: &["/responses"],
    },
    Api {
        route: Route::Messages,
        name: "messages",
        operation: "chat",
        work: Work::Generates,
        paths: &["/v1/messages"],
        whole: &[],
    },
    Api {
        route: Route::Generate,
        name: "generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/generate"],
    },
    Api {
        route: Route::TgiStream,
        name: "tgi_stream",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/generate_stream"],
    },
    Api {
        route: Route::TgiCompat,
        name: "tgi_compat",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/"],
    },
    Api {
        route: Route::LlamaCompletion,
        name: "llama_completion",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/completion", "/completions"],
    },
    Api {
        route: Route::Infill,
        name: "infill",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/infill"],
    },
    Api {
        route: Route::OllamaChat,
        name: "ollama_chat",
        operation: "chat",
        work: Work::Generates,
        paths: &["/api/chat"],
        whole: &[],
    },
    Api {
        route: Route::OllamaGenerate,
        name: "ollama_generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &["/api/generate"],
        whole: &[],
    },
    Api {
        route: Route::TritonGenerate,
        name: "triton_generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[
            "/v2/models/*/generate",
            "/v2/models/*/generate_stream",
            "/v2/models/*/versions/*/generate",
            "/v2/models/*/versions/*/generate_stream",
        ],
        whole: &[],
    },
    Api {
        route: Route::VllmGenerate,
        name: "vllm_generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &["/inference/v1/generate"],
        whole: &[],
    },
    Api {
        route: Route::CohereChat,
        name: "cohere_chat",
        operation: "chat",
        work: Work::Generates,
        paths: &["/v2/chat"],
        whole: &[],
    },
    Api {
        route: Route::AudioTranscription,
        name: "audio_transcription",
        operation: "transcription",
        work: Work::Generates,
        paths: &["/audio/transcriptions"],
        whole: &[],
    },
    Api {
        route: Route::AudioTranslation,
        name: "audio_translation",
        operation: "translation",
        work: Work::Generates,
        paths: &["/audio/translations"],
        whole: &[],
    },
    Api {
        route: Route::Realtime,
        name: "realtime",
        operation: "realtime",
        work: Work::Generates,
        paths: &["/v1/realtime"],
        whole: &[],
    },
    Api {
        route: Route::Embeddings,
        name: "embeddings",
        operation: "embeddings",
        work: Work::TakesInput,
        paths: &["/v1/embeddings", "/v2/embed", "/api/embed", "/api/embeddings"],
        whole: &["/embeddings", "/embedding", "/embed", "/encode"],
    },
    Api {
        route: Route::Rerank,
        name: "rerank",
        operation: "rerank",
        work: Work::TakesInput,
        paths: &["/v1/rerank", "/v2/rerank", "/v1/reranking"],
        whole: &["/rerank", "/reranking"],
    },
    Api {
        route: Route::Score,
        name: "score",
        operation: "score",
        work: Work::TakesInput,
        paths: &["/v1/score"],
        whole: &["/score"],
    },
    Api {
        route: Route::Classify,
        name: "classify",
        operation: "classify",
        work: Work::TakesInput,
        paths: &["/v1/classify"],
        whole: &["/classify"],
    },
    Api {
        route: Route::Pooling,
        name: "pooling",
        operation: "pooling",
        work: Work::TakesInput,
        paths: &["/v1/pooling"],
        whole: &["/pooling"],
    },
    Api {
        route: Route::Invocations,
        name: "invocations",
        operation: OTHER,
        work: Work::Neither,
        paths: &[],
        whole: &["/invocations", "/vertex", "/vertex_generate"],
    },
    Api { route: Route::Other, name: OTHER, operation: OTHER, work: Work::Neither, paths: &[], whole: &[] },
];

/// What is not one of the APIs.
const OTHER: &str = "other";

impl Route {
    /// The route of a request by its method and target. An API is asked by POST; SGLang's `/generate` also by PUT; a
    /// WebSocket by GET. What else comes by GET (`/v1/responses/ID?stream=true` replays an answer that was counted) is
    /// [`Route::Other`].
    pub fn of_request(method: &str, target: &str) -> Route {
        let route = Route::of_target(target);
        let asked = match method {
            "POST" => route != Route::Realtime,
            "PUT" => route == Route::Generate,
            "GET" => route == Route::Realtime,
            _ => false,
        };
        if asked { route } else { Route::Other }
    }

    /// The route of this request target (origin form or absolute form, query and all), whatever stands before the
    /// API's own path (`/engine1/v1/chat/completions`) if that is long enough to be known there.
    pub fn of_target(target: &str) -> Route {
        let path = path(target);
        let row = ROUTES
            .iter()
            .find(|api| api.whole.contains(&path) || api.paths.iter().any(|pattern| ends_with(path, pattern)));
        row.map_or(Route::Other, |api| api.route)
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

    /// True when its answers are read: [`Place::root`] knows their dialect. What is not read is counted as
    /// [`Route::Other`].
    pub fn is_read(self) -> bool {
        Place::root(self) != Place::Unread
    }

    fn api(self) -> &'static Api {
        static OF_OTHER: Api =
            Api { route: Route::Other, name: OTHER, operation: OTHER, work: Work::Neither, paths: &[], whole: &[] };
        ROUTES.get(self as usize).unwrap_or(&OF_OTHER)
    }
}

/// The path of a request target: no scheme and authority (absolute form), no query, no slash at the end.
fn path(target: &str) -> &str {
    let target = target.split(['?', '#']).next().unwrap_or(target);
    let path = match target.split_once("://") {
        Some((_, rest)) if !target.starts_with('/') => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        _ => target,
    };
    if path == "/" { path } else { path.strip_suffix('/').unwrap_or(path) }
}

/// True when the last segments of a path are these; `*` is any segment that is not empty.
fn ends_with(path: &str, pattern: &str) -> bool {
    let mut segments = path.rsplit('/');
    pattern.rsplit('/').filter(|wanted| !wanted.is_empty()).all(|wanted| match segments.next() {
        Some(segment) => segment == wanted || (wanted == "*" && !segment.is_empty()),
        None => false,
    }) && segments.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_stands_at_its_place_in_the_table() {
        for (at, api) in ROUTES.iter().enumerate() {
            assert_eq!(api.route as usize, at, "{}", api.name);
            assert_eq!(api.route.name(), api.name);
        }
        let mut names: Vec<_> = ROUTES.iter().map(|api| api.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROUTES.len());
    }

    #[test]
    fn no_path_belongs_to_two_routes() {
        for api in &ROUTES {
            for own in api.paths.iter().chain(api.whole) {
                let example = own.replace('*', "m");
                let of = |api: &&Api| {
                    api.whole.contains(&example.as_str()) || api.paths.iter().any(|p| ends_with(&example, p))
                };
                let owners: Vec<_> = ROUTES.iter().filter(of).map(|api| api.name).collect();
                assert_eq!(owners, [api.name], "{own}");
                assert_eq!(Route::of_target(&example), api.route);
            }
            for own in api.paths {
                let example = format!("/engine1{}", own.replace('*', "m"));
                assert_eq!(Route::of_target(&example), api.route, "{example}");
            }
        }
    }

    #[test]
    fn what_looks_like_a_generation_and_is_none_is_other() {
        for path in [
            "/v1/messages/count_tokens",
            "/v1/responses/resp_1",
            "/v1/responses/resp_1/cancel",
            "/v1/chat/completions/batch",
            "/v1/chat/completions/render",
            "/v1/completions/render",
            "/inference/v1/abort_requests",
            "/v2/models//generate",
            "/v2/models/m/infer",
            "/v1/images/generate",
            "/engine1/completions",
            "/engine1/",
            "/tokenize",
            "/v1/encode",
            "/xv1/completions",
            "xv1/completions",
            "chat/completions",
            "*",
            "",
        ] {
            assert_eq!(Route::of_target(path), Route::Other, "{path}");
        }
    }

    #[test]
    fn a_target_may_be_absolute_and_may_carry_a_query_and_a_slash_at_its_end() {
        for target in [
            "/v1/chat/completions?api-version=1",
            "/v1/chat/completions/",
            "/openai/deployments/m/chat/completions?x=/generate",
            "http://engine:8000/v1/chat/completions",
        ] {
            assert_eq!(Route::of_target(target), Route::Chat, "{target}");
        }
        assert_eq!(Route::of_target("http://engine:8000/generate"), Route::Generate);
        for target in ["/", "/?x", "http://engine:8000", "http://engine:8000/"] {
            assert_eq!(Route::of_target(target), Route::TgiCompat, "{target}");
        }
    }

    #[test]
    fn the_method_must_be_one_that_asks_for_work() {
        assert_eq!(Route::of_request("POST", "/v1/responses"), Route::Responses);
        assert_eq!(Route::of_request("GET", "/v1/responses"), Route::Other);
        assert_eq!(Route::of_request("GET", "/"), Route::Other);
        assert_eq!(Route::of_request("PUT", "/generate"), Route::Generate);
        assert_eq!(Route::of_request("PUT", "/v1/chat/completions"), Route::Other);
        assert_eq!(Route::of_request("GET", "/v1/realtime?model=m"), Route::Realtime);
        assert_eq!(Route::of_request("POST", "/v1/realtime"), Route::Other);
    }

    #[test]
    fn a_route_that_is_not_read_is_counted_as_other() {
        for api in &ROUTES {
            let route = api.route;
            assert_eq!(route.operation() == "other", !route.is_read() || route == Route::Invocations, "{}", api.name);
            assert!(route.is_read() || !route.generates());
        }
        assert_eq!((Route::Chat.operation(), Route::Completions.operation()), ("chat", "text_completion"));
    }
}
