//! Settings of the observers.

use std::time::Duration;

use crate::observer::cost::automatic_memory;
use tokometer_decode::{Route, TextLimits};

/// How requests are parsed and measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// If false, traffic is forwarded unobserved.
    pub enabled: bool,
    /// The upstream engine. If not set, the engine is recognised from its responses.
    pub engine: Option<&'static str>,
    /// Maximum size of request or response headers. Of larger request headers, only the needed fields are kept; requests
    /// with other larger headers are recorded as unobserved.
    pub head_bytes: usize,
    /// Maximum number of observed open requests per connection; additional requests are recorded as unobserved.
    pub max_open_requests: usize,
    /// Maximum number of observed connections; requests on additional connections are only counted, as unobserved.
    pub max_observed: usize,
    /// A gap between two tokens longer than this is a stall, unless the stream's cadence explains it.
    pub stall: Duration,
    /// Minimum output tokens for a decode rate to be recorded.
    pub min_rate_tokens: u64,
    /// Minimum time between first and last token for a decode rate to be recorded.
    pub min_rate_span: Duration,
    /// Maximum window size of a compressed body; bodies with a larger window are not parsed.
    pub coding_window_bytes: usize,
    /// Decoding allowance per received byte, shared by all compressed bodies of a connection.
    pub coding_ratio: u64,
    /// Memory budget for all observers; `None`: half of the container's limit, at most 64 MiB.
    pub memory_bytes: Option<usize>,
    /// Path prefixes to strip before matching (`/engine1`).
    pub path_prefixes: Vec<String>,
    /// Custom paths, matched before the built-in ones.
    pub own_paths: Vec<OwnPath>,
    /// If true, probes are recorded as requests with operation `other`.
    pub probes: bool,
    /// Request headers with targets and tenant.
    pub targets: TargetHeaders,
    /// Limits on response text kept for the tokenizer; with `None`, no text is kept.
    pub text: Option<TextLimits>,
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
        self.memory_bytes.unwrap_or_else(automatic_memory)
    }

    /// Route of a request. An exactly matching custom path takes precedence, then the longest matching custom prefix,
    /// then the built-in routes (after removing a configured prefix).
    pub(super) fn route(&self, method: &str, target: &str) -> Route {
        Route::readings(target).find_map(|path| self.route_at(method, &path)).unwrap_or_default()
    }

    fn route_at(&self, method: &str, path: &str) -> Option<Route> {
        let own = self.own_paths.iter().filter(|own| own.covers(path)).max_by_key(|own| (!own.below, own.path.len()));
        if let Some(own) = own {
            return Some(own.route.asked_by(method));
        }
        let rest = self.path_prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.as_str()));
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
            engine: None,
            head_bytes: 64 * 1024,
            max_open_requests: 1024,
            max_observed: 100_000,
            stall: Duration::from_secs(1),
            min_rate_tokens: 2,
            min_rate_span: Duration::from_millis(1),
            coding_window_bytes: 8 * 1024 * 1024,
            coding_ratio: 24,
            memory_bytes: None,
            path_prefixes: Vec::new(),
            own_paths: Vec::new(),
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
            own_paths: own.iter().map(|(path, route)| OwnPath::new(path, route).unwrap()).collect(),
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
        let settings = settings(&[], &["/engine1"]);
        assert_eq!(settings.route("POST", "/engine1/generate"), Route::Generate);
        assert_eq!(settings.route("POST", "/engine12/generate"), Route::Other);
        assert_eq!(settings.route("POST", "/engine1"), Route::TgiCompat);
        assert_eq!(settings.route("GET", "/engine1/load"), Route::Probe);
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
