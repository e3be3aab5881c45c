//! Address, headers and TLS files of an endpoint, and connections to the endpoint.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use opentelemetry_http::HttpError;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::export::{Endpoint, Error};

/// The endpoint's scheme, host and port, for messages. Other parts of the URL may contain secrets.
pub(super) fn address(endpoint: &Endpoint) -> String {
    let uri = endpoint.url.parse::<Uri>().unwrap_or_default();
    let Some(authority) = uri.authority().map(Authority::as_str) else { return "(no URL)".to_owned() };
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    uri.scheme_str().map_or_else(|| place.to_owned(), |scheme| format!("{scheme}://{place}"))
}

/// The error for an invalid endpoint.
pub(super) fn wrong(endpoint: &Endpoint, reason: impl ToString) -> Error {
    Error::Endpoint { address: address(endpoint), reason: reason.to_string() }
}

/// The headers configured for the endpoint.
pub(super) fn headers(endpoint: &Endpoint) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (name, value) in &endpoint.headers {
        // Omit the value, which may be a secret.
        let wrong = |reason: http::Error| wrong(endpoint, format!("the header {name:?} cannot be sent: {reason}"));
        let key = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).map_err(|e| wrong(e.into()))?;
        let value = HeaderValue::from_str(value).map_err(|e| wrong(e.into()))?;
        headers.append(key, value);
    }
    Ok(headers)
}

fn wrong_file(path: &Path, reason: impl ToString) -> Error {
    Error::Pem { path: path.to_owned(), reason: reason.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| wrong_file(path, error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| wrong_file(path, error))?;
    if found.is_empty() { Err(wrong_file(path, "it contains no certificate")) } else { Ok(found) }
}

/// TLS settings for OTLP over HTTP.
pub(super) fn http_tls(endpoint: &Endpoint) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &endpoint.ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong_file(path, error))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(endpoint, error))?
        .with_root_certificates(roots);
    let Some((chain, key)) = &endpoint.identity else { return Ok(builder.with_no_client_auth()) };
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| wrong_file(key, error))?;
    builder.with_client_auth_cert(certificates(chain)?, private).map_err(|error| {
        let chain = chain.display();
        wrong_file(key, format!("{error}; it must be the key of the first certificate in {chain}"))
    })
}

/// TLS settings for OTLP over gRPC.
pub(super) fn grpc_tls(endpoint: &Endpoint) -> Result<ClientTlsConfig, Error> {
    let mut config = ClientTlsConfig::new();
    config = match &endpoint.ca {
        None => config.trust_anchors(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            certificates(path)?;
            config.ca_certificate(Certificate::from_pem(read(path)?))
        }
    };
    if let Some((chain, key)) = &endpoint.identity {
        certificates(chain)?;
        config = config.identity(Identity::from_pem(read(chain)?, read(key)?));
    }
    Ok(config)
}

/// Checks an endpoint's URL, headers and TLS files without connecting.
///
/// # Errors
///
/// The first invalid setting.
pub fn usable_endpoint(endpoint: &Endpoint) -> Result<(), Error> {
    headers(endpoint)?;
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
    /// Checks the endpoint's URL and certificates. `protocols` are offered in TLS (ALPN, RFC 7301); if empty, no ALPN
    /// is sent.
    pub(super) fn new(endpoint: &Endpoint, protocols: &[&[u8]]) -> Result<Connector, Error> {
        let invalid = |reason: &str| wrong(endpoint, reason);
        let url: Uri = endpoint.url.parse().map_err(|_| invalid("it is not a valid URL"))?;
        let scheme = url.scheme().filter(|scheme| [&Scheme::HTTP, &Scheme::HTTPS].contains(scheme));
        let scheme = scheme.ok_or_else(|| invalid("the URL must begin with http:// or https://"))?;
        let mut tls = (*scheme == Scheme::HTTPS).then(|| http_tls(endpoint)).transpose()?;
        if let Some(config) = &mut tls {
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        }
        match url.host() {
            Some(host) if !host.is_empty() => Ok(Connector { tls: tls.map(Arc::new) }),
            _ => Err(invalid("the URL has no host")),
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
