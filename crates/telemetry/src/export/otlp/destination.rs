//! The destination of an endpoint URL: host, port, and streams to it with or without TLS (rustls).

use std::sync::Arc;

use http::Uri;
use http::uri::Authority;
use http::uri::Scheme;
use opentelemetry_http::HttpError;
use rustls_pki_types::ServerName;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::otlp::endpoint;
use crate::export::otlp::tls;

/// A bidirectional byte stream, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

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
            let mut config = tls::http(endpoint)?;
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
    pub(super) fn url(&self, path: &'static str) -> Result<Uri, http::Error> {
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build()
    }

    /// Opens a stream to the destination.
    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, HttpError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            Some(tls) => Box::new(tls.connect(ServerName::try_from(self.host.clone())?, stream).await?),
            None => Box::new(stream),
        })
    }
}
