//! Sends on traces of others: one export request that somebody else encoded, once, as it stands.

use std::io::Write;
use std::time::Duration;
use std::time::SystemTime;

use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::GeneralPurpose;
use base64::engine::GeneralPurposeConfig;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Request;
use http::StatusCode;
use http::header;
use opentelemetry_http::HttpClient;
use prost::Message;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::Protocol;
use crate::export::otlp::calls::Calls;
use crate::export::otlp::client::Client;
use crate::export::otlp::delivery::causes;
use crate::export::otlp::delivery::rejected_spans;
use crate::export::otlp::endpoint::headers;

/// Binary metadata may be padded or not (gRPC over HTTP/2, "Custom-Metadata").
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What the collector said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took the message, but for so many spans.
    Taken {
        /// Spans that it rejected.
        rejected: u64,
    },
    /// It may take the message later (OTLP specification, "Failures" and "Throttling").
    Later {
        /// When, if it said so.
        after: Option<Duration>,
        /// What happened.
        why: String,
    },
    /// It does not take the message.
    Refused {
        /// What it said.
        why: String,
    },
}

/// The way of traces of others to a collector: over HTTP or gRPC, as the endpoint says.
#[derive(Debug)]
pub struct Passage {
    url: String,
    headers: HeaderMap,
    gzip: bool,
    timeout: Duration,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Http(Client),
    Grpc(Calls),
}

impl Passage {
    /// Prepares the way; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// When the endpoint's URL, headers or certificates cannot be used.
    pub fn new(endpoint: &Endpoint) -> Result<Passage, Error> {
        let way = match endpoint.protocol {
            Protocol::HttpProtobuf => Way::Http(Client::new(endpoint)?),
            Protocol::Grpc => Way::Grpc(Calls::new(endpoint)?),
        };
        Ok(Passage {
            url: endpoint.url.clone(),
            headers: headers(endpoint)?,
            gzip: endpoint.gzip,
            timeout: endpoint.timeout,
            way,
        })
    }

    /// Sends an `ExportTraceServiceRequest`. The endpoint's headers go before those of the message where both have one.
    pub async fn send(&self, message: Bytes, headers: HeaderMap) -> Answer {
        let mut all = headers;
        let names: Vec<HeaderName> = self.headers.keys().cloned().collect();
        names.iter().for_each(|name| drop(all.remove(name)));
        all.extend(self.headers.clone());
        let agent = concat!("tokometer/", env!("CARGO_PKG_VERSION"));
        all.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(agent));
        let (message, gzip) = match self.gzip.then(|| compressed(&message)).flatten() {
            Some(compressed) => (compressed, true),
            None => (message, false),
        };
        let sent = async {
            match &self.way {
                Way::Http(client) => over_http(client, &self.url, message, all, gzip).await,
                Way::Grpc(calls) => over_grpc(calls, message, all, gzip).await,
            }
        };
        match tokio::time::timeout(self.timeout, sent).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => Answer::Later { after: None, why },
            Err(_) => Answer::Later { after: None, why: format!("no answer within {:?}", self.timeout) },
        }
    }
}

fn compressed(message: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(message).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// An error is one of the connection: the message may be sent again.
async fn over_http(
    client: &Client,
    url: &str,
    message: Bytes,
    headers: HeaderMap,
    gzip: bool,
) -> Result<Answer, String> {
    let mut request = Request::post(url).body(message).map_err(|error| error.to_string())?;
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let answer = client.send_bytes(request).await.map_err(|error| causes(error.as_ref()))?;
    let status = answer.status();
    // Not what it says beside the status, here and below: that may repeat a secret of ours.
    let why = || format!("status {status}");
    Ok(match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Answer::Later { after: retry_after(answer.headers()), why: why() },
        status if status.is_success() => Answer::Taken { rejected: rejected_spans(answer.body()) },
        _ => Answer::Refused { why: why() },
    })
}

/// Seconds or a date (RFC 9110 section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok(),
    }
}

async fn over_grpc(calls: &Calls, message: Bytes, headers: HeaderMap, gzip: bool) -> Result<Answer, String> {
    let call = calls.call(message, headers, gzip).await.map_err(|error| causes(error.as_ref()))?;
    let after = call.details.as_deref().and_then(retry_info);
    let why = format!("gRPC status {}", call.code);
    Ok(match call.code {
        0 => Answer::Taken { rejected: rejected_spans(&call.answer) },
        // RESOURCE_EXHAUSTED passes only where the collector says when.
        8 if after.is_none() => Answer::Refused { why },
        // CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
        1 | 4 | 8 | 10 | 11 | 14 | 15 => Answer::Later { after, why },
        _ => Answer::Refused { why },
    })
}

/// `google.rpc.Status`, as far as it tells when to try again.
#[derive(Clone, PartialEq, Message)]
struct Status {
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

fn retry_info(details: &[u8]) -> Option<Duration> {
    let status = Status::decode(BASE64.decode(details).ok()?.as_slice()).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?.min(999_999_999)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_to_try_again_is_read_from_the_details_of_a_status() {
        let info = RetryInfo { retry_delay: Some(Delay { seconds: 2, nanos: 500_000_000 }) };
        let any = Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value: info.encode_to_vec() };
        let status = Status { details: vec![any] }.encode_to_vec();
        let text = BASE64.encode(&status);
        let expected = Some(Duration::from_millis(2500));
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
