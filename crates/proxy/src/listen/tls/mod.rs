//! TLS configurations from PEM files, checked at startup. Uses rustls with ring.
//!
//! Both sides of a relayed connection must use the same protocol, and the client's handshake completes first. A client
//! that offers `http/1.1` gets HTTP/1.1, which every server supports; a client that offers only `h2` (gRPC) gets
//! HTTP/2. In the handshake with a TLS server, the relay then offers only the client's protocol.

pub(crate) mod rotation;

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::listen::error::Error;
use crate::listen::settings::{Address, ClientTls, Listener, ServerTls};
use crate::listen::tls::rotation::Rotating;

/// The protocol that ALPN selected; HTTP/1.1 without ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    /// The protocol's ALPN identifier (RFC 7301, section 6).
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Http1 => b"http/1.1",
            Protocol::Http2 => b"h2",
        }
    }
}

/// Checks the contents of a listener's TLS files without a connection.
///
/// # Errors
///
/// When a file cannot be used or the server name is invalid; the error names the first problem.
pub fn usable_tls(listener: &Listener) -> Result<(), Error> {
    if let Some(tls) = &listener.tls {
        acceptor(tls)?;
    }
    if let Some(tls) = &listener.upstream_tls {
        connector(tls)?;
        server_name(&listener.upstream, tls)?;
    }
    Ok(())
}

/// TLS to clients; each handshake uses the current files.
pub(crate) fn rotating_acceptor(settings: &ServerTls) -> Result<Arc<Rotating<TlsAcceptor>>, Error> {
    let ServerTls { certificate, key, client_ca } = settings.clone();
    let files = [certificate, key].into_iter().chain(client_ca).collect();
    let settings = settings.clone();
    Rotating::new(files, move || acceptor(&settings))
}

/// TLS to the server; each handshake uses the current files.
pub(crate) fn rotating_connector(settings: &ClientTls) -> Result<Arc<Rotating<TlsConnector>>, Error> {
    let ClientTls { ca, identity, .. } = settings.clone();
    let identity = identity.into_iter().flat_map(|(certificate, key)| [certificate, key]);
    let files = ca.into_iter().chain(identity).collect();
    let settings = settings.clone();
    Rotating::new(files, move || connector(&settings))
}

/// TLS to clients.
fn acceptor(settings: &ServerTls) -> Result<TlsAcceptor, Error> {
    let ServerTls { certificate, key, client_ca } = settings;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions");
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities("the client CA file", path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .build()
                .map_err(|error| bad_authority(path, &error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(certificates("the certificate file", certificate)?, private_key(key)?)
        .map_err(|error| unusable(certificate, key, &error))?;
    config.alpn_protocols = [Protocol::Http1, Protocol::Http2].map(|protocol| protocol.alpn().to_vec()).into();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// TLS to the server; ALPN is set for each connection.
fn connector(settings: &ClientTls) -> Result<TlsConnector, Error> {
    let ClientTls { ca, server_name: _, identity, insecure } = settings;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions");
    let builder = if *insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider())))
    } else {
        let roots = match ca {
            Some(path) => authorities("the CA file", path)?,
            None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        };
        builder.with_root_certificates(roots)
    };
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates("the identity's certificate file", certificate)?, private_key(key)?)
            .map_err(|error| unusable(certificate, key, &error))?,
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// TLS to the server for a connection without a request. Offers both protocols, because some servers reject a handshake
/// that selects none.
pub(crate) fn probe_config(settings: &ClientTls) -> Result<Arc<ClientConfig>, Error> {
    let mut config = ClientConfig::clone(connector(settings)?.config());
    config.alpn_protocols = [Protocol::Http1, Protocol::Http2].map(|protocol| protocol.alpn().to_vec()).into();
    Ok(Arc::new(config))
}

/// TLS to a server on the same machine for an HTTP/1.1 request. The server may have any certificate.
pub fn unverified_tls() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring supports the default protocol versions");
    let verifier = Arc::new(AnyCertificate(provider()));
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![Protocol::Http1.alpn().to_vec()];
    Arc::new(config)
}

/// The name to check the server's certificate against; `None` if it depends on the connection.
pub(crate) fn server_name(upstream: &Address, settings: &ClientTls) -> Result<Option<ServerName<'static>>, Error> {
    let name = match (&settings.server_name, upstream) {
        (Some(name), _) => name.clone(),
        (None, Address::Tcp { host, .. }) => host.clone(),
        (None, Address::OriginalDestination) => return Ok(None),
        // The name is not checked, but the handshake needs one.
        (None, Address::Unix(_)) if settings.insecure => "localhost".to_owned(),
        (None, Address::Unix(_)) => return Err(bad_server_name(upstream, "")),
    };
    match ServerName::try_from(name.clone()) {
        Ok(name) => Ok(Some(name)),
        Err(_) => Err(bad_server_name(upstream, &format!("; `{name}` is not a host name"))),
    }
}

fn bad_server_name(upstream: &Address, detail: &str) -> Error {
    let needed = "the name to check the server's certificate against";
    Error::Tls(format!("TLS to {upstream} needs `server_name`: {needed}{detail}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(what, path, "CERTIFICATE", error))?;
    if certificates.is_empty() {
        return Err(unreadable(what, path, "CERTIFICATE", pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unreadable("the key file", path, "PRIVATE KEY", error))
}

fn authorities(what: &str, path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, path)? {
        roots.add(certificate).map_err(|error| bad_authority(path, &error))?;
    }
    Ok(roots)
}

fn unreadable(what: &str, path: &Path, expected: &str, error: pem::Error) -> Error {
    let path = path.display();
    let reason = match error {
        pem::Error::NoItemsFound => {
            let fix = format!("use a PEM file with a `-----BEGIN {expected}-----` section");
            return Error::Tls(format!("{what} {path} contains no {expected}; {fix}"));
        }
        pem::Error::Io(error) => error.to_string(),
        error => format!("not PEM: {error:?}"),
    };
    Error::Tls(format!("cannot read {what} {path}: {reason}; check the path and that tokometer's user may read it"))
}

fn bad_authority(path: &Path, error: &dyn std::error::Error) -> Error {
    let path = path.display();
    Error::Tls(format!("cannot use the CA certificates in {path}: {error}; use CA certificates in PEM format"))
}

fn unusable(certificate: &Path, key: &Path, error: &rustls::Error) -> Error {
    let (certificate, key) = (certificate.display(), key.display());
    let fix = "the key must belong to the first certificate of the file";
    Error::Tls(format!("cannot use certificate {certificate} with key {key}: {error}; {fix}"))
}

/// Accepts every server certificate (`insecure`); handshake signatures are still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
