//! Unary gRPC calls with already encoded messages: hyper's HTTP/2 on tokometer's own runtime, TLS by rustls.

use bytes::Buf;
use bytes::BufMut;
use bytes::Bytes;
use bytes::BytesMut;
use http::HeaderMap;
use http::HeaderValue;
use http::Request;
use http::header;
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::Limited;
use hyper::client::conn::http2::SendRequest;
use opentelemetry_http::HttpError;
use tokio::sync::Mutex;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::otlp::destination::Destination;
use crate::export::otlp::sender;

/// The only method called.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// How a call ended.
#[derive(Debug)]
pub(super) struct Call {
    /// The gRPC status (<https://grpc.io/docs/guides/status-codes/>); 2 (UNKNOWN) if the response has none.
    pub(super) code: u8,
    /// `grpc-status-details-bin`, in base64.
    pub(super) details: Option<Vec<u8>>,
    /// The response message.
    pub(super) answer: Bytes,
}

/// One connection to one server, kept open between calls.
#[derive(Debug)]
pub(super) struct Calls {
    destination: Destination,
    open: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Calls {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Calls, Error> {
        Ok(Calls { destination: Destination::new(endpoint, &[b"h2"])?, open: Mutex::new(None) })
    }

    /// Sends a message that is already gzip-compressed (`gzip`) or uncompressed.
    pub(super) async fn call(&self, message: Bytes, headers: HeaderMap, gzip: bool) -> Result<Call, HttpError> {
        let mut framed = BytesMut::with_capacity(5 + message.len());
        framed.put_u8(u8::from(gzip));
        framed.put_u32(u32::try_from(message.len())?);
        framed.extend_from_slice(&message);
        let mut request = Request::post(self.destination.url(METHOD)?).body(Full::new(framed.freeze()))?;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        if gzip {
            headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
        }

        let mut open = self.open.lock().await;
        let mut sender = sender::open(open.take(), &self.destination).await?;
        let answer = sender.send_request(request).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, sender::ANSWER_BYTES).collect().await?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        *open = Some(sender);
        drop(open);

        let of = |name: &str| trailers.get(name).or_else(|| head.headers.get(name));
        let text = |name: &str| of(name).and_then(|value| value.to_str().ok());
        let mut answer = body.to_bytes();
        // Skip flag and length. The request offered no compression, so the response is uncompressed.
        answer.advance(answer.len().min(5));
        Ok(Call {
            code: text("grpc-status").and_then(|code| code.parse().ok()).unwrap_or(2),
            details: of("grpc-status-details-bin").map(|value| value.as_bytes().to_vec()),
            answer,
        })
    }
}
