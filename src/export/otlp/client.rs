//! The HTTP client of OTLP over HTTP: hyper on our own runtime, TLS by rustls.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::Uri;
use http::header::HOST;
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::Limited;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use opentelemetry_http::HttpClient;
use opentelemetry_http::HttpError;
use rustls_pki_types::ServerName;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::otlp::tls;

/// Most bytes of an answer, as the OTLP specification has it.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// One connection to one collector, kept open between exports.
pub(super) struct Client {
    tls: Option<TlsConnector>,
    timeout: Duration,
    open: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Client, Error> {
        let wrong = |reason: &str| Error::Endpoint { url: endpoint.url.clone(), reason: reason.to_owned() };
        let uri: Uri = endpoint.url.parse().map_err(|_| wrong("it is no URL"))?;
        let tls = match uri.scheme_str() {
            Some("https") => Some(TlsConnector::from(Arc::new(tls::http(endpoint)?))),
            Some("http") => None,
            _ => return Err(wrong("the URL must begin with http:// or https://")),
        };
        if uri.host().is_none_or(str::is_empty) {
            return Err(wrong("the URL names no host"));
        }
        Ok(Client { tls, timeout: endpoint.timeout, open: Mutex::new(None) })
    }

    async fn connect(&self, uri: &Uri) -> Result<SendRequest<Full<Bytes>>, HttpError> {
        let host = uri.host().ok_or("the URL names no host")?;
        // An IPv6 address stands in brackets in a URL, and without them everywhere else.
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host).to_owned();
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            Some(tls) => handshake(tls.connect(ServerName::try_from(host)?, stream).await?).await,
            None => handshake(stream).await,
        }
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut parts, body) = request.into_parts();
        let target = parts.uri.clone();
        let authority = target.authority().ok_or("the URL names no host")?;
        parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
        // On a connection of its own a request names the path alone (RFC 9112 section 3.2.1).
        parts.uri = target.path_and_query().map_or("/", |path| path.as_str()).parse()?;
        let request = Request::from_parts(parts, Full::new(body));

        let mut open = self.open.lock().await;
        let kept = match open.take() {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let mut sender = match kept {
            Some(kept) => kept,
            None => self.connect(&target).await?,
        };
        let answer = match sender.try_send_request(request).await {
            Ok(answer) => answer,
            Err(mut error) => match error.take_message() {
                // The collector closed the kept connection before any of it was sent.
                Some(request) => {
                    sender = self.connect(&target).await?;
                    sender.send_request(request).await?
                }
                None => return Err(error.into_error().into()),
            },
        };
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await?.to_bytes();
        *open = Some(sender);
        Ok(Response::from_parts(parts, body))
    }
}

async fn handshake<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Its errors come to the request that they concern.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        tokio::time::timeout(self.timeout, self.send(request)).await?
    }
}
