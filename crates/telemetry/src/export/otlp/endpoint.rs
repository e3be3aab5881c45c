//! OTLP exporters for an endpoint: HTTP with protobuf, or gRPC, and TLS to its collector.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use http::Uri;
use http::uri::Authority;
use opentelemetry_otlp::Compression;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_otlp::MetricExporter;
use opentelemetry_otlp::Protocol as Wire;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_otlp::WithHttpConfig;
use opentelemetry_otlp::WithTonicConfig;
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::tonic_types::transport::Certificate;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::tonic_types::transport::Identity;
use opentelemetry_sdk::metrics::Temporality;
use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use crate::export::Endpoint;
use crate::export::Error;
use crate::export::Protocol;
use crate::export::otlp::client::Client;
use crate::export::otlp::delivery::Delivery;
use crate::export::otlp::delivery::Rejections;
use crate::export::otlp::delivery::Watched;
use crate::export::otlp::delivery::rejected_points;
use crate::export::otlp::delivery::rejected_spans;
use crate::export::otlp::usable_endpoint;

/// The endpoint's scheme, host and port, for messages. Other parts of the URL may contain secrets.
pub(super) fn address(endpoint: &Endpoint) -> String {
    let uri = endpoint.url.parse::<Uri>().unwrap_or_default();
    let Some(authority) = uri.authority().map(Authority::as_str) else { return "(no URL)".to_owned() };
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    uri.scheme_str().map_or_else(|| place.to_owned(), |scheme| format!("{scheme}://{place}"))
}

/// The error for an invalid endpoint.
pub(super) fn wrong(endpoint: &Endpoint, reason: impl Into<String>) -> Error {
    Error::Endpoint { address: address(endpoint), reason: reason.into() }
}

fn build_error(endpoint: &Endpoint) -> impl Fn(ExporterBuildError) -> Error {
    move |error| wrong(endpoint, error.to_string())
}

/// Sets the options common to both signals over HTTP.
fn over_http<B: WithExportConfig + WithHttpConfig>(
    builder: B,
    endpoint: &Endpoint,
    (delivery, rejections): (&Delivery, Rejections),
) -> Result<B, Error> {
    let headers: HashMap<String, String> = endpoint.headers.iter().cloned().collect();
    let builder = builder
        .with_protocol(Wire::HttpBinary)
        .with_endpoint(&endpoint.url)
        .with_timeout(endpoint.timeout)
        .with_headers(headers)
        .with_http_client(Watched::new(Client::new(endpoint)?, rejections, delivery.clone()));
    Ok(if endpoint.gzip { builder.with_compression(Compression::Gzip) } else { builder })
}

/// Sets the options common to both signals over gRPC.
fn over_grpc<B: WithExportConfig + WithTonicConfig>(builder: B, endpoint: &Endpoint) -> Result<B, Error> {
    let mut builder = builder
        .with_protocol(Wire::Grpc)
        .with_endpoint(&endpoint.url)
        .with_timeout(endpoint.timeout)
        .with_metadata(MetadataMap::from_headers(headers(endpoint)?));
    if endpoint.url.starts_with("https:") {
        builder = builder.with_tls_config(grpc_tls(endpoint)?);
    }
    Ok(if endpoint.gzip { builder.with_compression(Compression::Gzip) } else { builder })
}

/// The headers configured for the endpoint.
pub(super) fn headers(endpoint: &Endpoint) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (name, value) in &endpoint.headers {
        // Omit the value, which may be a secret.
        let wrong = |reason: String| wrong(endpoint, format!("the header {name:?} cannot be sent: {reason}"));
        let key = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).map_err(|e| wrong(e.to_string()))?;
        let value = HeaderValue::from_str(value).map_err(|e| wrong(e.to_string()))?;
        headers.append(key, value);
    }
    Ok(headers)
}

/// The metrics exporter. Over HTTP, `delivery` receives the results of its exports.
pub(super) fn metric_exporter(
    endpoint: &Endpoint,
    temporality: Temporality,
    delivery: &Delivery,
) -> Result<MetricExporter, Error> {
    // Checks both protocols alike: over HTTP the crate would silently drop an invalid header.
    usable_endpoint(endpoint)?;
    let builder = MetricExporter::builder().with_temporality(temporality);
    match endpoint.protocol {
        Protocol::HttpProtobuf => over_http(builder.with_http(), endpoint, (delivery, rejected_points))?.build(),
        Protocol::Grpc => over_grpc(builder.with_tonic(), endpoint)?.build(),
    }
    .map_err(build_error(endpoint))
}

/// The span exporter; see [`metric_exporter`].
pub(super) fn span_exporter(endpoint: &Endpoint, delivery: &Delivery) -> Result<SpanExporter, Error> {
    usable_endpoint(endpoint)?;
    let builder = SpanExporter::builder();
    match endpoint.protocol {
        Protocol::HttpProtobuf => over_http(builder.with_http(), endpoint, (delivery, rejected_spans))?.build(),
        Protocol::Grpc => over_grpc(builder.with_tonic(), endpoint)?.build(),
    }
    .map_err(build_error(endpoint))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::Pem { path: path.to_owned(), reason: error.to_string() })
}

fn wrong_file(path: &Path) -> impl Fn(String) -> Error {
    let path = path.to_owned();
    move |reason| Error::Pem { path: path.clone(), reason }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| wrong_file(path)(error.to_string()))?;
    if found.is_empty() { Err(wrong_file(path)("it contains no certificate".to_owned())) } else { Ok(found) }
}

/// For OTLP over HTTP.
pub(super) fn http_tls(endpoint: &Endpoint) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match &endpoint.ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong_file(path)(error.to_string()))?;
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(endpoint, error.to_string()))?
        .with_root_certificates(roots);
    match &endpoint.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => {
            let pem = read(key)?;
            let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| wrong_file(key)(error.to_string()))?;
            builder.with_client_auth_cert(certificates(chain)?, private).map_err(|error| {
                let chain = chain.display();
                wrong_file(key)(format!("{error}; it must be the key of the first certificate in {chain}"))
            })
        }
    }
}

/// For OTLP over gRPC.
fn grpc_tls(endpoint: &Endpoint) -> Result<ClientTlsConfig, Error> {
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
