//! The block `otlp`: the destination of each signal, from the shared settings and the signal's own settings.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::config::checked::problems::Problems;
use crate::config::raw::{self, Otlp, OtlpMetrics, OtlpTraces};
use crate::config::secret::shown_url;
use crate::config::sources::percent_decoded;
use tokometer_telemetry::export::{self, Protocol};

/// Checks `otlp.metrics`.
pub(super) fn metrics(otlp: &Otlp, problems: &mut Problems<'_>) -> export::Metrics {
    let OtlpMetrics { destination, exporter, histograms } = &otlp.metrics;
    export::Metrics {
        endpoint: endpoint("metrics", otlp, destination, problems),
        exponential: *histograms == raw::Histograms::Base2ExponentialBucketHistogram,
        ..exporter.clone()
    }
}

/// Checks `otlp.traces`.
pub(super) fn traces(otlp: &Otlp, problems: &mut Problems<'_>) -> export::Traces {
    use raw::Sampler as S;
    let OtlpTraces { destination, exporter, sampler, sampler_ratio } = &otlp.traces;
    let export::Traces { batch_size, queue_size, .. } = *exporter;
    // Only a configured batch size is an error: the default is lowered to the queue size below.
    if batch_size > queue_size && problems.is_set("otlp.traces.batch_size") {
        let message = format!(
            "a batch of {batch_size} is larger than the queue of {queue_size}; write at most OTEL_BSP_MAX_QUEUE_SIZE"
        );
        problems.error("otlp.traces.batch_size", message);
    }
    let (parent_based, kept) = match sampler {
        S::AlwaysOn => (false, export::Sampler::AlwaysOn),
        S::AlwaysOff => (false, export::Sampler::AlwaysOff),
        S::Traceidratio => (false, export::Sampler::Ratio(*sampler_ratio)),
        S::ParentbasedAlwaysOn => (true, export::Sampler::AlwaysOn),
        S::ParentbasedAlwaysOff => (true, export::Sampler::AlwaysOff),
        S::ParentbasedTraceidratio => (true, export::Sampler::Ratio(*sampler_ratio)),
    };
    if !matches!(kept, export::Sampler::Ratio(_)) && *sampler_ratio != 1.0 {
        problems.warn("otlp.traces.sampler_ratio", "has no effect: only the `traceidratio` samplers use it");
    }
    export::Traces {
        endpoint: endpoint("traces", otlp, destination, problems),
        sampler: kept,
        parent_based,
        batch_size: batch_size.min(queue_size),
        ..exporter.clone()
    }
}

fn endpoint(
    signal: &str,
    otlp: &Otlp,
    own: &raw::Destination,
    problems: &mut Problems<'_>,
) -> Option<export::Endpoint> {
    let at = |own: bool, key: &str| if own { format!("otlp.{signal}.{key}") } else { format!("otlp.{key}") };
    let protocol = own.protocol.unwrap_or(otlp.protocol);
    let insecure = own.insecure.unwrap_or(otlp.insecure);
    let headers = own.headers.as_ref().unwrap_or(&otlp.headers);
    check_headers(&at(own.headers.is_some(), "headers"), headers, problems);
    let path = at(own.client_certificate.is_some() || own.client_key.is_some(), "");
    let certificate = own.client_certificate.as_ref().or(otlp.client_certificate.as_ref()).cloned();
    let key = own.client_key.as_ref().or(otlp.client_key.as_ref()).cloned();
    let identity =
        problems.identity(path.trim_end_matches('.'), ("client_certificate", &certificate), ("client_key", &key));

    let is_own = own.endpoint.is_some();
    let set = own.endpoint.as_deref().or(otlp.endpoint.as_deref());
    let default = match protocol {
        Protocol::HttpProtobuf => "http://localhost:4318",
        Protocol::Grpc => "http://localhost:4317",
    };
    let base = match (own.enabled, set) {
        (Some(false), _) | (None, None) => return None,
        (_, Some(set)) => set,
        (Some(true), None) => default,
    };
    let path = at(is_own, "endpoint");
    let url = problems.take(&path, url(base, protocol, insecure))?;
    let port = url.trim_end_matches('/').rsplit(':').next();
    match (protocol, port) {
        (Protocol::HttpProtobuf, Some("4317")) if !is_own => problems.warn(
            &path,
            "port 4317 is usually gRPC, but the protocol is http/protobuf; use port 4318 or `protocol: grpc`",
        ),
        (Protocol::Grpc, Some("4318")) => problems.warn(
            &path,
            "port 4318 is usually HTTP, but the protocol is grpc; use port 4317 or `protocol: http/protobuf`",
        ),
        _ => {}
    }
    let own_path =
        ["/v1/metrics", "/v1/traces", "/v1/logs"].iter().find(|own| url.trim_end_matches('/').ends_with(**own));
    if let Some(own_path) = own_path.filter(|_| !is_own && protocol == Protocol::HttpProtobuf) {
        problems.warn(
            &path,
            format!("the path of each signal is appended; remove `{own_path}`, or set the variable OTEL_EXPORTER_OTLP_{}_ENDPOINT, which is used without changes", signal.to_ascii_uppercase()),
        );
    }
    let url = match protocol {
        Protocol::HttpProtobuf if !is_own => with_signal_path(&url, signal),
        _ => url,
    };
    let (url, user) = without_user(&url);
    let mut headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
        headers.extend(user.map(|user| ("authorization".to_owned(), format!("Basic {}", STANDARD.encode(user)))));
    }
    Some(export::Endpoint {
        url,
        protocol,
        headers,
        gzip: own.compression.unwrap_or(otlp.compression) == raw::Compression::Gzip,
        timeout: own.timeout.unwrap_or(otlp.timeout).0,
        ca: own.certificate.as_ref().or(otlp.certificate.as_ref()).map(Into::into),
        identity,
    })
}

/// Checks the endpoint's URL. A gRPC endpoint without a scheme gets `http` or `https`, depending on `insecure`.
fn url(text: &str, protocol: Protocol, insecure: bool) -> Result<String, String> {
    let with_scheme = match (text.contains("://"), protocol) {
        (true, _) => text.to_owned(),
        (false, Protocol::Grpc) => format!("{}://{text}", if insecure { "http" } else { "https" }),
        (false, Protocol::HttpProtobuf) => {
            return Err(format!("`{}` has no scheme; write http://host:4318 or https://host:4318", shown_url(text)));
        }
    };
    let uri: http::Uri =
        with_scheme.parse().map_err(|_| format!("invalid URL `{}`; write http://host:port", shown_url(text)))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(with_scheme),
        (Some("http" | "https"), _) => Err(format!("`{}` has no host; write http://host:port", shown_url(text))),
        (scheme, _) => Err(format!("unknown scheme `{}`; write http:// or https://", scheme.unwrap_or_default())),
    }
}

/// Separates `user:password@` from the URL, because the URL is used in `Host` and in logs. The credentials are returned
/// in the form that Basic authentication encodes (RFC 7617 section 2).
fn without_user(url: &str) -> (String, Option<String>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let Some((user, place)) = authority.rsplit_once('@') else { return (url.to_owned(), None) };
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let user = format!("{}:{}", percent_decoded(name), percent_decoded(password));
    (format!("{scheme}://{place}{path}"), Some(user))
}

/// Appends `v1/metrics` or `v1/traces` to the path, before the query.
fn with_signal_path(url: &str, signal: &str) -> String {
    let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/v1/{signal}{query}", address.trim_end_matches('/'))
}

fn check_headers(path: &str, headers: &BTreeMap<String, String>, problems: &mut Problems<'_>) {
    for (name, value) in headers {
        let path = &format!("{path}.{name}");
        if http::HeaderName::try_from(name.as_str()).is_err() {
            problems.error(path, format!("invalid header name `{name}`; use letters, digits and dashes"));
        } else if http::HeaderValue::try_from(value.as_str()).is_err() {
            problems.error(
                path,
                format!("the value of `{name}` contains characters that are not allowed in headers; use visible ASCII"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_are_removed_from_the_url() {
        for (url, plain, user) in [
            ("http://u:p%401@c:4318/v1?k=a@b", "http://c:4318/v1?k=a@b", Some("u:p@1")),
            ("http://u@c", "http://c", Some("u:")),
            ("http://c:4318/a@b", "http://c:4318/a@b", None),
        ] {
            assert_eq!(without_user(url), (plain.to_owned(), user.map(str::to_owned)));
        }
    }

    #[test]
    fn signal_path_is_appended_before_the_query() {
        let table = [
            ("http://a:4318", "http://a:4318/v1/traces"),
            ("http://a:4318/", "http://a:4318/v1/traces"),
            ("http://a/otlp", "http://a/otlp/v1/traces"),
            ("http://a/otlp?k=1", "http://a/otlp/v1/traces?k=1"),
        ];
        for (base, expected) in table {
            assert_eq!(with_signal_path(base, "traces"), expected);
        }
    }
}
