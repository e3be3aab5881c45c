//! Results of exports as seen by the HTTP client. The OpenTelemetry crate's exporter uses this client, but does not
//! return the cause of a failure or what a collector rejects.

use std::error::Error as Cause;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http::Response;
use opentelemetry_http::HttpClient;
use opentelemetry_http::HttpError;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;

use crate::export::Endpoint;
use crate::export::otlp::client::Client;
use crate::export::otlp::endpoint;

/// Reads how many spans or data points the collector rejected from an accepted message (OTLP specification, "Partial
/// Success").
pub(super) type Rejections = fn(&[u8]) -> u64;

/// Number of rejected data points.
pub(super) fn rejected_points(response: &[u8]) -> u64 {
    let partial = ExportMetricsServiceResponse::decode(response).ok().and_then(|response| response.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_data_points).unwrap_or(0))
}

/// Number of rejected spans.
pub(super) fn rejected_spans(response: &[u8]) -> u64 {
    let partial = ExportTraceServiceResponse::decode(response).ok().and_then(|response| response.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

/// An error with its chain of causes.
pub(super) fn causes(error: &(dyn Cause + 'static)) -> String {
    let mut reported = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        let text = cause.to_string();
        // Some errors include their cause in their own text.
        if !reported.contains(&text) {
            reported.push_str(": ");
            reported.push_str(&text);
        }
        behind = cause.source();
    }
    reported
}

/// Result of one export.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Ok when the collector accepted everything; else the reason.
    pub(super) result: Result<(), String>,
    /// Rejected spans or data points of an accepted message.
    pub(super) rejected: u64,
}

#[derive(Debug, Default)]
struct Last {
    failure: Option<String>,
    rejected: u64,
}

/// The result of the current export, as seen by the client.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    address: String,
    last: Arc<Mutex<Last>>,
}

impl Delivery {
    pub(super) fn new(endpoint: &Endpoint) -> Delivery {
        Delivery { address: endpoint::address(endpoint), last: Arc::default() }
    }

    /// Combines the exporter's result with what the client saw.
    pub(super) fn outcome(&self, stated: Result<(), String>) -> Outcome {
        let address = &self.address;
        match (stated, std::mem::take(&mut *self.last())) {
            (Ok(()), Last { rejected: 0, .. }) => Outcome { result: Ok(()), rejected: 0 },
            (Ok(()), Last { rejected, .. }) => Outcome {
                result: Err(format!("{address} rejected {rejected} items of the export; its log may give the reason")),
                rejected,
            },
            (Err(error), Last { failure, .. }) => {
                // For an HTTP failure the client's error is more specific than the exporter's.
                let why = match failure {
                    Some(failure) if error.contains("HTTP export failed") => failure,
                    Some(failure) => format!("{error}; before that: {failure}"),
                    None => error,
                };
                Outcome { result: Err(format!("{address}: {why}")), rejected: 0 }
            }
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client, with its results recorded in a `Delivery`.
#[derive(Debug)]
pub(super) struct Watched {
    client: Client,
    rejections: Rejections,
    delivery: Delivery,
}

impl Watched {
    pub(super) fn new(client: Client, rejections: Rejections, delivery: Delivery) -> Watched {
        Watched { client, rejections, delivery }
    }
}

#[async_trait]
impl HttpClient for Watched {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.client.send_bytes(request).await;
        *self.delivery.last() = match &sent {
            Err(error) => Last { failure: Some(causes(error.as_ref())), rejected: 0 },
            // Only count and status are used: other response text may repeat one of our secrets.
            Ok(response) if response.status().is_success() => {
                Last { failure: None, rejected: (self.rejections)(response.body()) }
            }
            Ok(response) => Last { failure: Some(format!("status {}", response.status())), rejected: 0 },
        };
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery() -> Delivery {
        Delivery { address: "http://c:4318".to_owned(), last: Arc::default() }
    }

    fn reported(delivery: &Delivery, error: &str) -> String {
        delivery.outcome(Err(error.to_owned())).result.unwrap_err()
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
        assert_eq!(delivery.outcome(Ok(())), Outcome { result: Ok(()), rejected: 0 });
    }

    #[test]
    fn rejected_items_are_counted_and_reported() {
        let delivery = delivery();
        delivery.last().rejected = 3;
        let outcome = delivery.outcome(Ok(()));
        assert_eq!(outcome.rejected, 3);
        assert!(outcome.result.unwrap_err().starts_with("http://c:4318 rejected 3 items of the export"));
        // partial_success { rejected_spans: 5, error_message: "x" }, and one with a negative number.
        assert_eq!((rejected_spans(b"\n\x05\x08\x05\x12\x01x"), rejected_points(b"")), (5, 0));
        assert_eq!(rejected_spans(b"\n\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 0);
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
