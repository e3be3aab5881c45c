//! Builds the OpenTelemetry crate's exporters for an endpoint, and reports the results of their exports. The exporters
//! return neither the cause of an HTTP failure nor the number of rejected items, so the HTTP client of the exporters
//! records both.

use std::error::Error as Cause;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, header};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{
    Compression, Protocol as Wire, SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use tonic::{Request as Call, Status};

use crate::export::otlp::endpoint;
use crate::export::otlp::endpoint::Connector;
use crate::export::{Endpoint, Error, Protocol};

/// Builds an exporter for the endpoint, and returns it with its [`Delivery`].
macro_rules! build {
    ($builder:expr, $endpoint:ident) => {{
        let delivery = Delivery::new($endpoint)?;
        let built = match $endpoint.protocol {
            Protocol::HttpProtobuf => over_http($builder.with_http(), $endpoint, delivery.clone()).build(),
            Protocol::Grpc => over_grpc($builder.with_tonic(), $endpoint)?.build(),
        };
        Ok((built.map_err(|error| endpoint::wrong($endpoint, error))?, delivery))
    }};
}

/// The span exporter, with its [`Delivery`].
pub(super) fn span_exporter(endpoint: &Endpoint) -> Result<(SpanExporter, Delivery), Error> {
    build!(SpanExporter::builder(), endpoint)
}

/// Sets the options common to both signals over HTTP.
fn over_http<B: WithExportConfig + WithHttpConfig>(builder: B, endpoint: &Endpoint, client: Delivery) -> B {
    let builder = builder
        .with_protocol(Wire::HttpBinary)
        .with_endpoint(&endpoint.url)
        .with_timeout(endpoint.timeout)
        .with_http_client(client);
    if endpoint.gzip { builder.with_compression(Compression::Gzip) } else { builder }
}

/// The only headers of an exporter's request that are kept. The exporters add headers from
/// `OTEL_EXPORTER_OTLP_*HEADERS`, which would override tokometer's settings, so the configured headers replace all
/// others.
const MESSAGE: [HeaderName; 3] = [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::USER_AGENT];

/// Replaces the metadata of a gRPC request with the configured headers, for the same reason as [`MESSAGE`].
fn only_headers(headers: HeaderMap) -> impl FnMut(Call<()>) -> Result<Call<()>, Status> + Clone {
    move |mut call| {
        *call.metadata_mut() = MetadataMap::from_headers(headers.clone());
        Ok(call)
    }
}

/// Sets the options common to both signals over gRPC.
fn over_grpc<B: WithExportConfig + WithTonicConfig>(builder: B, endpoint: &Endpoint) -> Result<B, Error> {
    let mut builder = builder
        .with_protocol(Wire::Grpc)
        .with_endpoint(&endpoint.url)
        .with_timeout(endpoint.timeout)
        .with_interceptor(only_headers(endpoint::headers(endpoint)?));
    if endpoint.url.starts_with("https:") {
        builder = builder.with_tls_config(endpoint::grpc_tls(endpoint)?);
    }
    Ok(if endpoint.gzip { builder.with_compression(Compression::Gzip) } else { builder })
}

/// Number of spans or data points that the collector rejected from an accepted message (OTLP specification, "Partial
/// Success"). The responses for both signals have this number in the same field.
pub(super) fn rejected(response: &[u8]) -> u64 {
    let partial = ExportTraceServiceResponse::decode(response).ok().and_then(|response| response.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

/// The error for a partly rejected export.
pub(super) fn rejected_items(count: u64) -> String {
    format!("{count} items of the export were rejected; the log of the collector may give the reason")
}

/// An error with its chain of causes.
pub(super) fn causes(error: &(dyn Cause + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        // Some errors include their cause in their own text.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}

#[derive(Debug, Default)]
struct Last {
    failure: Option<String>,
    rejected: u64,
}

/// The HTTP client of an exporter. Records the result of the current export.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    client: HyperClient<Connector>,
    address: String,
    headers: HeaderMap,
    last: Arc<Mutex<Last>>,
}

impl Delivery {
    fn new(endpoint: &Endpoint) -> Result<Delivery, Error> {
        // Checks the headers for both protocols: over HTTP, the crate would silently drop an invalid header.
        let headers = endpoint::headers(endpoint)?;
        let client = HyperClient::new(Connector::new(endpoint, &[])?, endpoint.timeout, None);
        Ok(Delivery { client, address: endpoint::address(endpoint), headers, last: Arc::default() })
    }

    /// Combines the results of the exporter and of the HTTP client: an error unless the collector accepted everything.
    /// Also returns the number of items that the collector rejected from an accepted message.
    pub(super) fn outcome(&self, exported: Result<(), String>) -> (Result<(), String>, u64) {
        let address = &self.address;
        match (exported, std::mem::take(&mut *self.last())) {
            (Ok(()), Last { rejected: 0, .. }) => (Ok(()), 0),
            (Ok(()), Last { rejected, .. }) => (Err(format!("{address}: {}", rejected_items(rejected))), rejected),
            (Err(error), Last { failure, .. }) => {
                // For an HTTP failure, the error of the HTTP client is more specific than that of the exporter.
                let why = match failure {
                    Some(failure) if error.contains("HTTP export failed") => failure,
                    Some(failure) => format!("{error}; before that: {failure}"),
                    None => error,
                };
                (Err(format!("{address}: {why}")), 0)
            }
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl HttpClient for Delivery {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let own = std::mem::replace(request.headers_mut(), self.headers.clone());
        let own = own.into_iter().filter_map(|(name, value)| Some((name?, value)));
        request.headers_mut().extend(own.filter(|(name, _)| MESSAGE.contains(name)));
        let sent = self.client.send_bytes(request).await;
        *self.last() = match &sent {
            Err(error) => Last { failure: Some(causes(error.as_ref())), rejected: 0 },
            // Use only the count and the status: other response text may echo credentials from the request.
            Ok(response) if response.status().is_success() => {
                Last { failure: None, rejected: rejected(response.body()) }
            }
            Ok(response) => Last { failure: Some(format!("status {}", response.status())), rejected: 0 },
        };
        sent
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn delivery() -> Delivery {
        let url = "http://c:4318".to_owned();
        let (protocol, headers, timeout) = (Protocol::HttpProtobuf, Vec::new(), Duration::from_secs(1));
        Delivery::new(&Endpoint { url, protocol, headers, gzip: false, timeout, ca: None, identity: None }).unwrap()
    }

    fn reported(delivery: &Delivery, error: &str) -> String {
        delivery.outcome(Err(error.to_owned())).0.unwrap_err()
    }

    #[test]
    fn failure_includes_address_and_cause_once() {
        let delivery = delivery();
        let failed = |why: &str| delivery.last().failure = Some(why.to_owned());
        failed("Connection refused");
        assert_eq!(reported(&delivery, "HTTP export failed: network error"), "http://c:4318: Connection refused");
        assert_eq!(reported(&delivery, "no response within 1s"), "http://c:4318: no response within 1s");
        failed("status 503 Service Unavailable");
        let shown = reported(&delivery, "no response within 1s");
        assert_eq!(shown, "http://c:4318: no response within 1s; before that: status 503 Service Unavailable");
        assert_eq!(delivery.outcome(Ok(())), (Ok(()), 0));
    }

    #[test]
    fn rejected_items_are_counted_and_reported() {
        let delivery = delivery();
        delivery.last().rejected = 3;
        let (result, items) = delivery.outcome(Ok(()));
        assert_eq!(items, 3);
        assert!(result.unwrap_err().starts_with("http://c:4318: 3 items of the export were rejected"));
        // partial_success { rejected_spans: 5, error_message: "x" }, and one with a negative number.
        assert_eq!((rejected(b"\n\x05\x08\x05\x12\x01x"), rejected(b"")), (5, 0));
        assert_eq!(rejected(b"\n\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 0);
    }

    #[test]
    fn causes_follow_their_errors_once_each() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] std::io::Error);
        let inner = || std::io::Error::other("inner");
        assert_eq!(causes(&Outer("outer", inner())), "outer: inner");
        assert_eq!(causes(&Outer("outer: inner", inner())), "outer: inner");
    }
}
