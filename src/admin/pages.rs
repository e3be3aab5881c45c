//! Which path answers what.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::Method;
use hyper::Request;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Body;
use hyper::header;
use hyper::header::HeaderValue;

use crate::admin::Snapshots;
use crate::admin::content::Content;
use crate::admin::drain;
use crate::admin::guard::Ends;
use crate::admin::guard::Guard;
use crate::admin::live;
use crate::admin::live::Feed;
use crate::admin::places::Held;
use crate::admin::places::Page;
use crate::admin::places::Place;

/// Makes the page of metrics: from the scraper's `Accept` header to content type and body.
pub type Metrics = Arc<dyn Fn(Option<&str>) -> (String, Vec<u8>) + Send + Sync>;

/// Tells what is going on: from the query of the request to status and JSON.
pub type Told = Arc<dyn Fn(Option<&str>) -> (u16, serde_json::Value) + Send + Sync>;

/// Renders a page of JSON: from the query of the request to status and text.
pub type Rendered = Arc<dyn Fn(Option<&str>) -> (u16, Vec<u8>) + Send + Sync>;

/// A drain that was begun.
#[derive(Clone, Debug)]
pub struct Draining {
    /// When.
    pub began: Instant,
    /// By whom: a signal, or the address of a client.
    pub requested_by: String,
}

/// What the admin server knows and does about the rest of the program. About us only: nothing here may depend on the
/// inference server, or an outage there would restart the pod. What is said of the engine has a path of its own.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Ok once the listeners are up (`/startz`); else what is still missing.
    fn started(&self) -> Result<(), String>;

    /// Ok while the program can work at all (`/livez`); else why a restart would help.
    fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    /// Ok while new connections are welcome (`/readyz`); else why not.
    fn ready(&self) -> Result<(), String>;

    /// Stops accepting, perhaps after a while, lets open streams go on, and ends the process after the last one. A second call
    /// does nothing.
    fn begin_drain(&self, requested_by: &str);

    /// The drain, after the first call of [`Control::begin_drain`] or a signal.
    fn draining(&self) -> Option<Draining>;

    /// How long `/drain` waits if the request names no time.
    fn grace_period(&self) -> Duration;

    /// Exchanges that are under way.
    fn open_streams(&self) -> usize;

    /// Returns when no exchange is under way and no further one can begin.
    async fn wait_until_idle(&self);
}

/// Everything that the pages show. Closures run on threads of the admin server.
#[derive(Clone)]
pub struct Pages {
    /// `/metrics`.
    pub metrics: Metrics,
    /// `/config`: the effective configuration as YAML, secrets hidden.
    pub config: Arc<dyn Fn() -> String + Send + Sync>,
    /// `/engine/healthz`: whether the engine works, judged by its tokens. Must be quick: it is asked on the thread of all
    /// probes.
    pub engine: Told,
    /// `/exchanges`: those in flight, and the latest that ended.
    pub exchanges: Rendered,
    /// What `/live` shows.
    pub live: Snapshots,
    /// Health and drain.
    pub control: Arc<dyn Control>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

/// Every path, the methods that it takes, and what it is.
const PATHS: [(&str, &str, &str); 13] = [
    ("/", READ, "this page"),
    ("/live", READ, "what passes at this moment, as a page that moves"),
    ("/metrics", READ, "metrics for Prometheus: OpenMetrics, text or protobuf, as the scraper asks"),
    ("/startz", READ, "200 once tokometer listens"),
    ("/livez", READ, "200 while tokometer works; it does not depend on the inference server"),
    ("/readyz", READ, "200 while new connections are welcome; 503 during a drain"),
    (
        "/engine/healthz",
        READ,
        "503 while the engine owes tokens and has been silent for too long; ?pair=NAME asks for one pair",
    ),
    ("/exchanges", READ, "exchanges in flight, the latest that ended and the slowest, as JSON; ?limit=20, at most 200"),
    ("/live/snapshot", READ, "what the live page shows, as JSON"),
    ("/live/events", READ, "the same once a second, as server-sent events; for sixteen watchers at a time"),
    (
        "/drain",
        CHANGE,
        "POST begins a drain (?wait or ?wait=30s waits for its end), from this pod only; GET reports it",
    ),
    ("/drain/wait", READ, "waits for the end of a drain that was begun elsewhere; for the server's own preStop hook"),
    ("/config", READ, "the configuration in effect, secrets hidden"),
];

const READ: &str = "GET, HEAD";
const CHANGE: &str = "GET, HEAD, POST";

/// Answered to any client under any name, and never limited.
const PROBES: [&str; 4] = ["/startz", "/livez", "/readyz", "/engine/healthz"];

/// What responses are made of.
pub(super) struct Site {
    pub(super) pages: Pages,
    pub(super) feed: Arc<Feed>,
    pub(super) guard: Guard,
}

pub(super) type Answer = Response<Content>;

/// Answers one request. HEAD is answered as GET; hyper leaves the body out.
pub(super) async fn answer<B: Body>(request: &Request<B>, site: &Site, ends: Ends, place: &Arc<Place>) -> Answer {
    let (method, path) = (request.method(), request.uri().path());
    if !PROBES.contains(&path)
        && let Err((status, why)) = site.guard.check(request)
    {
        return json(status, &error(&why));
    }
    let Some((_, allowed, _)) = PATHS.iter().find(|(known, _, _)| *known == path) else {
        return unknown_path(path);
    };
    if !allowed.split(", ").any(|allowed| allowed == method.as_str()) {
        return wrong_method(&format!("{path} takes {allowed} only"), allowed);
    }
    if method == Method::POST
        && let Err((status, why)) = site.guard.check_change(ends)
    {
        tracing::warn!(client = %ends.client, "Refused a drain: only clients in this pod or on this machine may request one.");
        return json(status, &error(&why));
    }
    let (pages, query) = (&site.pages, request.uri().query());
    let control = &*pages.control;
    match path {
        "/" => index(),
        "/live" => live::page(),
        "/startz" => health(control.started()),
        "/livez" => health(control.alive()),
        "/readyz" => health(match control.draining() {
            Some(draining) => Err(drain::not_ready(&draining, control.open_streams())),
            None => control.ready(),
        }),
        "/engine/healthz" => {
            let (status, body) = (pages.engine)(query);
            json(status_of(status), &body)
        }
        "/live/events" if method == Method::HEAD => live::no_events(),
        "/drain" => drained(request, ends, control, place).await,
        _ => limited(request, site, place).await,
    }
}

/// A page that costs time or memory.
async fn limited<B>(request: &Request<B>, site: &Site, place: &Arc<Place>) -> Answer {
    let query = request.uri().query().map(str::to_owned);
    let page = match request.uri().path() {
        "/metrics" => Page::Metrics,
        "/exchanges" => Page::Exchanges,
        "/live/snapshot" => Page::Snapshot,
        "/live/events" => Page::Events,
        "/drain/wait" => Page::DrainWait,
        _ => Page::Config,
    };
    let Some(held) = place.begin(page) else { return busy(page) };
    let pages = &site.pages;
    let made = match page {
        Page::Metrics => {
            let (metrics, accept) = (Arc::clone(&pages.metrics), accept(request));
            rendered(held, move || {
                let (content_type, body) = metrics(accept.as_deref());
                respond(StatusCode::OK, &content_type, body)
            })
            .await
        }
        Page::Exchanges => {
            let exchanges = Arc::clone(&pages.exchanges);
            rendered(held, move || {
                let (status, body) = exchanges(query.as_deref());
                respond(status_of(status), JSON, body)
            })
            .await
        }
        Page::Config | Page::Drain => {
            let config = Arc::clone(&pages.config);
            rendered(held, move || respond(StatusCode::OK, "application/yaml", config())).await
        }
        Page::Snapshot => made(held, live::snapshot(Arc::clone(&site.feed))).await,
        Page::Events => made(held, live::events(Arc::clone(&site.feed))).await,
        Page::DrainWait => {
            let (status, body) = drain::wait_for_other(&*pages.control).await;
            Some((json(status, &body), held))
        }
    };
    let Some((mut answer, held)) = made else {
        tracing::error!(page = request.uri().path(), "A page could not be rendered: a panic.");
        return not_rendered();
    };
    answer.body_mut().hold(held);
    answer
}

/// On a thread of its own, so that a long page does not delay probes. The page keeps its place until it is made, also when the client
/// has left: else clients that do not wait could begin any number.
async fn rendered(held: Held, make: impl FnOnce() -> Answer + Send + 'static) -> Option<(Answer, Held)> {
    tokio::task::spawn_blocking(move || (make(), held)).await.ok()
}

/// As [`rendered`].
async fn made(held: Held, make: impl Future<Output = Answer> + Send + 'static) -> Option<(Answer, Held)> {
    tokio::spawn(async move { (make.await, held) }).await.ok()
}

async fn drained<B>(request: &Request<B>, ends: Ends, control: &dyn Control, place: &Arc<Place>) -> Answer {
    let wait = match drain::wait(request.uri().query(), control.grace_period()) {
        Ok(wait) => wait,
        Err(message) => return json(StatusCode::BAD_REQUEST, &error(&message)),
    };
    let (status, body) = match *request.method() {
        Method::POST => {
            control.begin_drain(&format!("{} through the admin server", ends.client));
            match wait.map(|_| place.begin(Page::Drain)) {
                Some(None) => return busy(Page::Drain),
                _held => drain::state(wait, control).await,
            }
        }
        _ if wait.is_some() => {
            let why = "GET begins no drain: send POST /drain?wait, or GET /drain/wait to wait for a drain that was begun elsewhere";
            return wrong_method(why, "POST");
        }
        _ => drain::state(None, control).await,
    };
    json(status, &body)
}

/// Several lines of one name are one list (RFC 9110 section 5.3).
fn accept<B>(request: &Request<B>) -> Option<String> {
    let lines: Vec<&str> =
        request.headers().get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

fn health(state: Result<(), String>) -> Answer {
    match state {
        Ok(()) => respond(StatusCode::OK, TEXT, "ok\n"),
        Err(why) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    }
}

fn index() -> Answer {
    let items: Vec<String> = PATHS
        .iter()
        .skip(1)
        .map(|(path, _, meaning)| format!("<li><a href=\"{path}\">{path}</a>: {meaning}</li>\n"))
        .collect();
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>tokometer</title>\n<h1>tokometer {}</h1>\n\
         <ul>\n{}</ul>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        items.concat()
    );
    respond(StatusCode::OK, "text/html; charset=utf-8", page)
}

fn unknown_path(path: &str) -> Answer {
    let known: Vec<&str> = PATHS.iter().map(|(path, _, _)| *path).collect();
    let shown: String = path.chars().take(100).collect();
    let mut body = error(&format!("there is no {shown} here: this is tokometer's admin server"));
    body["error"]["paths"] = known.into();
    json(StatusCode::NOT_FOUND, &body)
}

fn wrong_method(why: &str, allow: &'static str) -> Answer {
    let mut answer = json(StatusCode::METHOD_NOT_ALLOWED, &error(why));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    answer
}

fn busy(page: Page) -> Answer {
    let (most, most_of_client) = page.limits();
    let instead = if page == Page::Events { ", or use /live/snapshot" } else { "" };
    unavailable(&format!(
        "too many responses of this page are in progress (at most {most}, {most_of_client} to one client); try again later{instead}"
    ))
}

/// 503, and the connection is closed: another client may have its place.
pub(super) fn unavailable(why: &str) -> Answer {
    let mut answer = json(StatusCode::SERVICE_UNAVAILABLE, &error(why));
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

pub(super) fn not_rendered() -> Answer {
    json(StatusCode::INTERNAL_SERVER_ERROR, &error("the page could not be rendered; see the log"))
}

fn error(message: &str) -> serde_json::Value {
    serde_json::json!({ "error": { "message": message } })
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn json(status: StatusCode, body: &serde_json::Value) -> Answer {
    respond(status, JSON, format!("{body}\n"))
}

pub(super) fn respond(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Content::page(body));
    *answer.status_mut() = status;
    finish(&mut answer, content_type);
    answer
}

/// The headers of every response.
pub(super) fn finish(answer: &mut Answer, content_type: &str) {
    let headers = answer.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Probes and metrics are of this moment.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}
