//! What a person may set about observing.

use std::time::Duration;

use crate::observer::cgroup;
use tokometer_decode::Route;
use tokometer_decode::TextLimits;

/// How exchanges are read and measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// False relays without looking.
    pub enabled: bool,
    /// The engine behind us, when it is not to be recognised from what it sends.
    pub engine: Option<&'static str>,
    /// Most bytes of a request or response head; a longer one detaches the observer.
    pub head_bytes: usize,
    /// Maximum open requests of one connection that are observed; further ones are recorded as unobserved.
    pub max_open_requests: usize,
    /// Most connections that are observed at a time; further ones are relayed unobserved and counted as shed.
    pub max_observed: usize,
    /// A gap between two tokens longer than this is a stall.
    pub stall: Duration,
    /// Fewest output tokens for which a decode rate is told.
    pub min_rate_tokens: u64,
    /// Shortest time between first and last token for which a decode rate is told.
    pub min_rate_span: Duration,
    /// Most bytes of the window of a compressed body; one that asks for more is not read.
    pub coding_window_bytes: usize,
    /// Decoded bytes that each byte of a connection earns, over all of its compressed bodies.
    pub coding_ratio: u64,
    /// Memory budget for all that clients can make observers hold; `None`: [`cgroup::automatic`].
    pub memory_bytes: Option<usize>,
    /// Path prefixes to strip before a path is recognised (`/engine1`).
    pub path_prefixes: Vec<String>,
    /// Paths of one's own, asked before the known ones.
    pub own_paths: Vec<OwnPath>,
    /// True records probes as exchanges of the operation `other`.
    pub probes: bool,
    /// Which headers of a request tell of it.
    pub targets: TargetHeaders,
    /// How much of answers' text is kept for a tokenizer; `None` keeps none.
    pub text: Option<Text>,
}

/// Headers of a request that say how fast its answer should be, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHeaders {
    /// `x-slo-ttft-ms` and `x-slo-tpot-ms` are read.
    pub speed: bool,
    /// Headers that may name the tenant, in lower case: the first that is there does.
    pub tenant: Vec<Box<str>>,
    /// Claim of the bearer token that names the tenant where no header does; a way into objects has dots between its steps.
    pub claim: Option<Box<str>>,
}

impl Default for TargetHeaders {
    fn default() -> TargetHeaders {
        TargetHeaders { speed: true, tenant: Vec::new(), claim: None }
    }
}

/// How much of answers' text is kept while they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// Most bytes of one answer; of a longer one nothing is kept.
    pub answer_bytes: usize,
    /// Most bytes of all together.
    pub memory_bytes: usize,
}

impl Text {
    pub(super) fn limits(self) -> TextLimits {
        TextLimits { answer_bytes: self.answer_bytes, all_bytes: self.memory_bytes }
    }
}

/// A path of one's own, and the route that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPath {
    path: Box<str>,
    /// The path is a prefix, and belongs to all that lies below it.
    below: bool,
    route: Route,
}

impl OwnPath {
    /// A path (`/llm`), or all that lies below one (`/llm/*`), and the name of its route.
    ///
    /// # Errors
    ///
    /// [`OwnPathError`] tells which of the two cannot be used.
    pub fn new(path: &str, route: &str) -> Result<OwnPath, OwnPathError> {
        let (kept, below) = path.strip_suffix("/*").map_or((path, false), |kept| (kept, true));
        if !path.starts_with('/') || kept.contains(['*', '?', '#', ' ']) {
            return Err(OwnPathError::Path);
        }
        let route = Route::of_name(route).ok_or(OwnPathError::Route)?;
        let kept = if kept.len() > 1 || below { kept.trim_end_matches('/') } else { kept };
        Ok(OwnPath { path: kept.into(), below, route })
    }

    /// The names that a route may have.
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

/// Why a path of one's own cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnPathError {
    /// The path is none.
    Path,
    /// No route has this name.
    Route,
}

impl Settings {
    /// The memory budget in bytes.
    pub(super) fn memory_limit(&self) -> usize {
        self.memory_bytes.unwrap_or_else(cgroup::automatic)
    }

    /// The route of a request: that of the longest of one's own paths that covers it, else the known one, a configured
    /// prefix taken off.
    pub(super) fn route(&self, method: &str, target: &str) -> Route {
        let path = Route::path_of(target);
        let own = self.own_paths.iter().filter(|own| own.covers(path)).max_by_key(|own| (!own.below, own.path.len()));
        if let Some(own) = own {
            return own.route.asked_by(method);
        }
        let rest = self.path_prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.as_str()));
        match rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            Some("") => Route::of_request(method, "/"),
            Some(rest) => Route::of_request(method, rest),
            None => Route::of_request(method, path),
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
    fn a_path_of_ones_own_wins_over_the_known_ones_and_the_longest_over_the_others() {
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
        assert_eq!(settings.route("GET", "/llm"), Route::Other, "nothing is generated by GET");
        assert_eq!(settings.route("GET", "/v1/chat/completions"), Route::Probe);
    }

    #[test]
    fn all_paths_may_be_given_one_route() {
        let all = settings(&[("/*", "other"), ("/a", "chat")], &[]);
        assert_eq!(all.route("POST", "/v1/completions"), Route::Other);
        assert_eq!(all.route("POST", "/a"), Route::Chat);
        assert_eq!(settings(&[("/", "chat")], &[]).route("POST", "/"), Route::Chat);
    }

    #[test]
    fn a_prefix_is_taken_off_where_a_segment_ends() {
        let settings = settings(&[], &["/engine1"]);
        assert_eq!(settings.route("POST", "/engine1/generate"), Route::Generate);
        assert_eq!(settings.route("POST", "/engine12/generate"), Route::Other);
        assert_eq!(settings.route("POST", "/engine1"), Route::TgiCompat);
        assert_eq!(settings.route("GET", "/engine1/load"), Route::Probe);
    }

    #[test]
    fn what_is_no_path_and_no_route_is_an_error() {
        assert_eq!(OwnPath::new("llm", "chat"), Err(OwnPathError::Path));
        assert_eq!(OwnPath::new("/a/*/b", "chat"), Err(OwnPathError::Path));
        assert_eq!(OwnPath::new("/a?b=c", "chat"), Err(OwnPathError::Path));
        assert_eq!(OwnPath::new("/llm", "chatt"), Err(OwnPathError::Route));
    }
}
