//! OTLP over TLS with a private certificate authority and a client certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;
use tokometer_observe::measure::Sink;
use tokometer_telemetry::export::{Endpoint, Protocol};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::collector::Collector;
use super::otlp::endpoint;
use super::records;
use crate::WAIT;

fn write(dir: &Path, name: &str, pem: String) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, pem).unwrap();
    path
}

/// A certificate authority, the collector's certificate, and the certificate files for the exporter.
struct Identities {
    _dir: tempfile::TempDir,
    authority: (CertificateDer<'static>, String),
    server: (CertificateDer<'static>, String),
    server_key: KeyPair,
    ca: PathBuf,
    chain: PathBuf,
    private: PathBuf,
}

fn identities() -> Identities {
    let dir = tempfile::tempdir().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, &authority).unwrap(), key)
    };
    let (server, server_key) = issue();
    let (client, client_key) = issue();

    let ca = write(dir.path(), "ca.pem", authority.pem());
    let chain = write(dir.path(), "client.pem", client.pem());
    let private = write(dir.path(), "client.key", client_key.serialize_pem());
    Identities {
        authority: (authority.der().clone(), authority.pem()),
        server: (server.der().clone(), server.pem()),
        _dir: dir,
        server_key,
        ca,
        chain,
        private,
    }
}

/// Exports without the authority, with the authority, and also with a client certificate. Only the last export
/// succeeds.
fn assert_only_the_trusted_get_through(collector: &Collector, endpoint: Endpoint, with: &Identities) {
    let push = |endpoint| {
        let mut settings = records::settings();
        settings.traces.endpoint = Some(endpoint);
        let exporters = records::start(&settings).unwrap();
        exporters.record(&Arc::new(records::good("m")));
        exporters.flush(WAIT)
    };
    // A short timeout, because a client whose connection fails retries until the timeout.
    let plain = Endpoint { timeout: Duration::from_secs(1), ..endpoint.clone() };
    let trusting = Endpoint { ca: Some(with.ca.clone()), ..plain.clone() };
    assert!(!push(plain), "the built-in roots do not include this authority");
    assert!(!push(trusting), "the collector requires a client certificate");
    assert!(collector.spans().is_empty());
    let identity = Some((with.chain.clone(), with.private.clone()));
    assert!(push(Endpoint { ca: Some(with.ca.clone()), identity, ..endpoint }));
    assert!(!collector.spans().is_empty());
}

#[test]
fn https_collector_with_private_ca_and_client_cert_is_reached() {
    let with = identities();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(with.authority.0.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(with.server_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![with.server.0.clone()], key)
        .unwrap();
    let collector = Collector::https(TlsAcceptor::from(Arc::new(config)));
    let url = format!("https://127.0.0.1:{}/v1/traces", collector.port);
    assert_only_the_trusted_get_through(&collector, endpoint(url, Protocol::HttpProtobuf), &with);
}

#[test]
fn grpc_collector_with_private_ca_and_client_cert_is_reached() {
    let with = identities();
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(&with.server.1, with.server_key.serialize_pem()))
        .client_ca_root(Certificate::from_pem(&with.authority.1));
    let collector = Collector::grpcs(tls);
    let url = format!("https://127.0.0.1:{}", collector.port);
    assert_only_the_trusted_get_through(&collector, endpoint(url, Protocol::Grpc), &with);
}
