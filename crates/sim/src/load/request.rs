//! The target and the request that every client sends.

use std::str::FromStr;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::load::api::{Api, Description};
use crate::load::settings::Settings;

/// A plain HTTP target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    authority: Authority,
    /// Path and query, if the target has them.
    path: Option<PathAndQuery>,
}

/// An unsupported target URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL `{0}`; write http://HOST:PORT or http://HOST:PORT/PATH (TLS is not supported)")]
pub struct BadUrl(String);

impl FromStr for Target {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Target, BadUrl> {
        let bad = || BadUrl(text.to_owned());
        let parts = text.parse::<Uri>().map_err(|_| bad())?.into_parts();
        match (parts.scheme, parts.authority) {
            (Some(scheme), Some(authority)) if scheme == Scheme::HTTP => {
                Ok(Target { authority, path: parts.path_and_query.filter(|path| path.as_str() != "/") })
            }
            _ => Err(bad()),
        }
    }
}

impl Target {
    /// Host (an IPv6 address without brackets) and port.
    pub(crate) fn address(&self) -> (&str, u16) {
        (self.authority.host().trim_matches(['[', ']']), self.authority.port_u16().unwrap_or(80))
    }

    /// The API to call.
    pub(crate) fn api(&self, settings: &Settings) -> Api {
        settings.api.or_else(|| self.path.as_ref().and_then(|path| Api::at(path.path()))).unwrap_or_default()
    }

    /// Builds the request from the settings.
    ///
    /// # Errors
    /// If a header or the model's name is not valid in a request.
    pub(crate) fn request(&self, settings: &Settings) -> http::Result<http::Request<Full<Bytes>>> {
        let description = self.api(settings).description();
        let path = match &self.path {
            Some(path) => path.clone(),
            None => path(description, settings).try_into()?,
        };
        let mut request = http::Request::post(match settings.http2 {
            true => {
                Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path).build()?
            }
            false => Uri::from(path),
        });
        if !settings.http2 {
            request = request.header(HOST, self.authority.as_str());
            if !settings.keep_alive {
                request = request.header(CONNECTION, "close");
            }
        }
        let content_type = match description.body {
            Some(_) => "application/json".to_owned(),
            None => format!("multipart/form-data; boundary={BOUNDARY}"),
        };
        request = request.header(USER_AGENT, "tokometer-load").header(ACCEPT, "*/*").header(CONTENT_TYPE, content_type);
        for (name, value) in &settings.headers {
            request = request.header(name, value);
        }
        request.body(settings.body.clone().unwrap_or_else(|| body(description, settings)).into())
    }
}

/// Request path, if the target URL has none.
fn path(description: &Description, settings: &Settings) -> String {
    let whole = description.whole_path.as_ref().filter(|_| !settings.stream);
    whole.unwrap_or(&description.path).replace("$model", &settings.model)
}

fn body(description: &Description, settings: &Settings) -> Vec<u8> {
    let Some(mut body) = description.body.clone() else { return form(settings) };
    fill(&mut body, settings);
    body["stream"] = settings.stream.into();
    if settings.ignore_eos && body.get("sampling_params").is_none() {
        body["ignore_eos"] = true.into();
    }
    if settings.stream && settings.include_usage && description.usage_option {
        body["stream_options"] = json!({"include_usage": true});
    }
    body.to_string().into_bytes()
}

/// Replaces setting names with their values; removes options that are off.
fn fill(value: &mut Value, settings: &Settings) {
    match value {
        Value::String(name) => match name.as_str() {
            "$model" => *value = settings.model.clone().into(),
            "$prompt" => *value = settings.prompt.clone().into(),
            "$max_tokens" => *value = settings.max_tokens.into(),
            "$ignore_eos" => *value = settings.ignore_eos.into(),
            // There is no tokenizer, so each byte is sent as one token id.
            "$bytes" => *value = settings.prompt.as_bytes().into(),
            _ => {}
        },
        Value::Array(elements) => elements.iter_mut().for_each(|element| fill(element, settings)),
        Value::Object(members) => {
            members.retain(|_, member| settings.ignore_eos || *member != "$ignore_eos");
            members.values_mut().for_each(|member| fill(member, settings));
        }
        _ => {}
    }
}

const BOUNDARY: &str = "tokometer-load";

/// A multipart form (RFC 7578) with a recording of silence.
fn form(settings: &Settings) -> Vec<u8> {
    let mut body = Vec::new();
    let mut part = |head: &str, value: &[u8]| {
        body.extend_from_slice(format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    };
    part("name=\"file\"; filename=\"silence.wav\"\r\nContent-Type: audio/wav", &silence());
    for (name, value) in [
        ("model", settings.model.clone()),
        ("max_completion_tokens", settings.max_tokens.to_string()),
        ("stream", settings.stream.to_string()),
        ("stream_include_usage", settings.include_usage.to_string()),
    ] {
        part(&format!("name=\"{name}\""), value.as_bytes());
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

/// A WAV file of one second of silence: 16 kHz, 16 bits, mono.
fn silence() -> Vec<u8> {
    const RATE: u32 = 16_000;
    let data = RATE * 2;
    let mut file = Vec::new();
    file.extend_from_slice(&[&b"RIFF"[..], &(36 + data).to_le_bytes(), b"WAVEfmt "].concat());
    for (value, bytes) in [(16, 4), (1, 2), (1, 2), (RATE, 4), (RATE * 2, 4), (2, 2), (16, 2)] {
        file.extend(value.to_le_bytes().iter().take(bytes));
    }
    file.extend_from_slice(b"data");
    file.extend_from_slice(&data.to_le_bytes());
    file.resize(file.len() + data as usize, 0);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_has_host_port_and_optional_path() {
        let target: Target = "http://127.0.0.1:8000".parse().unwrap();
        assert_eq!((target.address(), &target.path), (("127.0.0.1", 8000), &None));
        let target: Target = "http://[::1]:81/v1/completions?x=1".parse().unwrap();
        assert_eq!(target.address(), ("::1", 81));
        assert_eq!(target.api(&Settings::default()), Api::Completions);
        let request = target.request(&Settings::default()).unwrap();
        assert_eq!((request.uri().path(), request.headers()[HOST].as_bytes()), ("/v1/completions", &b"[::1]:81"[..]));
    }

    #[test]
    fn non_plain_http_target_is_rejected() {
        for text in ["", "127.0.0.1:8000", "https://host:1", "http://", "ftp://x"] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn silence_wav_header_matches_its_length() {
        let file = silence();
        assert_eq!(&file[..4], b"RIFF");
        assert_eq!(u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize, file.len() - 8);
        assert_eq!(&file[36..40], b"data");
        assert_eq!(file.len(), 44 + 32_000);
    }
}
