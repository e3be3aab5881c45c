//! The sending half of a connection that stays open between requests, the same for both versions of HTTP.

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::TokioIo;
use opentelemetry_http::HttpError;

use crate::export::otlp::destination::Destination;
use crate::export::otlp::destination::Stream;

/// Most bytes of an answer, as the OTLP specification has it.
pub(super) const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The sender of one version of HTTP.
pub(super) trait Sender: Sized + Send {
    /// Begins to speak on a new stream.
    fn begin(stream: Box<dyn Stream>) -> impl Future<Output = Result<Self, HttpError>> + Send;

    /// True once a request can be sent; false when the connection has ended.
    fn is_open(&mut self) -> impl Future<Output = bool> + Send;
}

impl Sender for http1::SendRequest<Full<Bytes>> {
    async fn begin(stream: Box<dyn Stream>) -> Result<Self, HttpError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its errors come to the request that they concern.
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

/// The sender that was kept where its connection is still open, else one on a new connection.
pub(super) async fn open<S: Sender>(kept: Option<S>, to: &Destination) -> Result<S, HttpError> {
    if let Some(mut sender) = kept
        && sender.is_open().await
    {
        return Ok(sender);
    }
    connect(to).await
}
