//! Routes requests to pages.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Body;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, header};

use crate::admin::drain::Control;
use crate::admin::feed::{Feed, Snapshots};
use crate::admin::guard::{Client, Guard};
use crate::admin::response::{JSON, PageResponse, TEXT, error, json, not_rendered, respond, status_of, unavailable};
use crate::admin::slots::{Page, PageSlot, Slot};
use crate::admin::{drain, live};

/// Renders the metrics for the scraper's `Accept` header; returns content type and body.
pub type Metrics = Arc<dyn Fn(Option<&str>) -> (String, Vec<u8>) + Send + Sync>;

/// Renders a JSON value for the request's query; returns status and value.
pub type JsonPage = Arc<dyn Fn(Option<&str>) -> (u16, serde_json::Value) + Send + Sync>;

/// Renders JSON text for the request's query; returns status and text.
pub type TextPage = Arc<dyn Fn(Option<&str>) -> (u16, Vec<u8>) + Send + Sync>;

/// The sources of all pages. Closures run on threads of the admin server.
#[derive(Clone)]
pub struct Pages {
    /// `/metrics`.
    pub metrics: Metrics,
    /// `/config`: the effective configuration as YAML, secrets redacted.
    pub config: Arc<dyn Fn() -> String + Send + Sync>,
    /// `/engine/healthz`: engine health (wedged, unreachable). Must be fast: it runs on the thread of all probes.
    pub engine: JsonPage,
    /// `/requests`: requests in flight, and the latest that ended.
    pub requests: TextPage,
    /// `/live`.
    pub live: Snapshots,
    /// Health and drain.
    pub control: Arc<dyn Control>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

/// All paths, their methods and descriptions.
const PATHS: [(&str, &str, &str); 13] = [
    ("/", READ, "this page"),
    ("/live", READ, "live page of current requests"),
    ("/metrics", READ, "metrics for Prometheus: OpenMetrics, text or protobuf, as requested by the scraper"),
    ("/startz", READ, "200 once tokometer is listening"),
    ("/livez", READ, "200 while tokometer works, regardless of the inference server"),
    ("/readyz", READ, "503 during a drain, else 200; lists listeners that wait for their server, or what is captured"),
    (
        "/engine/healthz",
        READ,
        "503 while the engine has pending requests and has sent no token for too long; ?listener=NAME selects one listener",
    ),
    ("/requests", READ, "in-flight, latest finished and slowest requests, as JSON; ?limit=20, at most 200"),
    ("/live/snapshot", READ, "the data of the live page, as JSON"),
    ("/live/events", READ, "the data of the live page once a second, as server-sent events; at most 16 watchers"),
    (
        "/drain",
        CHANGE,
        "POST, only through the Unix socket (`tokometer drain`), starts a drain (?wait or ?wait=30s waits for its end); GET reports it",
    ),
    ("/drain/wait", READ, "waits for the end of a drain that was started elsewhere; for the server's own preStop hook"),
    ("/config", READ, "the effective configuration, secrets redacted"),
];

const READ: &str = "GET, HEAD";
const CHANGE: &str = "GET, HEAD, POST";

/// Probes: served to any client under any host name, without limits.
const PROBES: [&str; 4] = ["/startz", "/livez", "/readyz", "/engine/healthz"];

/// Everything needed to build responses.
pub(super) struct Site {
    pub(super) pages: Pages,
    pub(super) feed: Arc<Feed>,
    pub(super) guard: Guard,
}

/// Handles a request. HEAD is handled as GET; hyper omits the body.
pub(super) async fn response<B: Body>(
    request: &Request<B>,
    site: &Site,
    client: Client,
    slot: &Arc<Slot>,
) -> PageResponse {
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
        return wrong_method(&format!("{path} accepts only {allowed}"), allowed);
    }
    if method == Method::POST
        && let Err((status, why)) = site.guard.check_change(client)
    {
        tracing::warn!(%client, "Rejected a drain: only `tokometer drain` in this pod or on this machine may request one.");
        return json(status, &error(&why));
    }
    let (pages, query) = (&site.pages, request.uri().query());
    let control = &*pages.control;
    match path {
        "/" => index(),
        "/live" => live::page(),
        // The admin server starts last and never blocks: if it responds, tokometer works.
        "/startz" | "/livez" => alive(control),
        "/readyz" => match control.draining() {
            Some(draining) => {
                let why = drain::not_ready(&draining, control.open_streams());
                respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n"))
            }
            None => alive(control),
        },
        "/engine/healthz" => {
            let (status, body) = (pages.engine)(query);
            json(status_of(status), &body)
        }
        "/live/events" if method == Method::HEAD => live::no_events(),
        "/drain" => drained(request, client, control, slot).await,
        _ => limited(request, site, slot).await,
    }
}

/// 200, with the lines of [`Control::notes`], which do not make tokometer unhealthy.
fn alive(control: &dyn Control) -> PageResponse {
    let notes: String = control.notes().iter().map(|note| format!("{note}\n")).collect();
    respond(StatusCode::OK, TEXT, format!("ok\n{notes}"))
}

/// Serves a page that costs time or memory, and therefore has a limit on concurrent responses.
async fn limited<B>(request: &Request<B>, site: &Site, slot: &Arc<Slot>) -> PageResponse {
    let query = request.uri().query().map(str::to_owned);
    let page = match request.uri().path() {
        "/metrics" => Page::Metrics,
        "/requests" => Page::Requests,
        "/live/snapshot" => Page::Snapshot,
        "/live/events" => Page::Events,
        "/drain/wait" => Page::DrainWait,
        _ => Page::Config,
    };
    let Some(held) = slot.begin(page) else { return busy(page) };
    let pages = &site.pages;
    let made = match page {
        Page::Metrics => {
            let (metrics, accept) = (Arc::clone(&pages.metrics), list(request, header::ACCEPT));
            let gzip = list(request, header::ACCEPT_ENCODING).is_some_and(|accepted| accepts_gzip(&accepted));
            rendered(held, move || {
                let (content_type, body) = metrics(accept.as_deref());
                if gzip { compressed(&content_type, &body) } else { respond(StatusCode::OK, &content_type, body) }
            })
            .await
        }
        Page::Requests => {
            let requests = Arc::clone(&pages.requests);
            rendered(held, move || {
                let (status, body) = requests(query.as_deref());
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
    let Some((mut response, held)) = made else {
        if slot.is_evicted() {
            return busy(page);
        }
        tracing::error!(page = request.uri().path(), "Rendering a page panicked.");
        return not_rendered();
    };
    response.body_mut().hold(held);
    response
}

/// Renders on a separate thread, so that a slow page does not delay probes. The slot is held until rendering ends, even
/// if the client disconnects; otherwise clients could start any number of renders. If the slot was evicted before a
/// thread was free, returns `None` without rendering; otherwise clients that evict each other could do the same.
async fn rendered(
    held: PageSlot,
    make: impl FnOnce() -> PageResponse + Send + 'static,
) -> Option<(PageResponse, PageSlot)> {
    let rendering = tokio::task::spawn_blocking(move || (!held.is_evicted()).then(|| (make(), held)));
    rendering.await.ok().flatten()
}

/// Like [`rendered`], for a response made by a future. `None` only if the future panics.
async fn made(
    held: PageSlot,
    make: impl Future<Output = PageResponse> + Send + 'static,
) -> Option<(PageResponse, PageSlot)> {
    tokio::spawn(async move { (make.await, held) }).await.ok()
}

async fn drained<B>(request: &Request<B>, client: Client, control: &dyn Control, slot: &Arc<Slot>) -> PageResponse {
    let wait = match drain::wait(request.uri().query(), control.grace_period()) {
        Ok(wait) => wait,
        Err(message) => return json(StatusCode::BAD_REQUEST, &error(&message)),
    };
    let (status, body) = match *request.method() {
        Method::POST => {
            control.begin_drain(&format!("{client} through the admin server"));
            match wait.map(|_| slot.begin(Page::Drain)) {
                Some(None) => return busy(Page::Drain),
                _held => drain::state(wait, control).await,
            }
        }
        _ if wait.is_some() => {
            let why = "GET does not start a drain: send POST /drain?wait to start one, or GET /drain/wait to wait for a drain that was started elsewhere";
            return wrong_method(why, "POST");
        }
        _ => drain::state(None, control).await,
    };
    json(status, &body)
}

/// The value of a header. Several header fields with the same name form one list (RFC 9110 section 5.3).
fn list<B>(request: &Request<B>, name: HeaderName) -> Option<String> {
    let lines: Vec<&str> = request.headers().get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
    (!lines.is_empty()).then(|| lines.join(","))
}

/// True if an `Accept-Encoding` list allows gzip (RFC 9110 section 12.5.3): by name, or else by `*`, with a weight above
/// 0.
fn accepts_gzip(accepted: &str) -> bool {
    let weight = |wanted: &[&str]| {
        accepted.split(',').find_map(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(|part| part.split_once('=').filter(|(name, _)| name.trim() == "q"));
            let weight = weight.map_or(Ok(1.0), |(_, weight)| weight.trim().parse::<f32>());
            wanted
                .iter()
                .any(|wanted| name.eq_ignore_ascii_case(wanted))
                .then(|| weight.is_ok_and(|weight| weight > 0.0))
        })
    };
    weight(&["gzip", "x-gzip"]).or_else(|| weight(&["*"])).unwrap_or(false)
}

/// The page, compressed with gzip at the fastest level: metrics repeat so much that the best one saves little more.
fn compressed(content_type: &str, page: &[u8]) -> PageResponse {
    let mut gzip = GzEncoder::new(Vec::with_capacity(page.len() / 16), Compression::fast());
    // Writing to memory does not fail.
    let body = gzip.write_all(page).and_then(|()| gzip.finish()).unwrap_or_default();
    let mut response = respond(StatusCode::OK, content_type, body);
    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

fn index() -> PageResponse {
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

fn unknown_path(path: &str) -> PageResponse {
    let known: Vec<&str> = PATHS.iter().map(|(path, _, _)| *path).collect();
    let shown: String = path.chars().take(100).collect();
    let mut body = error(&format!("{shown} not found: this is tokometer's admin server"));
    body["error"]["paths"] = known.into();
    json(StatusCode::NOT_FOUND, &body)
}

fn wrong_method(why: &str, allow: &'static str) -> PageResponse {
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, &error(why));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

fn busy(page: Page) -> PageResponse {
    let (most, most_of_client) = page.limits();
    let instead = if page == Page::Events { ", or use /live/snapshot" } else { "" };
    unavailable(&format!(
        "too many responses of this page are in progress (maximum {most}, {most_of_client} per client); try again later{instead}"
    ))
}
