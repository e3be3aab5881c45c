//! How events are delimited in a body.

mod multipart;
mod ndjson;
mod sse;
mod text;

pub(crate) use multipart::Multipart;
pub(crate) use ndjson::next_piece;
pub(crate) use sse::Piece;
pub(crate) use sse::SseFramer;
pub(crate) use text::PlainText;

/// How events are delimited in a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events (WHATWG HTML, section 9.2).
    Sse,
    /// One JSON text.
    Json,
    /// Messages of one JSON text each, delimited by the transport (WebSocket): see `ResponseDecoder::end_message`.
    Messages,
    /// One JSON text per line.
    Ndjson,
    /// The protobuf messages of gRPC, also delimited by the transport.
    Grpc,
    /// The plain text of the response: transcriptions requested with `response_format` `text`, `srt` or `vtt` (SGLang
    /// 0.5, OpenAI).
    Text,
}

/// Media types of text that may be a response: plain, WebVTT, SubRip.
const TEXTS: [&[u8]; 3] = [b"text/plain", b"text/vtt", b"application/x-subrip"];

/// Media types of JSON lines: Ollama 0.17 and SGLang 0.5 send the first. None of them is registered.
const NDJSON: [&[u8]; 3] = [b"application/x-ndjson", b"application/ndjson", b"application/jsonl"];

impl Framing {
    /// True where the body is a sequence of events; false for a single text.
    pub fn is_stream(self) -> bool {
        !matches!(self, Framing::Json | Framing::Text)
    }

    /// The framing of this `content-type`, ignoring case and parameters. `None`: not supported.
    pub fn of_content_type(value: &[u8]) -> Option<Framing> {
        let essence = value.split(|byte| *byte == b';').next()?.trim_ascii();
        if essence.eq_ignore_ascii_case(b"text/event-stream") {
            return Some(Framing::Sse);
        }
        if NDJSON.iter().any(|name| essence.eq_ignore_ascii_case(name)) {
            return Some(Framing::Ndjson);
        }
        if TEXTS.iter().any(|name| essence.eq_ignore_ascii_case(name)) {
            return Some(Framing::Text);
        }
        // gRPC may carry other formats than protobuf: `application/grpc+json`.
        if essence.eq_ignore_ascii_case(b"application/grpc") || essence.eq_ignore_ascii_case(b"application/grpc+proto")
        {
            return Some(Framing::Grpc);
        }
        if essence.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc")) {
            return None;
        }
        let (start, suffix) = essence.split_at_checked(essence.len().saturating_sub(b"+json".len()))?;
        let is_json = essence.eq_ignore_ascii_case(b"application/json")
            || !start.is_empty() && suffix.eq_ignore_ascii_case(b"+json");
        is_json.then_some(Framing::Json)
    }
}
