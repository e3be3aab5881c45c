//! The request that every client sends.

use bytes::Bytes;

use crate::load::api::Api;
use crate::load::settings::Settings;
use crate::load::url::Url;

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
            ("Content-Type", api.content_type()),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value));
        Request {
            api,
            authority: url.authority.clone(),
            path: url.path.clone().unwrap_or_else(|| api.path(settings)),
            headers: headers.chain(settings.headers.iter().cloned()).collect(),
            body: settings.body.clone().unwrap_or_else(|| api.body(settings)).into(),
        }
    }
}
