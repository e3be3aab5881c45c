//! Responses to export requests, over gRPC or HTTP (OTLP specification 1.x, "OTLP/gRPC", "OTLP/HTTP").

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use hyper::body::{Body, Frame};
use prost::Message;

use crate::engine_spans::stats::Refusal;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Delay after which an engine may resend a message that was refused for lack of room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// OTLP protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Grpc,
    Http,
}

/// Why a message is refused, with the codes of both protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    status: StatusCode,
    /// A status code of gRPC (<https://grpc.io/docs/guides/status-codes/>).
    code: u8,
    /// Visible ASCII without a percent sign, so that `grpc-message` needs no percent-encoding.
    message: &'static str,
}

impl Refused {
    pub(crate) const fn malformed(message: &'static str) -> Refused {
        Refused { why: Refusal::Malformed, status: StatusCode::BAD_REQUEST, code: 3, message }
    }

    pub(crate) const fn too_large() -> Refused {
        let message = "the message is too large";
        Refused { why: Refusal::TooLarge, status: StatusCode::PAYLOAD_TOO_LARGE, code: 8, message }
    }

    pub(crate) const fn busy() -> Refused {
        let message = "too many messages wait for the collector; try again";
        Refused { why: Refusal::Busy, status: StatusCode::TOO_MANY_REQUESTS, code: 8, message }
    }

    pub(crate) const fn timeout() -> Refused {
        let message = "the message did not arrive in time";
        Refused { why: Refusal::Timeout, status: StatusCode::REQUEST_TIMEOUT, code: 4, message }
    }

    pub(crate) const fn unsupported(status: StatusCode, message: &'static str) -> Refused {
        Refused { why: Refusal::Unsupported, status, code: 12, message }
    }

    /// `google.rpc.Status`.
    fn encoded(&self, retry_after: Option<Duration>) -> Vec<u8> {
        RpcStatus::new(self.code.into(), self.message, retry_after).encode_to_vec()
    }
}

/// A response body: at most one data frame, then trailers.
#[derive(Debug, Default)]
pub(crate) struct ResponseBody {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for ResponseBody {
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
pub(crate) fn accepted(protocol: Protocol) -> Response<ResponseBody> {
    match protocol {
        // An empty ExportTraceServiceResponse has no bytes.
        Protocol::Http => response(StatusCode::OK, "application/x-protobuf", ResponseBody::default()),
        Protocol::Grpc => {
            let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
            let body = ResponseBody { data: Some(Bytes::from_static(&[0; 5])), trailers: Some(trailers) };
            response(StatusCode::OK, "application/grpc", body)
        }
    }
}

/// The response to a refused message.
pub(crate) fn refused(protocol: Protocol, refused: &Refused) -> Response<ResponseBody> {
    let retry_after = (refused.why == Refusal::Busy).then_some(RETRY_AFTER);
    match protocol {
        Protocol::Http => {
            let body = ResponseBody { data: Some(refused.encoded(None).into()), trailers: None };
            let mut response = response(refused.status, "application/x-protobuf", body);
            if let Some(delay) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(delay.as_secs()));
            }
            response
        }
        Protocol::Grpc => {
            // A response without a message has its trailers in the headers ("Trailers-Only").
            let mut response = response(StatusCode::OK, "application/grpc", ResponseBody::default());
            let headers = response.headers_mut();
            headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(refused.code)));
            headers.insert(GRPC_MESSAGE, HeaderValue::from_static(refused.message));
            // Clients retry RESOURCE_EXHAUSTED only if they receive a retry delay.
            let details = retry_after.map(|delay| STANDARD_NO_PAD.encode(refused.encoded(Some(delay))));
            if let Some(details) = details.and_then(|text| HeaderValue::try_from(text).ok()) {
                headers.insert(GRPC_DETAILS, details);
            }
            response
        }
    }
}

fn response(status: StatusCode, content_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// `google.rpc.Status`: why a request was rejected; in the body over HTTP, in `grpc-status-details-bin` over gRPC.
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl RpcStatus {
    /// A status with this gRPC code, and with a `google.rpc.RetryInfo` if the message may be sent again.
    pub fn new(code: i32, message: &str, retry_after: Option<Duration>) -> RpcStatus {
        let info = |delay: Duration| {
            let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
            let delay = Delay { seconds, nanos: delay.subsec_nanos().cast_signed() };
            let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
            Any { type_url: RETRY_INFO.to_owned(), value }
        };
        RpcStatus { code, message: message.to_owned(), details: retry_after.map(info).into_iter().collect() }
    }

    /// The delay after which the message may be sent again, if the status has one.
    pub fn retry_after(&self) -> Option<Duration> {
        let info = self.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
        let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
        Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?.min(999_999_999)))
    }
}
