//! One HTTP request to an engine, read piece by piece.

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

/// Text in either form; a page of names in quotes or of protobuf would not be read.
const ACCEPT: &str = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,text/*;q=0.1";

/// Most bytes of an answer's head.
const HEAD_BYTES: usize = 64 * 1024;

/// A connection's bytes.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<W: AsyncRead + AsyncWrite + Send + Unpin> Wire for W {}

/// Opens connections to one engine: the sockets and TLS are another module's.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// A new connection.
    ///
    /// # Errors
    /// When the engine does not accept it.
    async fn dial(&self) -> io::Result<Box<dyn Wire>>;

    /// The header `Host`.
    fn host(&self) -> String;

    /// The engine's name in the log.
    fn shown(&self) -> String {
        self.host()
    }
}

/// An answer whose body has not been read. The connection ends with it.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// When its head was there.
    pub(crate) at: Instant,
    body: Incoming,
    connection: JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Asks on a connection of its own. Engines close a kept one after some seconds (uvicorn: five), which are as many as lie
/// between two readings: each would race with the end of the connection.
pub(crate) async fn ask(dial: &dyn Dial, method: Method, path: &str) -> Result<Answer, Failure> {
    let stream = dial.dial().await.map_err(|_| Failure::Connect)?;
    let broken = |_| Failure::Broken;
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Its errors come to the request that they concern.
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

    /// Reads the page to its end; of one that is larger than `most` bytes, no more than that.
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
