//! The target and the request that every client sends.

use std::str::FromStr;

use bytes::Bytes;

use crate::load::api::Api;
use crate::load::settings::Settings;

/// A request, independent of the HTTP version.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) api: Api,
    pub(crate) authority: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Request {
    pub(crate) fn new(url: &Url, settings: &Settings) -> Request {
        let api = settings.api.or_else(|| url.path.as_deref().and_then(Api::at)).unwrap_or_default();
        let headers = [
            ("User-Agent", "tokometer-load".to_owned()),
            ("Accept", "*/*".to_owned()),
            ("Content-Type", api.description().content_type()),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value));
        Request {
            api,
            authority: url.authority.clone(),
            path: url.path.clone().unwrap_or_else(|| api.description().path(settings)),
            headers: headers.chain(settings.headers.iter().cloned()).collect(),
            body: settings.body.clone().unwrap_or_else(|| api.description().body(settings)).into(),
        }
    }
}

/// A plain HTTP target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// As sent in the Host header.
    pub(crate) authority: String,
    /// Path and query, if the target has them.
    pub(crate) path: Option<String>,
}

/// An unsupported target URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid load target {0:?}: use http://HOST:PORT or http://HOST:PORT/PATH (TLS is not supported)")]
pub struct BadUrl(String);

impl FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Url, BadUrl> {
        let bad = || BadUrl(text.to_owned());
        let uri: http::Uri = text.parse().map_err(|_| bad())?;
        if uri.scheme_str() != Some("http") {
            return Err(bad());
        }
        let authority = uri.authority().ok_or_else(bad)?;
        let path = match uri.path_and_query().map(http::uri::PathAndQuery::as_str) {
            None | Some("" | "/") => None,
            Some(path) => Some(path.to_owned()),
        };
        Ok(Url {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.as_str().to_owned(),
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_has_host_port_and_optional_path() {
        let url: Url = "http://127.0.0.1:8000".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_deref()), ("127.0.0.1", 8000, None));
        let url: Url = "http://[::1]:81/v1/completions?x=1".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_deref()), ("::1", 81, Some("/v1/completions?x=1")));
        assert_eq!(url.authority, "[::1]:81");
    }

    #[test]
    fn non_plain_http_target_is_rejected() {
        for text in ["", "127.0.0.1:8000", "https://host:1", "http://", "ftp://x"] {
            assert!(text.parse::<Url>().is_err(), "{text:?}");
        }
    }
}
