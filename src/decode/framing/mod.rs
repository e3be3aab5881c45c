//! How events lie in a body.

mod grpc;
mod multipart;
mod ndjson;
mod sse;

pub(crate) use grpc::GrpcFramer;
pub(crate) use multipart::Multipart;
pub(crate) use ndjson::next_piece;
pub(crate) use sse::Piece;
pub(crate) use sse::SseFramer;

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
    /// The length-prefixed protobuf messages of gRPC.
    Grpc,
}

/// What a stream of lines is called: the first by Ollama 0.17 and SGLang 0.5; none of them is registered.
const NDJSON: [&[u8]; 3] = [b"application/x-ndjson", b"application/ndjson", b"application/jsonl"];

impl Framing {
    /// True where events come one after the other; false for one text at its end.
    pub fn is_stream(self) -> bool {
        self != Framing::Json
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
