//! TLS to a collector.

use std::path::Path;
use std::sync::Arc;

use opentelemetry_otlp::tonic_types::transport::Certificate;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::tonic_types::transport::Identity;
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::otlp::endpoint;

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::Pem { path: path.to_owned(), reason: error.to_string() })
}

fn wrong(path: &Path) -> impl Fn(String) -> Error {
    let path = path.to_owned();
    move |reason| Error::Pem { path: path.clone(), reason }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| wrong(path)(error.to_string()))?;
    if found.is_empty() { Err(wrong(path)("it contains no certificate".to_owned())) } else { Ok(found) }
}

/// For OTLP over HTTP.
pub(super) fn http(endpoint: &Endpoint) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &endpoint.ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path)(error.to_string()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| endpoint::wrong(endpoint, error.to_string()))?
        .with_root_certificates(roots);
    match &endpoint.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => {
            let pem = read(key)?;
            let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| wrong(key)(error.to_string()))?;
            builder.with_client_auth_cert(certificates(chain)?, private).map_err(|error| {
                let chain = chain.display();
                wrong(key)(format!("{error}; it must be the key of the first certificate in {chain}"))
            })
        }
    }
}

/// For OTLP over gRPC.
pub(super) fn grpc(endpoint: &Endpoint) -> Result<ClientTlsConfig, Error> {
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
