//! Clients for collectors on tokometer's own runtime: connections with TLS by rustls, OTLP over HTTP, and unary gRPC calls
//! with already encoded messages.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Buf;
use bytes::BufMut;
use bytes::Bytes;
use bytes::BytesMut;
use http::HeaderMap;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::Uri;
use http::header;
use http::header::HOST;
use http::uri::Authority;
use http::uri::Scheme;
use http_body_util::BodyExt;
use http_body_util::Full;
use http_body_util::Limited;
use hyper::client::conn::http1;
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
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
use crate::export::otlp::endpoint;
use crate::export::otlp::endpoint::http_tls;

/// A bidirectional byte stream, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The address of a collector.
pub(super) struct Destination {
    scheme: Scheme,
    authority: Authority,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

/// Omits the URL, which may contain a password.
impl std::fmt::Debug for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Destination").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Destination {
    /// Parses the endpoint's URL and certificates. `protocols` are offered in TLS (ALPN, RFC 7301); if empty, no ALPN
    /// is sent.
    pub(super) fn new(endpoint: &Endpoint, protocols: &[&[u8]]) -> Result<Destination, Error> {
        let wrong = |reason: &str| endpoint::wrong(endpoint, reason);
        let parts = endpoint.url.parse::<Uri>().map_err(|_| wrong("it is not a valid URL"))?.into_parts();
        let scheme = parts.scheme.filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let scheme = scheme.ok_or_else(|| wrong("the URL must begin with http:// or https://"))?;
        let tls = if scheme == Scheme::HTTPS {
            let mut config = http_tls(endpoint)?;
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Some(TlsConnector::from(Arc::new(config)))
        } else {
            None
        };
        let authority = parts.authority.filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| wrong("the URL has no host"))?;
        let host = authority.host();
        // An IPv6 address is in brackets in a URL, but not elsewhere.
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host).to_owned();
        let port = authority.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Ok(Destination { scheme, authority, host, port, tls })
    }

    /// The URL of this path at the destination.
    fn url(&self, path: &'static str) -> Result<Uri, http::Error> {
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build()
    }

    /// Opens a stream to the destination.
    async fn connect(&self) -> Result<Box<dyn Stream>, HttpError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.connect(ServerName::try_from(self.host.clone())?, stream).await?),
            None => Box::new(stream),
        })
    }
}

/// Maximum size of a response in bytes, from the OTLP specification.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The sender of one HTTP version.
trait Sender: Sized + Send {
    /// Performs the HTTP handshake on a new stream.
    fn begin(stream: Box<dyn Stream>) -> impl Future<Output = Result<Self, HttpError>> + Send;

    /// Returns true once a request can be sent; false when the connection has ended.
    fn is_open(&mut self) -> impl Future<Output = bool> + Send;
}

impl Sender for http1::SendRequest<Full<Bytes>> {
    async fn begin(stream: Box<dyn Stream>) -> Result<Self, HttpError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Connection errors are reported by the affected request.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn is_open(&mut self) -> bool {
        self.ready().await.is_ok()
    }
}

impl Sender for http2::SendRequest<Full<Bytes>> {
    async fn begin(stream: Box<dyn Stream>) -> Result<Self, HttpError> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        // As above.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn is_open(&mut self) -> bool {
        self.ready().await.is_ok()
    }
}

/// A sender on a new connection.
async fn new_sender<S: Sender>(to: &Destination) -> Result<S, HttpError> {
    S::begin(to.connect().await?).await
}

/// The kept sender if its connection is still open, else one on a new connection.
async fn open_sender<S: Sender>(kept: Option<S>, to: &Destination) -> Result<S, HttpError> {
    if let Some(mut sender) = kept
        && sender.is_open().await
    {
        return Ok(sender);
    }
    new_sender(to).await
}

/// One connection to one collector, kept open between exports.
#[derive(Debug)]
pub(super) struct Client {
    destination: Destination,
    timeout: Duration,
    open: Mutex<Option<http1::SendRequest<Full<Bytes>>>>,
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
        let mut sender = open_sender(open.take(), &self.destination).await?;
        let response = match sender.try_send_request(request).await {
            Ok(response) => response,
            Err(mut error) => match error.take_message() {
                // The collector closed the idle connection before any of the request was sent.
                Some(request) => {
                    sender = new_sender(&self.destination).await?;
                    sender.send_request(request).await?
                }
                None => return Err(error.into_error().into()),
            },
        };
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await?.to_bytes();
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

/// The only method called.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// How a call ended.
#[derive(Debug)]
pub(super) struct Call {
    /// The gRPC status (<https://grpc.io/docs/guides/status-codes/>); 2 (UNKNOWN) if the response has none.
    pub(super) code: u8,
    /// `grpc-status-details-bin`, in base64.
    pub(super) details: Option<Vec<u8>>,
    /// The response message.
    pub(super) response: Bytes,
}

/// One connection to one server, kept open between calls.
#[derive(Debug)]
pub(super) struct Calls {
    destination: Destination,
    open: Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

impl Calls {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Calls, Error> {
        Ok(Calls { destination: Destination::new(endpoint, &[b"h2"])?, open: Mutex::new(None) })
    }

    /// Sends a message that is already gzip-compressed (`gzip`) or uncompressed.
    pub(super) async fn call(&self, message: Bytes, headers: HeaderMap, gzip: bool) -> Result<Call, HttpError> {
        let mut framed = BytesMut::with_capacity(5 + message.len());
        framed.put_u8(u8::from(gzip));
        framed.put_u32(u32::try_from(message.len())?);
        framed.extend_from_slice(&message);
        let mut request = Request::post(self.destination.url(METHOD)?).body(Full::new(framed.freeze()))?;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        if gzip {
            headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
        }

        let mut open = self.open.lock().await;
        let mut sender = open_sender(open.take(), &self.destination).await?;
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        *open = Some(sender);
        drop(open);

        let of = |name: &str| trailers.get(name).or_else(|| head.headers.get(name));
        let text = |name: &str| of(name).and_then(|value| value.to_str().ok());
        let mut response = body.to_bytes();
        // Skip flag and length. The request offered no compression, so the response is uncompressed.
        response.advance(response.len().min(5));
        Ok(Call {
            code: text("grpc-status").and_then(|code| code.parse().ok()).unwrap_or(2),
            details: of("grpc-status-details-bin").map(|value| value.as_bytes().to_vec()),
            response,
        })
    }
}
