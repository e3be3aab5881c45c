//! User settings of the observers: the block `observe` of the configuration. These comments are the block's documentation.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use tokometer_settings::{self as form, Size};

use crate::observer::cost::automatic_memory;
use tokometer_decode::{Engine, Route, TextLimits};

/// How requests are parsed and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// If false, traffic is forwarded without being parsed, so there are no request metrics and no traces.
    pub enabled: bool,
    /// Engine behind tokometer, for `gen_ai.provider.name` and for the interpretation of its responses.
    pub engine: ConfiguredEngine,
    /// Maximum size of request or response headers. Of larger request headers, only the needed fields are kept; requests
    /// with other larger headers are recorded as unobserved.
    #[serde(skip)]
    pub head_bytes: usize,
    /// Maximum number of observed open requests per connection; additional requests are recorded as unobserved.
    #[serde(skip)]
    pub max_open_requests: usize,
    /// Maximum number of observed connections; requests on additional connections are only counted, as unobserved.
    #[serde(skip)]
    pub max_observed: usize,
    /// Minimum time between first and last token for a decode rate to be recorded.
    #[serde(skip)]
    pub min_rate_span: Duration,
    /// Maximum window size of a compressed body; bodies with a larger window are not parsed.
    #[serde(skip)]
    pub coding_window_bytes: usize,
    /// Decoding allowance per received byte, shared by all compressed bodies of a connection.
    #[serde(skip)]
    pub coding_ratio: u64,
    /// Memory budget for observer state whose size depends on clients: open requests, decoders, header tables, split
    /// headers. A single connection can use at most half of the budget, and a client address eight ninths. Above the
    /// budget, memory is taken back from idle connections; if there are none, new requests are recorded as
    /// `unobserved`, and bodies are not parsed. Traffic is not affected. 0: half of the container's memory limit, at
    /// most 64 MiB.
    #[schemars(extend("x-range" = ["0B", "1024GiB"]))]
    pub memory: Size,
    /// Stall threshold: a longer gap between two tokens is a stall, unless the stream's own cadence explains the gap
    /// (docs/concepts/stalls.md).
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1ms", "1h"]))]
    pub stall: Duration,
    /// Minimum output tokens of a request for its decode rate to be recorded.
    #[schemars(range(min = 2, max = 1000000))]
    pub min_rate_tokens: u64,
    /// Path prefixes that are removed before a path is matched, such as `/engine1`. Each prefix starts with `/`.
    pub path_prefixes: Vec<String>,
    /// Custom routes, as `path: name`; they override built-in routes. `/llm` matches only that path; `/llm/*` matches
    /// every path below `/llm`. Names: `chat`, `completions`, `responses`, `messages`, `generate`, `tgi_stream`,
    /// `tgi_compat`, `llama_completion`, `infill`, `ollama_chat`, `ollama_generate`, `triton_generate`,
    /// `vllm_generate`, `cohere_chat`, `audio_transcription`, `audio_translation`, `realtime`, `embeddings`, `rerank`,
    /// `score`, `classify`, `pooling`, `prefill` and `invocations` (detected from the body), `vllm_inference`,
    /// `vllm_inference_stream`, `vllm_engine`, `sglang_scheduler`, `tensorrt_service`, `triton_infer`,
    /// `triton_infer_stream` (gRPC), `abort` (aborts other requests), `probe` (see `probes`), `other` (counted, not
    /// parsed).
    pub routes: OwnRoutes,
    /// If true, probes are also recorded, as requests of the operation `other`. Probes are GET, HEAD and OPTIONS requests
    /// about the server itself (`/`, `/health`, `/metrics`, `/v1/models` and similar paths, and paths set to `probe` in
    /// `routes`). Probes do not use the model. They are always forwarded, and counted in connections and bytes.
    pub probes: bool,
    /// Request headers with targets and tenant.
    #[serde(skip)]
    pub targets: TargetHeaders,
    /// Limits on response text kept for the tokenizer; with `None`, no text is kept.
    #[serde(skip)]
    pub text: Option<TextLimits>,
}

/// The engine behind a listener; `None`, written `auto`: detected from the engine's responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ConfiguredEngine(pub Option<Engine>);

const AUTO: &str = "auto";

impl From<ConfiguredEngine> for String {
    fn from(engine: ConfiguredEngine) -> String {
        engine.0.map_or(AUTO, Engine::as_str).to_owned()
    }
}

impl TryFrom<String> for ConfiguredEngine {
    type Error = String;

    fn try_from(name: String) -> Result<ConfiguredEngine, String> {
        let engine = Engine::of_name(&name);
        let known = engine.is_some() || name == AUTO;
        known.then_some(ConfiguredEngine(engine)).ok_or_else(|| format!("unknown engine `{name}`"))
    }
}

impl JsonSchema for ConfiguredEngine {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Engine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let auto = (AUTO, "Detected from the server's responses.");
        let engines = Engine::ALL.map(|engine| (engine.as_str(), engine.meaning()));
        let one = |(name, meaning)| json_schema!({"const": name, "description": meaning, "type": "string"}).to_value();
        let names: Vec<serde_json::Value> = std::iter::once(auto).chain(engines).map(one).collect();
        json_schema!({"oneOf": names})
    }
}

/// Custom paths with their routes, matched before the built-in ones. Invalid entries, which [`OwnPath::new`] reports,
/// match nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
pub struct OwnRoutes {
    /// The entries, as `path: name`.
    #[serde(flatten)]
    pub written: BTreeMap<String, String>,
    #[serde(skip)]
    paths: Vec<OwnPath>,
}

impl From<BTreeMap<String, String>> for OwnRoutes {
    fn from(written: BTreeMap<String, String>) -> OwnRoutes {
        let paths = written.iter().filter_map(|(path, route)| OwnPath::new(path, route).ok()).collect();
        OwnRoutes { written, paths }
    }
}

impl JsonSchema for OwnRoutes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OwnRoutes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, String>::json_schema(generator)
    }
}

/// Request headers with latency targets and tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetHeaders {
    /// Whether to read `x-llm-d-slo-ttft-ms`, `x-llm-d-slo-tpot-ms` and their old names without `llm-d-`.
    pub speed: bool,
    /// Headers that name the tenant if the claim does not, in lower case; the first header present is used.
    pub tenant: Vec<Box<str>>,
    /// Bearer token claim that names the tenant; dots separate the keys of nested objects.
    pub claim: Option<Box<str>>,
}

/// A custom path and its route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPath {
    path: Box<str>,
    /// True for a prefix, which matches all paths below it but not the path itself.
    below: bool,
    route: Route,
}

impl OwnPath {
    /// Creates a custom path from a path (`/llm`) or a prefix (`/llm/*`) and the name of its route.
    ///
    /// # Errors
    ///
    /// The path or the name of the route is invalid.
    pub fn new(path: &str, route: &str) -> Result<OwnPath, OwnPathError> {
        let (kept, below) = path.strip_suffix("/*").map_or((path, false), |kept| (kept, true));
        if !path.starts_with('/') || kept.contains(['*', '?', '#', ' ']) {
            return Err(OwnPathError::Path);
        }
        let route = Route::of_name(route).ok_or(OwnPathError::Route)?;
        let kept = if kept.len() > 1 || below { kept.trim_end_matches('/') } else { kept };
        Ok(OwnPath { path: kept.into(), below, route })
    }

    /// Names of all routes.
    pub fn routes() -> impl Iterator<Item = &'static str> {
        Route::names()
    }

    fn covers(&self, path: &str) -> bool {
        match path.strip_prefix(&*self.path) {
            Some("") => !self.below,
            Some(rest) => self.below && rest.starts_with('/'),
            None => false,
        }
    }
}

/// Why a custom path is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPathError {
    /// The path is invalid.
    Path,
    /// No route has this name.
    Route,
}

impl Settings {
    /// The memory budget in bytes.
    pub(super) fn memory_limit(&self) -> usize {
        usize::try_from(self.memory.0).ok().filter(|bytes| *bytes > 0).unwrap_or_else(automatic_memory)
    }

    /// Route of a request. An exactly matching custom path takes precedence, then the longest matching custom prefix,
    /// then the built-in routes (after removing a configured prefix).
    pub(super) fn route(&self, method: &str, target: &str) -> Route {
        Route::readings(target).find_map(|path| self.route_at(method, &path)).unwrap_or_default()
    }

    fn route_at(&self, method: &str, path: &str) -> Option<Route> {
        let own =
            self.routes.paths.iter().filter(|own| own.covers(path)).max_by_key(|own| (!own.below, own.path.len()));
        if let Some(own) = own {
            return Some(own.route.asked_by(method));
        }
        let rest = self.path_prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.trim_end_matches('/')));
        match rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            Some("") => Route::at(method, "/"),
            Some(rest) => Route::at(method, rest),
            None => Route::at(method, path),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            enabled: true,
            engine: ConfiguredEngine::default(),
            head_bytes: 64 * 1024,
            max_open_requests: 1024,
            max_observed: 100_000,
            stall: Duration::from_secs(1),
            min_rate_tokens: 2,
            min_rate_span: Duration::from_millis(1),
            coding_window_bytes: 8 * 1024 * 1024,
            coding_ratio: 24,
            memory: Size(0),
            path_prefixes: Vec::new(),
            routes: OwnRoutes::default(),
            probes: false,
            targets: TargetHeaders::default(),
            text: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(own: &[(&str, &str)], prefixes: &[&str]) -> Settings {
        Settings {
            routes: own
                .iter()
                .map(|(path, route)| ((*path).to_owned(), (*route).to_owned()))
                .collect::<BTreeMap<_, _>>()
                .into(),
            path_prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
            ..Settings::default()
        }
    }

    #[test]
    fn longest_custom_path_wins_over_other_paths() {
        let own =
            [("/llm", "chat"), ("/llm/*", "completions"), ("/llm/x/*", "other"), ("/v1/chat/completions", "probe")];
        let settings = settings(&own, &[]);
        for (path, route) in [
            ("/llm", Route::Chat),
            ("/llm/?a=b", Route::Chat),
            ("/llm/a/b", Route::Completions),
            ("/llm/x", Route::Completions),
            ("/llm/x/y", Route::Other),
            ("/llmx", Route::Other),
            ("/v1/chat/completions", Route::Probe),
            ("/engine1/v1/chat/completions", Route::Chat),
        ] {
            assert_eq!(settings.route("POST", path), route, "{path}");
        }
        assert_eq!(settings.route("GET", "/llm"), Route::Other, "GET does not generate");
        assert_eq!(settings.route("GET", "/v1/chat/completions"), Route::Probe);
    }

    #[test]
    fn wildcard_sets_route_of_all_paths() {
        let all = settings(&[("/*", "other"), ("/a", "chat")], &[]);
        assert_eq!(all.route("POST", "/v1/completions"), Route::Other);
        assert_eq!(all.route("POST", "/a"), Route::Chat);
        assert_eq!(settings(&[("/", "chat")], &[]).route("POST", "/"), Route::Chat);
    }

    #[test]
    fn prefix_is_stripped_only_at_segment_boundary() {
        for prefix in ["/engine1", "/engine1/"] {
            let settings = settings(&[], &[prefix]);
            assert_eq!(settings.route("POST", "/engine1/generate"), Route::Generate);
            assert_eq!(settings.route("POST", "/engine12/generate"), Route::Other);
            assert_eq!(settings.route("POST", "/engine1"), Route::TgiCompat);
            assert_eq!(settings.route("GET", "/engine1/load"), Route::Probe);
        }
    }

    #[test]
    fn custom_paths_and_prefixes_match_however_a_server_accepts_them() {
        let own = [("/llm/*", "completions"), ("/llm/x", "other"), ("/a%20b", "chat")];
        let settings = settings(&own, &["/engine1"]);
        for (target, route) in [
            ("/engine1/%67enerate", Route::Generate),
            ("/engin%651%2Fgenerate", Route::Generate),
            ("http://h/engine1//generate", Route::Generate),
            ("/x/../engine1/./generate", Route::Generate),
            ("/%65ngine1", Route::TgiCompat),
            ("/llm%2Fa", Route::Completions),
            ("/%6Clm/x", Route::Other),
            ("/llm/%78?a", Route::Other),
            ("/a%20b", Route::Chat),
            ("/engine1%2567enerate", Route::Other),
        ] {
            assert_eq!(settings.route("POST", target), route, "{target}");
        }
    }

    #[test]
    fn invalid_custom_paths_and_routes_are_errors() {
        assert_eq!(OwnPath::new("llm", "chat"), Err(OwnPathError::Path));
        assert_eq!(OwnPath::new("/a/*/b", "chat"), Err(OwnPathError::Path));
        assert_eq!(OwnPath::new("/a?b=c", "chat"), Err(OwnPathError::Path));
        assert_eq!(OwnPath::new("/llm", "chatt"), Err(OwnPathError::Route));
    }
}
