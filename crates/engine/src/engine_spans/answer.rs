//! Responses to an engine, in the protocol that it used (OTLP specification 1.x, "OTLP/gRPC", "OTLP/HTTP").

use std::convert::Infallible;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::header;
use hyper::body::Body;
use hyper::body::Frame;

use crate::engine_spans::stats::Refusal;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Delay after which an engine may retry a message that found no room.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// OTLP protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Grpc,
    Http,
}

/// Why a message is refused, with the codes of both protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    pub(crate) status: StatusCode,
    /// A status code of gRPC (<https://grpc.io/docs/guides/status-codes/>).
    pub(crate) code: u8,
    /// Visible ASCII without a percent sign, so it needs no encoding.
    pub(crate) message: &'static str,
}

impl Refused {
    pub(crate) const fn malformed(message: &'static str) -> Refused {
        Refused { why: Refusal::Malformed, status: StatusCode::BAD_REQUEST, code: 3, message }
    }

    pub(crate) const fn too_large() -> Refused {
        let message = "the message is larger than queue.max_message_bytes";
        Refused { why: Refusal::TooLarge, status: StatusCode::PAYLOAD_TOO_LARGE, code: 8, message }
    }

    pub(crate) const fn busy() -> Refused {
        let message = "waiting messages use all of queue.max_waiting_bytes; try again";
        Refused { why: Refusal::Busy, status: StatusCode::TOO_MANY_REQUESTS, code: 8, message }
    }

    pub(crate) const fn timeout() -> Refused {
        let message = "the message did not arrive within queue.read_timeout_ms";
        Refused { why: Refusal::Timeout, status: StatusCode::REQUEST_TIMEOUT, code: 4, message }
    }

    pub(crate) const fn unsupported(status: StatusCode, message: &'static str) -> Refused {
        Refused { why: Refusal::Unsupported, status, code: 12, message }
    }
}

/// A response body: at most one data frame, then trailers.
#[derive(Debug, Default)]
pub(crate) struct Said {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.data.take().map(Frame::data).or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(next.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }
}

/// The response to an accepted message.
pub(crate) fn taken(form: Form) -> Response<Said> {
    match form {
        // An empty ExportTraceServiceResponse has no bytes.
        Form::Http => response(StatusCode::OK, "application/x-protobuf", Said::default()),
        Form::Grpc => {
            let mut trailers = HeaderMap::new();
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
            let said = Said { data: Some(Bytes::from_static(&[0; 5])), trailers: Some(trailers) };
            response(StatusCode::OK, "application/grpc", said)
        }
    }
}

/// The response to a refused message.
pub(crate) fn refused(form: Form, refused: &Refused) -> Response<Said> {
    let busy = refused.why == Refusal::Busy;
    match form {
        Form::Http => {
            let data = status_message(refused, &[]);
            let mut answer =
                response(refused.status, "application/x-protobuf", Said { data: Some(data.into()), trailers: None });
            if busy {
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER.as_secs()));
            }
            answer
        }
        Form::Grpc => {
            // Without a message the trailers are sent in the headers.
            let mut answer = response(StatusCode::OK, "application/grpc", Said::default());
            let headers = answer.headers_mut();
            headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(refused.code)));
            headers.insert(GRPC_MESSAGE, HeaderValue::from_static(refused.message));
            // Clients retry RESOURCE_EXHAUSTED only if they receive a retry delay.
            let details = busy.then(|| STANDARD_NO_PAD.encode(status_message(refused, &retry_info())));
            if let Some(details) = details.and_then(|text| HeaderValue::try_from(text).ok()) {
                headers.insert(GRPC_DETAILS, details);
            }
            answer
        }
    }
}

fn response(status: StatusCode, content_type: &'static str, said: Said) -> Response<Said> {
    let mut answer = Response::new(said);
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// `google.rpc.Status`: code, message, and already encoded details.
fn status_message(refused: &Refused, details: &[u8]) -> Vec<u8> {
    let mut status = vec![0x08, refused.code];
    field(&mut status, 2, refused.message.as_bytes());
    if !details.is_empty() {
        field(&mut status, 3, details);
    }
    status
}

/// `google.rpc.RetryInfo` in an `Any`.
fn retry_info() -> Vec<u8> {
    let delay = [0x08, RETRY_AFTER.as_secs() as u8];
    let mut info = Vec::new();
    field(&mut info, 1, &delay);
    let mut any = Vec::new();
    field(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    field(&mut any, 2, &info);
    any
}

/// Encodes a length-delimited field.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    prost::encode_length_delimiter(bytes.len(), out).ok();
    out.extend_from_slice(bytes);
}
