//! Connections to collectors: TCP, and TLS by rustls for `https`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::Connected;
use hyper_util::client::legacy::connect::Connection;
use hyper_util::rt::TokioIo;
use opentelemetry_http::HttpError;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::otlp::endpoint;

/// Checks an endpoint's URL, headers and TLS files without connecting.
///
/// # Errors
///
/// The first invalid one.
pub fn usable_endpoint(endpoint: &Endpoint) -> Result<(), Error> {
    endpoint::headers(endpoint)?;
    Connector::new(endpoint, &[]).map(drop)
}

/// A bidirectional byte stream, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Connection for Box<dyn Stream> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Opens connections for hyper's client.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// Present if the endpoint's URL begins with `https:`.
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    /// Checks the endpoint's URL and certificates. `protocols` are offered in TLS (ALPN, RFC 7301); if empty, no ALPN is
    /// sent.
    pub(super) fn new(endpoint: &Endpoint, protocols: &[&[u8]]) -> Result<Connector, Error> {
        let wrong = |reason: &str| endpoint::wrong(endpoint, reason);
        let url: Uri = endpoint.url.parse().map_err(|_| wrong("it is not a valid URL"))?;
        let scheme = url.scheme().filter(|scheme| [&Scheme::HTTP, &Scheme::HTTPS].contains(scheme));
        let scheme = scheme.ok_or_else(|| wrong("the URL must begin with http:// or https://"))?;
        let mut tls = (*scheme == Scheme::HTTPS).then(|| endpoint::http_tls(endpoint)).transpose()?;
        if let Some(config) = &mut tls {
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        }
        match url.host() {
            Some(host) if !host.is_empty() => Ok(Connector { tls: tls.map(Arc::new) }),
            _ => Err(wrong("the URL has no host")),
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HttpError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        Box::pin(connect(self.tls.clone(), url))
    }
}

async fn connect(tls: Option<Arc<ClientConfig>>, url: Uri) -> Result<TokioIo<Box<dyn Stream>>, HttpError> {
    let host = url.host().unwrap_or_default();
    // An IPv6 address is in brackets in a URL, but not elsewhere.
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host).to_owned();
    let port = url.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(match tls {
        Some(tls) => Box::new(TlsConnector::from(tls).connect(ServerName::try_from(host)?, stream).await?),
        None => Box::new(stream),
    }))
}
