//! How events lie in a body.

mod multipart;
mod ndjson;
mod sse;
mod text;

pub(crate) use multipart::Multipart;
pub(crate) use ndjson::next_piece;
pub(crate) use sse::Piece;
pub(crate) use sse::SseFramer;
pub(crate) use text::PlainText;

/// How events lie in a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events (WHATWG HTML, section 9.2).
    Sse,
    /// One JSON text.
    Json,
    /// Messages of one JSON text each, whose ends are told from outside (WebSocket): see `ResponseDecoder::end_message`.
    Messages,
    /// One JSON text per line.
    Ndjson,
    /// The protobuf messages of gRPC, whose ends are told from outside too.
    Grpc,
    /// The text of the answer and nothing else: transcriptions whose request asks for one (`response_format` `text`, `srt`,
    /// `vtt`; SGLang 0.5, OpenAI).
    Text,
}

/// What a text is called that may be an answer's: plain, WebVTT, SubRip.
const TEXTS: [&[u8]; 3] = [b"text/plain", b"text/vtt", b"application/x-subrip"];

/// What a stream of lines is called: the first by Ollama 0.17 and SGLang 0.5; none of them is registered.
const NDJSON: [&[u8]; 3] = [b"application/x-ndjson", b"application/ndjson", b"application/jsonl"];

impl Framing {
    /// True where events come one after the other; false for one text at its end.
    pub fn is_stream(self) -> bool {
        !matches!(self, Framing::Json | Framing::Text)
    }

    /// The framing that this `content-type` names, whatever its case and parameters. `None`: one that is not read.
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
        // gRPC may carry other things than protobuf, `application/grpc+json`.
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
