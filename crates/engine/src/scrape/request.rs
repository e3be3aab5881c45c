//! One HTTP request to an engine, with a streamed response.

use std::io;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use http::Method;
use http::Request;
use http::StatusCode;
use http::header;
use http_body_util::BodyExt;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::task::JoinHandle;

use crate::scrape::Failure;
use crate::scrape::exposition::Parser;
use crate::scrape::page::Page;

/// Either text format. Names in quotes and protobuf would not be parsed.
const ACCEPT: &str = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,text/*;q=0.1";

/// Maximum size of the response headers in bytes.
const HEAD_BYTES: usize = 64 * 1024;

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
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// When its headers were received.
    pub(crate) at: Instant,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Sends a request on a new connection. Engines close idle connections after some seconds (uvicorn: five), about the
/// time between two scrapes, so reuse would race with the close.
pub(crate) async fn ask(dial: &dyn Dial, method: Method, path: &str) -> Result<Answer, Failure> {
    let stream = dial.dial().await.map_err(|_| Failure::Connect)?;
    let broken = |_| Failure::Broken;
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Connection errors are reported by the affected request.
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
    let answer = sender.send_request(request).await.map_err(broken)?;
    let at = Instant::now();
    let (parts, body) = answer.into_parts();
    Ok(Answer { status: parts.status, headers: parts.headers, at, body, connection })
}

impl Answer {
    /// A header as text.
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
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
            _ if page.is_strange() => Err(Failure::Strange),
            _ => Ok(page),
        }
    }
}
