//! Responses to export requests, over gRPC or HTTP (OTLP specification 1.x, "OTLP/gRPC", "OTLP/HTTP").

use std::future;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::engine_spans::stats::Refusal;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

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
    code: Code,
    message: &'static str,
}

impl Refused {
    pub(crate) const fn malformed(message: &'static str) -> Refused {
        Refused { why: Refusal::Malformed, status: StatusCode::BAD_REQUEST, code: Code::InvalidArgument, message }
    }

    pub(crate) const fn too_large() -> Refused {
        let message = "the message is too large";
        Refused {
            why: Refusal::TooLarge,
            status: StatusCode::PAYLOAD_TOO_LARGE,
            code: Code::ResourceExhausted,
            message,
        }
    }

    pub(crate) const fn busy() -> Refused {
        let message = "too many messages wait for the collector; try again";
        Refused { why: Refusal::Busy, status: StatusCode::TOO_MANY_REQUESTS, code: Code::ResourceExhausted, message }
    }

    pub(crate) const fn timeout() -> Refused {
        let message = "the message did not arrive in time";
        Refused { why: Refusal::Timeout, status: StatusCode::REQUEST_TIMEOUT, code: Code::DeadlineExceeded, message }
    }

    pub(crate) const fn unsupported(status: StatusCode, message: &'static str) -> Refused {
        Refused { why: Refusal::Unsupported, status, code: Code::Unimplemented, message }
    }

    /// A status whose details are an encoded `google.rpc.Status`.
    fn detailed(&self, details: ErrorDetails) -> Status {
        Status::with_error_details(self.code, self.message, details)
    }
}

/// The response to an accepted message.
pub(crate) fn accepted(protocol: Protocol) -> Response<Body> {
    match protocol {
        // An empty ExportTraceServiceResponse has no bytes.
        Protocol::Http => response(StatusCode::OK, "application/x-protobuf", Body::empty()),
        Protocol::Grpc => {
            let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
            let message = Full::new(Bytes::from_static(&[0; 5]));
            let body = message.with_trailers(future::ready(Some(Ok(trailers))));
            response(StatusCode::OK, "application/grpc", Body::new(body))
        }
    }
}

/// The response to a refused message.
pub(crate) fn refused(protocol: Protocol, refused: &Refused) -> Response<Body> {
    let busy = refused.why == Refusal::Busy;
    match protocol {
        Protocol::Http => {
            let status = refused.detailed(ErrorDetails::new());
            let body = Full::new(Bytes::copy_from_slice(status.details()));
            let mut response = response(refused.status, "application/x-protobuf", Body::new(body));
            if busy {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER.as_secs()));
            }
            response
        }
        // Clients retry RESOURCE_EXHAUSTED only if they receive a retry delay.
        Protocol::Grpc if busy => refused.detailed(ErrorDetails::with_retry_info(Some(RETRY_AFTER))).into_http(),
        Protocol::Grpc => Status::new(refused.code, refused.message).into_http(),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
