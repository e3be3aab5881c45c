//! Which path answers what.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Either;
use http_body_util::Full;
use hyper::Method;
use hyper::Request;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Body;
use hyper::header;

use crate::admin::Snapshots;
use crate::admin::drain;
use crate::admin::live;
use crate::admin::live::Events;
use crate::admin::live::Feed;

/// Makes the page of metrics: from the scraper's `Accept` header to content type and body.
pub type Metrics = Arc<dyn Fn(Option<&str>) -> (String, Vec<u8>) + Send + Sync>;

/// Tells what is going on: from the query of the request to status and JSON.
pub type Told = Arc<dyn Fn(Option<&str>) -> (u16, serde_json::Value) + Send + Sync>;

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

    /// Stops accepting, perhaps after a while, and lets open streams go on. A second call does nothing.
    fn begin_drain(&self);

    /// True after the first call of [`Control::begin_drain`].
    fn is_draining(&self) -> bool;

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
    pub exchanges: Told,
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

/// Every path, whether it takes POST, and what it is.
const PATHS: [(&str, bool, &str); 13] = [
    ("/", false, "this page"),
    ("/live", false, "what passes at this moment, as a page that moves"),
    ("/metrics", false, "metrics for Prometheus: OpenMetrics, text or protobuf, as the scraper asks"),
    ("/startz", false, "200 once tokometer listens"),
    ("/livez", false, "200 while tokometer works; it does not depend on the inference server"),
    ("/readyz", false, "200 while new connections are welcome; 503 during a drain"),
    (
        "/engine/healthz",
        false,
        "503 while the engine owes tokens and has been silent for too long; ?pair=NAME asks for one pair",
    ),
    ("/exchanges", false, "exchanges in flight, the latest that ended and the slowest, as JSON; ?limit=20"),
    ("/live/snapshot", false, "what the live page shows, as JSON"),
    ("/live/events", false, "the same once a second, as server-sent events; for sixteen watchers at a time"),
    (
        "/drain",
        true,
        "POST begins a drain, GET tells how it stands; ?wait or ?wait=30s begins one and waits for its end",
    ),
    ("/drain/wait", false, "waits for the end of a drain that was begun elsewhere; for the server's own preStop hook"),
    ("/config", false, "the configuration in effect, secrets hidden"),
];

/// What answers are made of.
pub(super) struct Site {
    pub(super) pages: Pages,
    pub(super) feed: Arc<Feed>,
    /// How long `/drain?wait` waits when it names no time.
    pub(super) drain_wait: Duration,
}

/// Whole, or a feed that goes on.
pub(super) type Answer = Response<Either<Full<Bytes>, Events>>;

/// Answers one request. HEAD is answered as GET; hyper leaves the body out.
pub(super) async fn answer<B: Body>(request: &Request<B>, site: &Site) -> Answer {
    let pages = &site.pages;
    let path = request.uri().path();
    let Some((_, takes_post, _)) = PATHS.iter().find(|(known, _, _)| *known == path) else {
        return unknown_path(path);
    };
    let allowed = match *request.method() {
        Method::GET | Method::HEAD => true,
        Method::POST => *takes_post,
        _ => false,
    };
    if !allowed {
        return wrong_method(path, *takes_post);
    }
    let control = &*pages.control;
    match path {
        "/" => index(),
        "/metrics" => metrics(request, pages).await,
        "/startz" => health(control.started()),
        "/livez" => health(control.alive()),
        "/readyz" if control.is_draining() => health(Err("draining".to_owned())),
        "/readyz" => health(control.ready()),
        "/engine/healthz" => told((pages.engine)(request.uri().query())),
        "/exchanges" => exchanges(request, pages).await,
        "/live" => live::page(),
        "/live/snapshot" => live::snapshot(&site.feed).await,
        "/live/events" => live::events(&site.feed, request.method() == Method::HEAD).await,
        "/config" => text("application/yaml", (pages.config)()),
        "/drain/wait" => {
            let (status, body) = drain::held(site.drain_wait, control).await;
            json(status, &body)
        }
        _ => match drain::wait(request.uri().query(), site.drain_wait) {
            Ok(wait) => {
                let (status, body) = drain::answer(request.method(), wait, control).await;
                json(status, &body)
            }
            Err(message) => json(StatusCode::BAD_REQUEST, &error(&message)),
        },
    }
}

/// The page is made on another thread, so that a long one does not hold up the probes.
async fn metrics<B>(request: &Request<B>, pages: &Pages) -> Answer {
    // Several lines of one name are one list (RFC 9110 section 5.3).
    let accept: Vec<&str> =
        request.headers().get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let accept = (!accept.is_empty()).then(|| accept.join(","));
    let metrics = pages.metrics.clone();
    match tokio::task::spawn_blocking(move || metrics(accept.as_deref())).await {
        Ok((content_type, body)) => respond(StatusCode::OK, &content_type, body),
        Err(_) => {
            tracing::error!("The page of metrics could not be made: a panic.");
            json(StatusCode::INTERNAL_SERVER_ERROR, &error("the metrics could not be made; the log tells more"))
        }
    }
}

/// As [`metrics`].
async fn exchanges<B>(request: &Request<B>, pages: &Pages) -> Answer {
    let query = request.uri().query().map(str::to_owned);
    let exchanges = pages.exchanges.clone();
    match tokio::task::spawn_blocking(move || exchanges(query.as_deref())).await {
        Ok(answer) => told(answer),
        Err(_) => {
            tracing::error!("The page of exchanges could not be made: a panic.");
            json(StatusCode::INTERNAL_SERVER_ERROR, &error("the exchanges could not be told; the log tells more"))
        }
    }
}

fn told((status, body): (u16, serde_json::Value)) -> Answer {
    json(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body)
}

fn health(state: Result<(), String>) -> Answer {
    match state {
        Ok(()) => text("text/plain; charset=utf-8", "ok\n".to_owned()),
        Err(why) => respond(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", format!("{why}\n")),
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
    text("text/html; charset=utf-8", page)
}

fn unknown_path(path: &str) -> Answer {
    let known: Vec<&str> = PATHS.iter().map(|(path, _, _)| *path).collect();
    let shown: String = path.chars().take(100).collect();
    let mut body = error(&format!("there is no {shown} here: this is tokometer's admin server"));
    body["error"]["paths"] = known.into();
    json(StatusCode::NOT_FOUND, &body)
}

fn wrong_method(path: &str, takes_post: bool) -> Answer {
    let allow = if takes_post { "GET, HEAD, POST" } else { "GET, HEAD" };
    let mut answer = json(StatusCode::METHOD_NOT_ALLOWED, &error(&format!("{path} takes {allow} only")));
    answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allow));
    answer
}

pub(super) fn error(message: &str) -> serde_json::Value {
    serde_json::json!({ "error": { "message": message } })
}

pub(super) fn json(status: StatusCode, body: &serde_json::Value) -> Answer {
    respond(status, "application/json", format!("{body}\n"))
}

fn text(content_type: &str, body: String) -> Answer {
    respond(StatusCode::OK, content_type, body)
}

pub(super) fn respond(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let body = body.into();
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    if let Ok(content_type) = header::HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    // Probes and figures are of this moment.
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    answer
}
