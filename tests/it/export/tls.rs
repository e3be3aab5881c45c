//! OTLP over TLS: a private authority, and our own certificate.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;
use tokometer::export::Endpoint;
use tokometer::export::Exporters;
use tokometer::export::Protocol;
use tokometer::measure::Sink;

use super::collector::Collector;
use super::otlp::endpoint;
use super::records;

const WAIT: Duration = Duration::from_secs(20);

fn write(dir: &Path, name: &str, pem: String) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, pem).unwrap();
    path
}

#[test]
fn a_collector_with_a_private_authority_that_asks_for_our_certificate_is_reached() {
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

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.der().clone()], key)
        .unwrap();
    let collector = Collector::https(TlsAcceptor::from(Arc::new(config)));

    let ca = write(dir.path(), "ca.pem", authority.pem());
    let chain = write(dir.path(), "client.pem", client.pem());
    let private = write(dir.path(), "client.key", client_key.serialize_pem());
    let url = format!("https://127.0.0.1:{}/v1/traces", collector.port);
    let plain = endpoint(url, Protocol::HttpProtobuf);
    let push = |endpoint| {
        let mut settings = records::settings();
        settings.traces.endpoint = Some(endpoint);
        let exporters = Exporters::start(&settings, Arc::new(records::Still)).unwrap();
        exporters.record(&records::good("m"));
        exporters.shutdown(WAIT)
    };
    let trusting = Endpoint { ca: Some(ca), ..plain.clone() };
    assert!(!push(plain), "the built-in roots do not know this authority");
    assert!(!push(trusting.clone()), "the collector wants a certificate");
    assert!(collector.spans().is_empty());
    assert!(push(Endpoint { identity: Some((chain, private)), ..trusting }));
    assert!(!collector.spans().is_empty());
}
