//! Which path answers what.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Method;
use hyper::Request;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Body;
use hyper::header;

use crate::admin::drain;

/// Makes the page of metrics: from the scraper's `Accept` header to content type and body.
pub type Metrics = Arc<dyn Fn(Option<&str>) -> (String, Vec<u8>) + Send + Sync>;

/// What the admin server knows and does about the rest of the program. About us only: nothing here may depend on the
/// inference server, or an outage there would restart the pod.
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

    /// Stops accepting, and lets open streams go on. A second call does nothing.
    fn begin_drain(&self);

    /// True after the first call of [`Control::begin_drain`].
    fn is_draining(&self) -> bool;

    /// Exchanges that are under way.
    fn open_streams(&self) -> usize;

    /// Returns when no exchange is under way.
    async fn wait_until_idle(&self);
}

/// Everything that the pages show. Closures run on threads of the admin server.
#[derive(Clone)]
pub struct Pages {
    /// `/metrics`.
    pub metrics: Metrics,
    /// `/config`: the effective configuration as YAML, secrets hidden.
    pub config: Arc<dyn Fn() -> String + Send + Sync>,
    /// Health and drain.
    pub control: Arc<dyn Control>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

/// Every path, whether it takes POST, and what it is.
const PATHS: [(&str, bool, &str); 7] = [
    ("/", false, "this page"),
    ("/metrics", false, "metrics for Prometheus: OpenMetrics, text or protobuf, as the scraper asks"),
    ("/startz", false, "200 once tokometer listens"),
    ("/livez", false, "200 while tokometer works; it does not depend on the inference server"),
    ("/readyz", false, "200 while new connections are welcome; 503 during a drain"),
    (
        "/drain",
        true,
        "POST begins a drain, GET tells how it stands; ?wait or ?wait=30s begins one and waits for its end",
    ),
    ("/config", false, "the configuration in effect, secrets hidden"),
];

type Answer = Response<Full<Bytes>>;

/// Answers one request. HEAD is answered as GET; hyper leaves the body out.
pub(super) async fn answer<B: Body>(request: &Request<B>, pages: &Pages, drain_wait: Duration) -> Answer {
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
        "/readyz" if control.is_draining() => health(Err("draining: no new connections are accepted".to_owned())),
        "/readyz" => health(control.ready()),
        "/config" => text("application/yaml", (pages.config)()),
        _ => match drain::wait(request.uri().query(), drain_wait) {
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
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let metrics = pages.metrics.clone();
    match tokio::task::spawn_blocking(move || metrics(accept.as_deref())).await {
        Ok((content_type, body)) => respond(StatusCode::OK, &content_type, body),
        Err(_) => {
            tracing::error!("The page of metrics could not be made: a panic.");
            json(StatusCode::INTERNAL_SERVER_ERROR, &error("the metrics could not be made; the log tells more"))
        }
    }
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

fn error(message: &str) -> serde_json::Value {
    serde_json::json!({ "error": { "message": message } })
}

fn json(status: StatusCode, body: &serde_json::Value) -> Answer {
    respond(status, "application/json", format!("{body}\n"))
}

fn text(content_type: &str, body: String) -> Answer {
    respond(StatusCode::OK, content_type, body)
}

fn respond(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Answer {
    let body = body.into();
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    if let Ok(content_type) = header::HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    // Probes and figures are of this moment.
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    answer
}
