//! Forwards trace data of other senders: one already encoded export request, sent once and unmodified.

use std::io::Write;
use std::time::Duration;
use std::time::SystemTime;

use async_trait::async_trait;
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
use tokometer_engine::engine_spans::Collector;
use tokometer_engine::engine_spans::Reply;
use tokometer_engine::engine_spans::RpcStatus;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::Protocol;
use crate::export::otlp::client::Calls;
use crate::export::otlp::client::Client;
use crate::export::otlp::delivery::causes;
use crate::export::otlp::delivery::rejected_spans;
use crate::export::otlp::endpoint::headers;

/// Binary metadata may or may not be padded (gRPC over HTTP/2, "Custom-Metadata").
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Client for one collector, over HTTP or gRPC as configured for the endpoint.
#[derive(Debug)]
pub struct Passage {
    url: String,
    headers: HeaderMap,
    gzip: bool,
    timeout: Duration,
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    Http(Client),
    Grpc(Calls),
}

impl Passage {
    /// Creates the client; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// When the endpoint's URL, headers or certificates are invalid.
    pub fn new(endpoint: &Endpoint) -> Result<Passage, Error> {
        let transport = match endpoint.protocol {
            Protocol::HttpProtobuf => Transport::Http(Client::new(endpoint)?),
            Protocol::Grpc => Transport::Grpc(Calls::new(endpoint)?),
        };
        Ok(Passage {
            url: endpoint.url.clone(),
            headers: headers(endpoint)?,
            gzip: endpoint.gzip,
            timeout: endpoint.timeout,
            transport,
        })
    }
}

#[async_trait]
impl Collector for Passage {
    /// The endpoint's headers replace headers of the message with the same name.
    async fn export(&self, message: Bytes, headers: HeaderMap) -> Reply {
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
            match &self.transport {
                Transport::Http(client) => over_http(client, &self.url, message, all, gzip).await,
                Transport::Grpc(calls) => over_grpc(calls, message, all, gzip).await,
            }
        };
        match tokio::time::timeout(self.timeout, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(why)) => Reply::Later { after: None, why },
            Err(_) => Reply::Later { after: None, why: format!("no response within {:?}", self.timeout) },
        }
    }
}

fn compressed(message: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(message).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// `Err` means a connection error: the message may be sent again.
async fn over_http(
    client: &Client,
    url: &str,
    message: Bytes,
    headers: HeaderMap,
    gzip: bool,
) -> Result<Reply, String> {
    let mut request = Request::post(url).body(message).map_err(|error| error.to_string())?;
    *request.headers_mut() = headers;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let response = client.send_bytes(request).await.map_err(|error| causes(error.as_ref()))?;
    let status = response.status();
    // Only the status is reported, here and below: other response text may repeat one of our secrets.
    let why = || format!("status {status}");
    Ok(match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Reply::Later { after: retry_after(response.headers()), why: why() },
        status if status.is_success() => Reply::Taken { rejected: rejected_spans(response.body()) },
        _ => Reply::Refused { why: why() },
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

async fn over_grpc(calls: &Calls, message: Bytes, headers: HeaderMap, gzip: bool) -> Result<Reply, String> {
    let call = calls.call(message, headers, gzip).await.map_err(|error| causes(error.as_ref()))?;
    let after = call.details.as_deref().and_then(retry_info);
    let why = format!("gRPC status {}", call.code);
    Ok(match call.code {
        0 => Reply::Taken { rejected: rejected_spans(&call.response) },
        // RESOURCE_EXHAUSTED is temporary only if the collector sends a retry delay.
        8 if after.is_none() => Reply::Refused { why },
        // CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
        1 | 4 | 8 | 10 | 11 | 14 | 15 => Reply::Later { after, why },
        _ => Reply::Refused { why },
    })
}

fn retry_info(details: &[u8]) -> Option<Duration> {
    RpcStatus::decode(BASE64.decode(details).ok()?.as_slice()).ok()?.retry_after()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_is_read_from_status_details() {
        let expected = Some(Duration::from_millis(2500));
        let status = RpcStatus::new(8, "busy", expected).encode_to_vec();
        let text = BASE64.encode(&status);
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
