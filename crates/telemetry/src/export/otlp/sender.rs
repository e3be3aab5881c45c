//! The sending half of a connection that stays open between requests, for both HTTP versions.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use opentelemetry_http::HttpError;

use crate::export::otlp::destination::Destination;
use crate::export::otlp::destination::Stream;

/// Maximum size of a response in bytes, from the OTLP specification.
pub(super) const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The sender of one HTTP version.
pub(super) trait Sender: Sized + Send {
    /// Performs the HTTP handshake on a new stream.
    fn begin(stream: Box<dyn Stream>) -> impl Future<Output = Result<Self, HttpError>> + Send;

    /// Returns true once a request can be sent; false when the connection has ended.
    fn is_open(&mut self) -> impl Future<Output = bool> + Send;
}

impl Sender for http1::SendRequest<Full<Bytes>> {
    async fn begin(stream: Box<dyn Stream>) -> Result<Self, HttpError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Connection errors are reported by the affected request.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn is_open(&mut self) -> bool {
        self.ready().await.is_ok()
    }
}

impl Sender for http2::SendRequest<Full<Bytes>> {
    async fn begin(stream: Box<dyn Stream>) -> Result<Self, HttpError> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // As above.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn is_open(&mut self) -> bool {
        self.ready().await.is_ok()
    }
}

/// A sender on a new connection.
pub(super) async fn connect<S: Sender>(to: &Destination) -> Result<S, HttpError> {
    S::begin(to.connect().await?).await
}

/// The kept sender if its connection is still open, else one on a new connection.
pub(super) async fn open<S: Sender>(kept: Option<S>, to: &Destination) -> Result<S, HttpError> {
    if let Some(mut sender) = kept
        && sender.is_open().await
    {
        return Ok(sender);
    }
    connect(to).await
}
