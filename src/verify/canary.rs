//! Canary requests, and what is measured from their responses.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::client::{Event, Recording, Target};
use crate::verify::settings::{Api, Settings};

/// A path that exists on no server.
pub(super) const UNKNOWN_PATH: &str = "/tokometer-verify/no-such-path";

/// A body that no server can parse.
pub(super) const INVALID_JSON: Bytes = Bytes::from_static(b"{\"model\":");

/// Prompt of every canary. A simple task with greedy sampling: most engines return the same text each time.
const PROMPT: &str = "Count from one to fifty in words.";

/// A GET request with the user's headers.
pub(super) fn get(settings: &Settings, to: &Target, path: &str) -> Request<Full<Bytes>> {
    to.request(Method::GET, path, headers(settings), Bytes::new())
}

/// A POST request to the API.
pub(super) fn post(settings: &Settings, to: &Target, body: Bytes) -> Request<Full<Bytes>> {
    let path = match settings.api {
        Api::Chat => "/v1/chat/completions",
        Api::Completions => "/v1/completions",
    };
    let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    to.request(Method::POST, path, headers(settings).chain([json]), body)
}

/// Direct and proxied requests have the same headers in the same order. Only `Host` differs: it names the target.
fn headers(settings: &Settings) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let own = [(header::USER_AGENT, "tokometer-verify"), (header::ACCEPT, "*/*")];
    let own = own.map(|(name, value)| (name, HeaderValue::from_static(value)));
    own.into_iter().chain(settings.headers.iter().cloned())
}

/// Kinds of canaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stream with usage at its end.
    Stream,
    /// Stream whose request does not ask for usage, like the requests of many clients.
    StreamWithoutUsage,
    /// Non-streamed response.
    Whole,
}

/// The request body of a canary.
pub(super) fn body(settings: &Settings, model: &str, kind: Kind) -> Bytes {
    let mut body = json!({
        "model": model,
        "max_tokens": settings.max_tokens,
        "temperature": 0,
        "stream": kind != Kind::Whole,
    });
    match settings.api {
        Api::Chat => body["messages"] = json!([{"role": "user", "content": PROMPT}]),
        Api::Completions => body["prompt"] = PROMPT.into(),
    }
    if kind == Kind::Stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body.to_string().into()
}

/// Response to a streamed canary.
#[derive(Debug)]
pub(super) struct Canary {
    pub(super) recording: Recording,
    /// Time to the first byte, since the request was sent.
    pub(super) first_byte: Duration,
    /// Time to the first event with text, reasoning or a tool call.
    pub(super) first_token: Option<Duration>,
    /// Gaps between tokens. If a read contains several tokens, each gets an equal share of the gap before the read.
    /// Thus merging two events into one read adds no time.
    pub(super) gaps: Vec<Duration>,
    /// Output tokens from the engine's `usage`.
    pub(super) usage: Option<u64>,
    /// Output tokens from an engine-specific counter (llama.cpp: `timings.predicted_n`).
    pub(super) native: Option<u64>,
    /// Error event in the stream.
    pub(super) error: Option<String>,
}

impl Canary {
    pub(super) fn of(recording: Recording) -> Canary {
        let mut canary = Canary {
            first_byte: recording.first_byte(),
            first_token: None,
            gaps: Vec::new(),
            usage: None,
            native: None,
            error: None,
            recording,
        };
        // Time of each read with tokens, and its number of events with tokens.
        let mut reads: Vec<(Duration, u32)> = Vec::new();
        for Event { data, at } in canary.recording.events() {
            let Ok(event) = serde_json::from_slice::<Value>(data) else { continue };
            let count = |at: &str| event.pointer(at).and_then(Value::as_u64);
            canary.usage = count("/usage/completion_tokens").or(canary.usage);
            canary.native = count("/timings/predicted_n").or(canary.native);
            if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
                canary.error = Some(excerpt(error.to_string().as_bytes()));
            }
            if has_output(&event) {
                canary.first_token.get_or_insert(at);
                match reads.last_mut().filter(|(last, _)| *last == at) {
                    Some((_, events)) => *events += 1,
                    None => reads.push((at, 1)),
                }
            }
        }
        for (before, read) in reads.iter().zip(reads.iter().skip(1)) {
            let gap = read.0.saturating_sub(before.0) / read.1;
            canary.gaps.extend(std::iter::repeat_n(gap, read.1 as usize));
        }
        canary
    }
}

/// JSON pointers to text, reasoning or a tool call in a choice.
const OUTPUT: [&str; 5] =
    ["/text", "/delta/content", "/delta/reasoning", "/delta/reasoning_content", "/delta/tool_calls"];

/// Whether an event contains text, reasoning or a tool call.
fn has_output(event: &Value) -> bool {
    let is_filled = |value: &Value| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    let choices = event.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    choices.iter().any(|choice| OUTPUT.iter().any(|at| choice.pointer(at).is_some_and(is_filled)))
}

/// The first 160 characters of a text, with control characters replaced by spaces.
pub(super) fn excerpt(text: &[u8]) -> String {
    const MAX: usize = 160;
    let text = String::from_utf8_lossy(text);
    let text = text.trim();
    let mut shown: String = text.chars().take(MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::client::recorded;

    #[test]
    fn canary_measures_times_and_tokens() {
        let chunk = |content: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n");
        let (two, last) =
            (chunk("b") + &chunk("c"), chunk("d") + "data: {\"choices\":[],\"usage\":{\"completion_tokens\":4}}\n\n");
        let parts = [(&*chunk(""), 3), (&chunk("a"), 10), (&two, 14), (&last, 20), ("data: [DONE]\n\n", 21)];
        let canary = Canary::of(recorded("", &parts));
        let ms = Duration::from_millis;
        assert_eq!((canary.first_byte, canary.first_token, canary.usage), (ms(1), Some(ms(10)), Some(4)));
        assert_eq!((canary.gaps, canary.native, canary.error), (vec![ms(2), ms(2), ms(6)], None, None));
    }

    #[test]
    fn error_event_is_reported() {
        let stream = "data: {\"error\":{\"message\":\"a\\nb\"}}\n\n";
        assert_eq!(Canary::of(recorded("", &[(stream, 1)])).error.unwrap(), r#"{"message":"a\nb"}"#);
        assert_eq!(excerpt(format!(" a\n{} ", "x".repeat(200)).as_bytes()).len(), 163);
    }

    #[test]
    fn requests_differ_only_in_the_host_header() {
        let words = "tokometer verify --relay http://a:1 --upstream http://b:2 --header a:b";
        let Ok(Command::Verify(settings)) = Cli::parse_words(words.split(' ')).map(|cli| cli.command) else {
            panic!("the command is valid")
        };
        let body = body(&settings, "m", Kind::Stream);
        assert!(body.ends_with(b"\"stream_options\":{\"include_usage\":true},\"temperature\":0}"), "{body:?}");
        let text = |to: &Target| format!("{:?}", post(&settings, to, body.clone()));
        assert_eq!(text(&settings.relay).replace("a:1", "b:2"), text(&settings.upstream));
        assert!(text(&settings.relay).contains("\"a\": \"b\""), "{}", text(&settings.relay));
    }
}
