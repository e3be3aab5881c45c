//! Sends encoded export requests to a collector: tokometer's metrics, and trace data received from engines. A request is
//! sent once; the caller retries.

use std::io::Write;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::HttpError;
use prost::Message;
use tokometer_engine::engine_spans::{Collector, Reply};
use tonic_types::Status;
use tonic_types::pb::RetryInfo;

use crate::export::otlp::delivery::{causes, rejected, rejected_items};
use crate::export::otlp::endpoint;
use crate::export::otlp::endpoint::Connector;
use crate::export::{Endpoint, Error, Protocol};

/// The gRPC method for metrics.
pub(super) const METRICS: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// The gRPC method for traces.
const TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Maximum size of a response in bytes, from the OTLP specification.
const RESPONSE_BYTES: usize = 4 * 1024 * 1024;

/// Decodes binary metadata, whose padding is optional (gRPC over HTTP/2, "Custom-Metadata").
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Client for one collector, over HTTP or gRPC as configured for the endpoint.
#[derive(Debug)]
pub struct CollectorClient {
    address: String,
    url: Uri,
    headers: HeaderMap,
    protocol: Protocol,
    gzip: bool,
    timeout: Duration,
    client: Client<Connector, Full<Bytes>>,
}

impl CollectorClient {
    /// Creates the client; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// When the endpoint's URL, headers or certificates are invalid.
    pub fn new(endpoint: &Endpoint) -> Result<CollectorClient, Error> {
        CollectorClient::of(endpoint, TRACES)
    }

    /// Creates the client of this gRPC method. Over HTTP, the endpoint's URL contains the path.
    pub(super) fn of(endpoint: &Endpoint, method: &'static str) -> Result<CollectorClient, Error> {
        let grpc = endpoint.protocol == Protocol::Grpc;
        let connector = Connector::new(endpoint, if grpc { &[b"h2"] } else { &[] })?;
        let invalid = |error: http::Error| endpoint::wrong(endpoint, error.to_string());
        let url = http::uri::Builder::from(endpoint.url.parse::<Uri>().map_err(|error| invalid(error.into()))?);
        let url = if grpc { url.path_and_query(method) } else { url };
        Ok(CollectorClient {
            address: endpoint::address(endpoint),
            url: url.build().map_err(invalid)?,
            headers: endpoint::headers(endpoint)?,
            protocol: endpoint.protocol,
            gzip: endpoint.gzip,
            timeout: endpoint.timeout,
            client: Client::builder(TokioExecutor::new()).http2_only(grpc).build(connector),
        })
    }

    /// Sends a message of tokometer's own; an error unless the collector accepted everything.
    pub(super) async fn deliver(&self, message: Bytes) -> Result<(), String> {
        match self.export(message, HeaderMap::new()).await {
            Reply::Taken { rejected: 0 } => Ok(()),
            Reply::Taken { rejected } => Err(rejected_items(rejected)),
            Reply::Refused { why } | Reply::Later { why, .. } => Err(why),
        }
    }

    /// The text of a failed export: with the collector's address.
    pub(super) fn failure(&self, why: &str) -> String {
        format!("{}: {why}", self.address)
    }

    /// Sends the message once. `Err` means a connection error, after which the message may be sent again.
    async fn send(&self, message: Bytes, headers: HeaderMap) -> Result<Reply, HttpError> {
        let (message, gzip) = if self.gzip { (compressed(&message)?, true) } else { (message, false) };
        let mut request = http::Request::post(self.url.clone()).body(Full::default())?;
        *request.headers_mut() = headers;
        let mut set = |name: &'static str, value| request.headers_mut().insert(name, HeaderValue::from_static(value));
        let (kind, encoding, body) = match self.protocol {
            Protocol::HttpProtobuf => ("application/x-protobuf", "content-encoding", message),
            Protocol::Grpc => {
                set("te", "trailers");
                ("application/grpc", "grpc-encoding", framed(&message, gzip)?)
            }
        };
        set("content-type", kind);
        if gzip {
            set(encoding, "gzip");
        }
        *request.body_mut() = Full::new(body);
        let (parts, body) = self.client.request(request).await?.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES).collect().await?;
        Ok(match self.protocol {
            Protocol::HttpProtobuf => http_reply(parts.status, &parts.headers, &body.to_bytes()),
            Protocol::Grpc => {
                let trailers = body.trailers().cloned().unwrap_or_default();
                grpc_reply(|name| trailers.get(name).or_else(|| parts.headers.get(name)), &body.to_bytes())
            }
        })
    }
}

#[async_trait]
impl Collector for CollectorClient {
    /// Sends `message` with `headers`. The endpoint's configured headers take precedence over `headers` with the same
    /// name.
    async fn export(&self, message: Bytes, headers: HeaderMap) -> Reply {
        let mut all = headers;
        all.extend(self.headers.clone());
        let agent = concat!("tokometer/", env!("CARGO_PKG_VERSION"));
        all.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(agent));
        let later = |why| Reply::Later { after: None, why };
        match tokio::time::timeout(self.timeout, self.send(message, all)).await {
            Ok(reply) => reply.unwrap_or_else(|error| later(causes(error.as_ref()))),
            Err(_) => later(format!("no response within {:?}", self.timeout)),
        }
    }
}

fn compressed(message: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(message)?;
    encoder.finish().map(Bytes::from)
}

/// A gRPC message: compression flag, length, content.
fn framed(message: &[u8], gzip: bool) -> Result<Bytes, HttpError> {
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(u8::from(gzip));
    framed.put_u32(u32::try_from(message.len())?);
    framed.extend_from_slice(message);
    Ok(framed.freeze())
}

fn http_reply(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Reply {
    // Report only the status, here and below: other response text may echo credentials from the request.
    let why = format!("status {status}");
    match status.as_u16() {
        429 | 502 | 503 | 504 => Reply::Later { after: retry_after(headers), why },
        200..300 => Reply::Taken { rejected: rejected(body) },
        _ => Reply::Refused { why },
    }
}

/// Value of `Retry-After`: seconds or a date (RFC 9110 section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok(),
    }
}

/// `field` looks up a trailer, or a header if the response has no such trailer.
fn grpc_reply<'a>(field: impl Fn(&str) -> Option<&'a HeaderValue>, body: &[u8]) -> Reply {
    let code = field("grpc-status").and_then(|code| code.to_str().ok()?.parse().ok());
    // Status codes: <https://grpc.io/docs/guides/status-codes/>. A response without a status counts as UNKNOWN.
    let code: u8 = code.unwrap_or(2);
    let after = field("grpc-status-details-bin").and_then(|details| retry_info(details.as_bytes()));
    let why = format!("gRPC status {code}");
    match code {
        // The message starts after the compression flag and the length (5 bytes). The request accepts no compression,
        // so the response is uncompressed.
        0 => Reply::Taken { rejected: rejected(body.get(5..).unwrap_or_default()) },
        // RESOURCE_EXHAUSTED is temporary only if the collector sends a retry delay.
        8 if after.is_none() => Reply::Refused { why },
        // CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
        1 | 4 | 8 | 10 | 11 | 14 | 15 => Reply::Later { after, why },
        _ => Reply::Refused { why },
    }
}

fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = Status::decode(BASE64.decode(details).ok()?.as_slice()).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?.min(999_999_999)))
}

#[cfg(test)]
mod tests {
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    #[test]
    fn retry_delay_is_read_from_status_details() {
        let expected = Some(Duration::from_millis(2500));
        let details = ErrorDetails::with_retry_info(expected);
        let status = tonic::Status::with_error_details(tonic::Code::ResourceExhausted, "busy", details);
        let text = BASE64.encode(status.details());
        assert_eq!(retry_info(text.as_bytes()), expected);
        assert_eq!(retry_info(text.trim_end_matches('=').as_bytes()), expected);
        assert_eq!(retry_info(b"%%%"), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let headers = |value: &str| HeaderMap::from_iter([(header::RETRY_AFTER, value.parse().unwrap())]);
        assert_eq!(retry_after(&headers("7")), Some(Duration::from_secs(7)));
        let then = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
        let after = retry_after(&headers(&then)).unwrap();
        assert!(after > Duration::from_secs(50) && after <= Duration::from_secs(60), "{after:?}");
        assert_eq!(retry_after(&headers("soon")), None);
    }
}
