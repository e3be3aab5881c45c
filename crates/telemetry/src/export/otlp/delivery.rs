//! How exports went, from the client that carries them over HTTP: the exporter of the OpenTelemetry crate, which asks it to, keeps
//! the cause of a failure and what a collector rejects to itself.

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

/// Reads how many spans or data points a collector took a message without (OTLP specification, "Partial Success").
pub(super) type Rejections = fn(&[u8]) -> u64;

/// Data points that were rejected.
pub(super) fn rejected_points(answer: &[u8]) -> u64 {
    let partial = ExportMetricsServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_data_points).unwrap_or(0))
}

/// Spans that were rejected.
pub(super) fn rejected_spans(answer: &[u8]) -> u64 {
    let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
}

/// An error with what lies behind it.
pub(super) fn causes(error: &(dyn Cause + 'static)) -> String {
    let mut told = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        let text = cause.to_string();
        // Some errors tell their cause themselves.
        if !told.contains(&text) {
            told.push_str(": ");
            told.push_str(&text);
        }
        behind = cause.source();
    }
    told
}

/// How one export ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Ok when the collector took all of it; else why not.
    pub(super) result: Result<(), String>,
    /// Spans or data points that it rejected, of a message that it took.
    pub(super) rejected: u64,
}

#[derive(Debug, Default)]
struct Last {
    failure: Option<String>,
    rejected: u64,
}

/// What became of the export at hand.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    address: String,
    last: Arc<Mutex<Last>>,
}

impl Delivery {
    pub(super) fn new(endpoint: &Endpoint) -> Delivery {
        Delivery { address: endpoint::address(endpoint), last: Arc::default() }
    }

    /// Joins what the exporter says of an export to what was seen of it.
    pub(super) fn outcome(&self, said: Result<(), String>) -> Outcome {
        let address = &self.address;
        match (said, std::mem::take(&mut *self.last())) {
            (Ok(()), Last { rejected: 0, .. }) => Outcome { result: Ok(()), rejected: 0 },
            (Ok(()), Last { rejected, .. }) => Outcome {
                result: Err(format!("{address} rejected {rejected} parts of it; its log may say why")),
                rejected,
            },
            (Err(error), Last { failure, .. }) => {
                // Of a failure that the exporter was told of, it says less than the client.
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

/// The client, watched.
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
            // Not what it says beside count or status: that may repeat a secret of ours.
            Ok(answer) if answer.status().is_success() => {
                Last { failure: None, rejected: (self.rejections)(answer.body()) }
            }
            Ok(answer) => Last { failure: Some(format!("status {}", answer.status())), rejected: 0 },
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

    fn told(delivery: &Delivery, error: &str) -> String {
        delivery.outcome(Err(error.to_owned())).result.unwrap_err()
    }

    #[test]
    fn a_failure_is_told_with_the_address_and_its_cause_and_belongs_to_one_export() {
        let delivery = delivery();
        let failed = |why: &str| delivery.last().failure = Some(why.to_owned());
        failed("Connection refused");
        assert_eq!(told(&delivery, "HTTP export failed: network error"), "http://c:4318: Connection refused");
        assert_eq!(told(&delivery, "no answer within 1s"), "http://c:4318: no answer within 1s");
        failed("status 503 Service Unavailable");
        let shown = told(&delivery, "no answer within 1s");
        assert_eq!(shown, "http://c:4318: no answer within 1s; before that: status 503 Service Unavailable");
        assert_eq!(delivery.outcome(Ok(())), Outcome { result: Ok(()), rejected: 0 });
    }

    #[test]
    fn what_was_rejected_is_counted_and_told() {
        let delivery = delivery();
        delivery.last().rejected = 3;
        let outcome = delivery.outcome(Ok(()));
        assert_eq!(outcome.rejected, 3);
        assert!(outcome.result.unwrap_err().starts_with("http://c:4318 rejected 3 parts of it"));
        // partial_success { rejected_spans: 5, error_message: "x" }, and one with a number that is none.
        assert_eq!((rejected_spans(b"\n\x05\x08\x05\x12\x01x"), rejected_points(b"")), (5, 0));
        assert_eq!(rejected_spans(b"\n\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), 0);
    }

    #[test]
    fn causes_stand_behind_their_errors_once_each() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] std::io::Error);
        let inner = || std::io::Error::other("inner");
        assert_eq!(causes(&Outer("outer", inner())), "outer: inner");
        assert_eq!(causes(&Outer("outer: inner", inner())), "outer: inner");
    }
}
