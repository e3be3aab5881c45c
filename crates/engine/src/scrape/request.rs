//! Finds and reads an engine's metrics page, without consuming data that another reader needs.
//!
//! trtllm-serve responds to GET /metrics with the iteration statistics since the last such request, so other readers
//! would miss the statistics read here. (Its Prometheus page is /prometheus/metrics.) Therefore, an OPTIONS request is
//! sent first. A FastAPI route (as in trtllm-serve) responds with 405; a mounted Prometheus app (vLLM, SGLang,
//! LMDeploy) responds with 200, a redirect or its page. Servers other than uvicorn have no such route.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokometer_decode::Engine;

use crate::scrape::exposition::Parser;
use crate::scrape::state::Page;
use crate::scrape::{Failure, Target};

/// The Prometheus and OpenMetrics text formats. Protobuf and quoted (UTF-8) names are not requested, because the parser
/// does not support them.
const ACCEPT: &str = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,text/*;q=0.1";

/// Maximum size of the response headers in bytes.
const HEAD_BYTES: usize = 64 * 1024;

/// Maximum size in bytes of a response that contains a version.
const VERSION_BYTES: usize = 64 * 1024;

/// Maximum length of a version.
const MAX_VERSION: usize = 64;

/// The usual path.
const USUAL: &str = "/metrics";

/// A byte stream of a connection.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

/// Opens connections to one engine; another module provides the sockets and TLS.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// Opens a new connection.
    ///
    /// # Errors
    /// When the engine does not accept the connection.
    async fn dial(&self) -> io::Result<Box<dyn Wire>>;

    /// The value of the `Host` header.
    fn host(&self) -> String;

    /// The engine's name in log messages.
    fn shown(&self) -> String {
        self.host()
    }
}

/// A response whose body has not been read. Dropping it closes the connection.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// When the headers were received.
    pub(crate) at: Instant,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Response {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Sends a request on a new connection. Engines close idle connections after some seconds (uvicorn: five), about the
/// time between two scrapes, so reuse would race with the close.
pub(crate) async fn send(dial: &dyn Dial, method: Method, path: &str) -> Result<Response, Failure> {
    let stream = dial.dial().await.map_err(|_| Failure::Connect)?;
    let broken = |_| Failure::Broken;
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Connection errors are returned by `send_request` and by the body.
    let connection = tokio::spawn(async move { drop(connection.await) });
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, dial.host())
        .header(header::ACCEPT, ACCEPT)
        .header(header::USER_AGENT, concat!("tokometer/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|_| Failure::Broken)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let at = Instant::now();
    let (parts, body) = response.into_parts();
    Ok(Response { status: parts.status, headers: parts.headers, at, body, connection })
}

impl Response {
    /// A header as text.
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the string member `version` of a JSON object; `None` if it is missing or invalid.
    pub(crate) async fn version(mut self) -> Option<Arc<str>> {
        if self.status != StatusCode::OK {
            return None;
        }
        let body = Limited::new(&mut self.body, VERSION_BYTES).collect().await.ok()?.to_bytes();
        let object: serde_json::Value = serde_json::from_slice(&body).ok()?;
        let version = object.get("version")?.as_str()?;
        let is_plain = version.len() <= MAX_VERSION && version.bytes().all(|byte| byte.is_ascii_graphic());
        (is_plain && !version.is_empty()).then(|| version.into())
    }

    /// Reads the whole page; fails after `most` bytes.
    pub(crate) async fn page(mut self, most: usize) -> Result<Page, Failure> {
        let (mut page, mut parser) = (Page::default(), Parser::default());
        let mut length = 0_usize;
        while let Some(frame) = self.body.frame().await {
            let Ok(piece) = frame.map_err(|_| Failure::Broken)?.into_data() else { continue };
            length = length.saturating_add(piece.len());
            if length > most {
                return Err(Failure::TooLarge);
            }
            parser.feed(&piece, &mut |sample| page.take(sample));
        }
        let lines = parser.finish(&mut |sample| page.take(sample));
        match lines.samples {
            0 => Err(Failure::NotMetrics),
            _ if page.has_no_known_names() => Err(Failure::UnknownNames),
            _ => Ok(page),
        }
    }
}

/// Where to read the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This path.
    At(String),
    /// Nowhere: reading the page would change values that other readers see (llama.cpp).
    Draining,
}

/// Finds the page; sends a request only if the settings do not determine the path.
pub(crate) async fn find(target: &Target, dial: &dyn Dial) -> Result<Place, Failure> {
    if let Some(path) = &target.path {
        return Ok(Place::At(path.clone()));
    }
    let page_of = |engine: Engine| match engine.info().page {
        Some(page) if page.draining && !target.draining => Place::Draining,
        page => Place::At(page.map_or(USUAL, |page| page.path).to_owned()),
    };
    if let Some(engine) = target.engine {
        return Ok(page_of(engine));
    }
    let response = send(dial, Method::OPTIONS, USUAL).await?;
    let server = response.header(header::SERVER).unwrap_or_default();
    if server == "llama.cpp" {
        return Ok(page_of(Engine::LlamaCpp));
    }
    let routed = response.status == StatusCode::METHOD_NOT_ALLOWED && server == "uvicorn";
    Ok(if routed { page_of(Engine::TensorrtLlm) } else { Place::At(USUAL.to_owned()) })
}

/// The target path of a redirect that only appends a slash, as Starlette sends for a mounted app (LMDeploy).
pub(crate) fn slash_redirect(path: &str, status: StatusCode, location: Option<&str>) -> Option<String> {
    let to = location.filter(|_| status.is_redirection())?;
    let slashed = format!("{path}/");
    (!path.ends_with('/') && to.ends_with(&slashed)).then_some(slashed)
}
