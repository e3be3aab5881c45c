//! Maps a request to its API by method and path.

mod path;
mod table;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::dialect::{Place, grpc};
use crate::request::Limits;
use crate::{Engine, Framing};
use table::OTHER;
pub use table::Route;

/// The work that a route's requests cause in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Generates tokens.
    Generates,
    /// Processes input tokens and returns values that are not tokens.
    TakesInput,
    /// Neither, or unknown.
    Neither,
}

/// How the responses of a route are decoded.
#[derive(Clone, Copy, Debug)]
enum Dialect {
    /// Not decoded.
    Unread,
    /// Events and whole bodies both start at this place.
    Same(Place),
    /// Events with a type start at one place, whole bodies at another.
    Typed { event: Place, body: Place },
    /// WebSocket messages, which start at this place; no other framing is decoded.
    Messages(Place),
    /// Messages of this gRPC method.
    Grpc(&'static grpc::Method),
}

/// What ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A finish reason for every choice.
    Finish,
    /// Only a named last event, or `[DONE]`: transcriptions have one finish reason per segment of the recording, and
    /// the other APIs name their last event.
    Named,
    /// A finish reason for every choice, or just the end of the body.
    Body,
}

/// Which responses contain each piece of the generated text exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// None: transcriptions, and gRPC and realtime messages.
    Never,
    /// Whole bodies only, because SGLang's streams repeat the text so far.
    Bodies,
    /// Whole bodies and streams.
    Every,
}

/// A row of the route table.
#[derive(Debug)]
struct Row {
    operation: &'static str,
    work: Work,
    /// Paths that match after any prefix (`/engine1/v1/chat/completions`). `*` matches exactly one segment.
    paths: &'static [&'static str],
    /// Paths that match only without a prefix, because the end of an unrelated path may be equal: `/images/generate` is
    /// not TGI's `/generate`.
    whole: &'static [&'static str],
    /// The methods of requests that cause the work. Other methods generate nothing: GET `/v1/responses/ID?stream=true`
    /// replays a response that was already counted.
    methods: &'static [&'static str],
    dialect: Dialect,
    end: End,
    text: Text,
    /// The response may be a plain-text body.
    plain_text: bool,
    /// The response is streamed unless the request disables it.
    streams_by_default: bool,
    /// Several APIs share the path; the request body determines which.
    shared: bool,
    /// The keys with which requests limit the output tokens, in every engine.
    limits: Limits,
    /// More such keys, in the engines that list them in their own rows.
    more_limits: Limits,
}

impl Row {
    const OTHER: Row = Row {
        operation: OTHER,
        work: Work::Neither,
        paths: &[],
        whole: &[],
        methods: &["POST"],
        dialect: Dialect::Unread,
        end: End::Finish,
        text: Text::Never,
        plain_text: false,
        streams_by_default: false,
        shared: false,
        limits: Limits::NONE,
        more_limits: Limits::NONE,
    };
    /// An API that generates text.
    const GENERATES: Row = Row { operation: "text_completion", work: Work::Generates, text: Text::Every, ..Row::OTHER };
    /// A gRPC method that generates text.
    const GRPC: Row = Row { text: Text::Never, limits: Limits::MAX_TOKENS, ..Row::GENERATES };
    /// An API that returns values computed from its input.
    const TAKES_INPUT: Row = Row { work: Work::TakesInput, dialect: Dialect::Same(Place::InputOnly), ..Row::OTHER };

    fn matches(&self, path: &str) -> bool {
        self.whole.contains(&path) || self.paths.iter().any(|pattern| ends_with(path, pattern))
    }
}

#[allow(clippy::derivable_impls, reason = "`closed_enum!` derives no default")]
impl Default for Route {
    fn default() -> Route {
        Route::Other
    }
}

impl Route {
    /// The route of a request with this method and target.
    pub fn of_request(method: &str, target: &str) -> Route {
        Route::readings(target).find_map(|path| Route::at(method, &path)).unwrap_or_default()
    }

    /// The route of a request with this method on this path, a reading of its target. `None` for an unknown path, and
    /// for a method that the API does not use.
    pub fn at(method: &str, path: &str) -> Option<Route> {
        let route = match (method, Route::of_path(path)) {
            ("GET" | "HEAD" | "OPTIONS", route) if route == Route::Probe || path == "/" => Route::Probe,
            (_, Route::Probe) => Route::Other,
            (_, route) => route.asked_by(method),
        };
        (route != Route::Other).then_some(route)
    }

    /// This route if its API uses the method, else [`Route::Other`]. APIs use POST; SGLang's own routes also use PUT;
    /// WebSockets use GET.
    pub fn asked_by(self, method: &str) -> Route {
        if self == Route::Probe || self.row().methods.contains(&method) { self } else { Route::Other }
    }

    /// The route of this request target (origin form or absolute form, including the query). A prefix before the API
    /// path is ignored (`/engine1/v1/chat/completions`), unless the API path is too short to be unambiguous.
    pub fn of_target(target: &str) -> Route {
        let mut routes = Route::readings(target).map(|path| Route::of_path(&path));
        routes.find(|route| *route != Route::Other).unwrap_or_default()
    }

    /// The paths that servers may read from this target, in the order in which they are compared with the known paths.
    /// No path has a trailing slash. Only a target with an escape, a double slash or a dot segment has several, and is
    /// copied for this.
    pub fn readings(target: &str) -> impl Iterator<Item = Cow<'_, str>> {
        let raw = path::of_target(target);
        let normal = path::normal(raw).map(Cow::Owned);
        normal.into_iter().chain([Cow::Borrowed(path::without_slash(raw))])
    }

    fn of_path(path: &str) -> Route {
        Route::ALL.into_iter().find(|route| route.row().matches(path)).unwrap_or_default()
    }

    /// The route with this name in the configuration.
    pub fn of_name(name: &str) -> Option<Route> {
        Route::ALL.into_iter().find(|route| route.as_str() == name)
    }

    /// All routes, in enum order.
    pub fn all() -> impl ExactSizeIterator<Item = Route> + Clone {
        Route::ALL.into_iter()
    }

    /// The configuration names of all routes, in table order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Route::ALL.into_iter().map(Route::as_str)
    }

    /// The configuration name of this route.
    pub fn name(self) -> &'static str {
        self.as_str()
    }

    /// The value of `gen_ai.operation.name` for this route; `other` if its responses are not decoded.
    pub fn operation(self) -> &'static str {
        self.row().operation
    }

    /// True when requests on this route generate tokens and their responses are decoded.
    pub fn generates(self) -> bool {
        self.is_read() && self.work() == Work::Generates
    }

    /// The work of requests on this route, even if their responses are not decoded.
    pub fn work(self) -> Work {
        self.row().work
    }

    /// True for gRPC methods.
    pub fn is_rpc(self) -> bool {
        self.grpc().is_some()
    }

    /// True for gRPC methods whose response is a message stream, even if it has only one message.
    pub fn streams_rpc(self) -> bool {
        self.grpc().is_some_and(|method| method.streams)
    }

    /// True if a stream ends once every choice has a finish reason.
    pub fn ends_with_finish(self) -> bool {
        self.row().end != End::Named
    }

    /// True if the end of the body ends a stream on this route, without another end marker.
    pub fn ends_with_body(self) -> bool {
        self.row().end == End::Body
    }

    /// True if the dialect of this route's responses is known, so that they are decoded. Other routes are counted as
    /// [`Route::Other`].
    pub fn is_read(self) -> bool {
        !matches!(self.row().dialect, Dialect::Unread)
    }

    /// True if a response with this framing contains each piece of the generated text exactly once.
    pub fn writes_text(self, framing: Framing) -> bool {
        match framing {
            Framing::Sse | Framing::Ndjson => self.row().text == Text::Every,
            Framing::Json => self.row().text != Text::Never,
            Framing::Messages | Framing::Grpc | Framing::Text => false,
        }
    }

    /// True if the response is streamed unless the request disables it: Ollama's own routes, which SGLang also has.
    pub fn streams_by_default(self) -> bool {
        self.row().streams_by_default
    }

    /// True if the response may be a plain-text body (transcriptions).
    pub(crate) fn has_text_response(self) -> bool {
        self.row().plain_text
    }

    /// True if several APIs share the path, and the request body determines the API.
    pub(crate) fn is_shared(self) -> bool {
        self.row().shared
    }

    /// The place of a whole event on this route, or of a response that is a single JSON text. [`Place::Unread`] if
    /// responses are not decoded, or not as JSON.
    pub(crate) fn root(self, framing: Framing) -> Place {
        match (self.row().dialect, framing) {
            // Plain text has no known places.
            (_, Framing::Text) => Place::Unread,
            (Dialect::Same(place), _) => place,
            (Dialect::Typed { body, .. }, Framing::Json) => body,
            (Dialect::Typed { event, .. }, _) => event,
            (Dialect::Messages(place), Framing::Messages) => place,
            (Dialect::Unread | Dialect::Messages(_) | Dialect::Grpc(_), _) => Place::Unread,
        }
    }

    /// The keys for limits on output tokens that an engine certainly reads on this route, and those that it may also
    /// read, because the engine is unknown.
    pub(crate) fn limits(self, engine: Option<Engine>) -> (Limits, Limits) {
        let Row { limits, more_limits, .. } = self.row();
        match engine {
            Some(engine) => (limits.and(more_limits.both(engine.info().limits)), Limits::NONE),
            None => (*limits, *more_limits),
        }
    }

    /// The gRPC method of this route.
    pub(crate) fn grpc(self) -> Option<&'static grpc::Method> {
        match self.row().dialect {
            Dialect::Grpc(method) => Some(method),
            _ => None,
        }
    }
}

/// True if the path ends with these segments; `*` matches any non-empty segment.
fn ends_with(path: &str, pattern: &str) -> bool {
    // Fast path, because every request is compared with all patterns.
    if !pattern.contains('*') {
        return path.ends_with(pattern);
    }
    let mut segments = path.rsplit('/');
    pattern.rsplit('/').filter(|wanted| !wanted.is_empty()).all(|wanted| match segments.next() {
        Some(segment) => segment == wanted || (wanted == "*" && !segment.is_empty()),
        None => false,
    }) && segments.next().is_some()
}
