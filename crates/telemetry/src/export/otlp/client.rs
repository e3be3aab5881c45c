//! The HTTP client for OTLP over HTTP: hyper on tokometer's own runtime, TLS by rustls.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::header::HOST;
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::Limited;
use hyper::client::conn::http1::SendRequest;
use opentelemetry_http::HttpClient;
use opentelemetry_http::HttpError;
use tokio::sync::Mutex;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::otlp::destination::Destination;
use crate::export::otlp::sender;

/// One connection to one collector, kept open between exports.
#[derive(Debug)]
pub(super) struct Client {
    destination: Destination,
    timeout: Duration,
    open: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl Client {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Client, Error> {
        let destination = Destination::new(endpoint, &[])?;
        Ok(Client { destination, timeout: endpoint.timeout, open: Mutex::new(None) })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut parts, body) = request.into_parts();
        let target = parts.uri.clone();
        let authority = target.authority().ok_or("the URL names no host")?;
        parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        // Requests to an origin server carry only the path (RFC 9112 section 3.2.1).
        parts.uri = target.path_and_query().map_or("/", |path| path.as_str()).parse()?;
        let request = Request::from_parts(parts, Full::new(body));

        let mut open = self.open.lock().await;
        let mut sender = sender::open(open.take(), &self.destination).await?;
        let answer = match sender.try_send_request(request).await {
            Ok(answer) => answer,
            Err(mut error) => match error.take_message() {
                // The collector closed the idle connection before any of the request was sent.
                Some(request) => {
                    sender = sender::connect(&self.destination).await?;
                    sender.send_request(request).await?
                }
                None => return Err(error.into_error().into()),
            },
        };
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, sender::ANSWER_BYTES).collect().await?.to_bytes();
        *open = Some(sender);
        Ok(Response::from_parts(parts, body))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = tokio::time::timeout(self.timeout, self.send(request)).await;
        sent.unwrap_or_else(|_| Err(format!("no response within {:?}", self.timeout).into()))
    }
}
