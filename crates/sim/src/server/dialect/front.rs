//! Response headers and body framing, as each engine's HTTP server writes them.

use std::io::Write;

use crate::server::dialect::values::Scope;
use crate::server::dialect::{Context, Dialect, Refusal};
use crate::server::generation::Job;
use crate::server::settings::{Imitation, Settings};

/// An engine's HTTP server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    server: &'static Dialect,
    /// Whether the connection closes after this response.
    close: bool,
}

impl Front {
    pub(crate) fn new(engine: Imitation, close: bool) -> Front {
        Front { server: Dialect::named(&format!("server_{engine}")), close }
    }

    /// When the engine sends the headers of a stream: `at_once`, before the request is queued; `scheduled`; or in one
    /// write with the `first_token`.
    pub(crate) fn headers_at(self, dialect: &Dialect) -> &'static str {
        dialect.field("headers").or(self.server.field("headers")).unwrap_or_default()
    }

    /// The headers of a stream.
    pub(crate) fn stream(self, dialect: &Dialect) -> Vec<u8> {
        let lines = dialect.field("media") == Some("lines");
        let media = if lines { "application/x-ndjson" } else { "text/event-stream" };
        self.head("stream", &Scope { media, ..Scope::default() })
    }

    /// A non-streamed response; `extra` is header lines.
    pub(crate) fn whole(self, status: u16, media: &str, extra: &str, body: &str) -> Vec<u8> {
        let close = self.close || self.closes_after(status);
        let extra = if extra.is_empty() { String::new() } else { format!("{extra}\n") };
        let scope = Scope { status, media, length: body.len(), extra: &extra, ..Scope::default() };
        let mut response = Front { close, ..self }.head("plain", &scope);
        response.extend_from_slice(body.as_bytes());
        response
    }

    fn head(self, section: &str, scope: &Scope<'_>) -> Vec<u8> {
        let head = self.server.render(section, &Scope { close: self.close, ..*scope });
        format!("{}\r\n\r\n", head.trim_end_matches('\n').replace('\n', "\r\n")).into_bytes()
    }

    /// A non-streamed JSON response.
    pub(crate) fn json(self, status: u16, extra: &str, body: &str) -> Vec<u8> {
        self.whole(status, "application/json", extra, body)
    }

    /// An error response in the format of an API.
    pub(crate) fn refusal(self, dialect: &Dialect, refusal: &Refusal) -> Vec<u8> {
        let Refusal { status, kind, param, ref message } = *refusal;
        let scope = Scope { status, kind, param, message, ..Scope::default() };
        let envelope = if dialect.has("refusal") { dialect } else { self.server };
        self.json(status, "", &envelope.render("refusal", &scope))
    }

    /// Whether the connection closes after a response with this status.
    pub(crate) fn closes_after(self, status: u16) -> bool {
        self.close || (self.server.is("closes") && status >= 400)
    }

    /// Whether the connection closes after a stream, even if the headers announce keep-alive.
    pub(crate) fn closes_after_stream(self) -> bool {
        self.close || self.server.is("closes")
    }

    /// The list of models.
    pub(crate) fn models(self, settings: &Settings) -> Vec<u8> {
        let job = Job { model: settings.model.clone(), max_tokens: settings.max_model_len, ..Job::default() };
        let context = Context::new(job, String::new(), settings);
        self.json(200, "", &self.server.render("models", &Scope { context: &context, ..Scope::default() }))
    }
}

/// Rendered chunks of a streamed body, not sent yet.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) bytes: Vec<u8>,
    /// Writes chunk sizes in uppercase hexadecimal, as hyper does.
    uppercase: bool,
}

impl Chunks {
    pub(crate) fn new(front: Front) -> Chunks {
        Chunks { bytes: Vec::new(), uppercase: front.server.is("uppercase_sizes") }
    }

    /// Appends one chunk.
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        let length = chunk.len();
        // Writing to a `Vec` cannot fail.
        let written = match self.uppercase {
            true => write!(self.bytes, "{length:X}\r\n"),
            false => write!(self.bytes, "{length:x}\r\n"),
        };
        debug_assert!(written.is_ok());
        self.bytes.extend_from_slice(chunk);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends the terminating chunk.
    pub(crate) fn terminate(&mut self) {
        self.bytes.extend_from_slice(b"0\r\n\r\n");
    }
}
