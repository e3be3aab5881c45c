//! How events are delimited in a body.

mod multipart;
mod sse;

use memchr::memchr;
pub(crate) use multipart::Multipart;

pub(crate) use sse::{DoneMark, Verdict};
pub use sse::{Piece, SseFramer};

/// How events are delimited in a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events (WHATWG HTML, section 9.2).
    Sse,
    /// One JSON text.
    Json,
    /// One JSON text per message, delimited by the transport (WebSocket): see `ResponseDecoder::end_message`.
    Messages,
    /// One JSON text per line.
    Ndjson,
    /// Protobuf messages of gRPC, also delimited by the transport.
    Grpc,
    /// The plain text of the response: transcriptions requested with `response_format` `text`, `srt` or `vtt` (SGLang
    /// 0.5, OpenAI).
    Text,
}

/// The media types of each framing. JSON lines have no registered type: Ollama 0.17 and SGLang 0.5 send
/// `application/x-ndjson`, DJL Serving sends `application/jsonlines`.
const TYPES: [(&[u8], Framing); 12] = [
    (b"text/event-stream", Framing::Sse),
    (b"application/json", Framing::Json),
    (b"application/x-ndjson", Framing::Ndjson),
    (b"application/ndjson", Framing::Ndjson),
    (b"application/jsonl", Framing::Ndjson),
    (b"application/jsonlines", Framing::Ndjson),
    (b"application/x-jsonlines", Framing::Ndjson),
    (b"text/plain", Framing::Text),
    (b"text/vtt", Framing::Text),
    (b"application/x-subrip", Framing::Text),
    (b"application/grpc", Framing::Grpc),
    (b"application/grpc+proto", Framing::Grpc),
];

impl Framing {
    /// True if the body is a sequence of events; false for a single text.
    pub fn is_stream(self) -> bool {
        !matches!(self, Framing::Json | Framing::Text)
    }

    /// The framing of a body by the first byte that is not white space. A missing or wrong `content-type` does not
    /// prevent clients from reading the body, so the declared framing is kept only if it permits this byte. A stream of
    /// events begins with a field (`data`, `event`, `id`, `retry`) or a comment.
    pub(crate) fn of_body(self, first: u8) -> Framing {
        match (self, first) {
            (Framing::Ndjson, b'{' | b'[') => Framing::Ndjson,
            (Framing::Sse | Framing::Json | Framing::Text, b'{' | b'[') => Framing::Json,
            (Framing::Json | Framing::Ndjson | Framing::Text, b'd' | b'e' | b'i' | b'r' | b':') => Framing::Sse,
            (declared, _) => declared,
        }
    }

    /// The framing of this `content-type`, ignoring case and parameters. `None` if not supported.
    pub fn of_content_type(value: &[u8]) -> Option<Framing> {
        let essence = essence(value)?;
        if let Some((_, framing)) = TYPES.iter().find(|(name, _)| essence.eq_ignore_ascii_case(name)) {
            return Some(*framing);
        }
        let (kind, suffix) = essence.split_at_checked(essence.len().checked_sub(b"+json".len())?)?;
        // gRPC may carry formats other than protobuf: `application/grpc+json`.
        let is_json = !kind.is_empty()
            && suffix.eq_ignore_ascii_case(b"+json")
            && !kind.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc"));
        is_json.then_some(Framing::Json)
    }
}

/// Maximum bytes of a content type that are parsed. With header compression, a client sends a long value with one byte.
const CONTENT_TYPE_BYTES: usize = 1024;

/// The media type in a content type, without parameters; `None` if it is too long.
fn essence(value: &[u8]) -> Option<&[u8]> {
    let start = value.get(..CONTENT_TYPE_BYTES).unwrap_or(value);
    let end = memchr(b';', start).or((start.len() == value.len()).then_some(value.len()))?;
    start.get(..end).map(<[u8]>::trim_ascii)
}

/// Splits JSON lines (<https://github.com/ndjson/ndjson-spec>), used by Ollama's own routes and SGLang's copy of them.
/// Removes the next piece (part of a line, or its end) from `bytes` and returns it; `None` if `bytes` is empty. Input
/// may be split at any byte.
///
/// A carriage return before the line feed is valid and returned with the line, because JSON treats it as white space.
/// Empty lines yield no event.
pub fn next_piece<'a>(bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
    let all = *bytes;
    if let Some(rest) = all.strip_prefix(b"\n") {
        *bytes = rest;
        return Some(Piece::End);
    }
    let (line, rest) = all.split_at_checked(memchr(b'\n', all).unwrap_or(all.len()))?;
    *bytes = rest;
    (!line.is_empty()).then_some(Piece::Part(line))
}

/// The signature of a WebVTT file (W3C WebVTT, section 4.1), present even in a file without text.
const SIGNATURE: &[u8] = b"WEBVTT";

/// Detects whether a plain-text response contains any words. Input may be split at any byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlainText {
    /// Bytes of the signature matched so far.
    signature: u8,
    begun: bool,
    has_words: bool,
}

impl PlainText {
    /// Processes the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.has_words {
            return;
        }
        let mut rest = bytes;
        while let (false, Some((byte, after))) = (self.begun, rest.split_first()) {
            if SIGNATURE.get(usize::from(self.signature)) != Some(byte) {
                self.begun = true;
                self.has_words = self.is_signature_cut();
            } else {
                self.signature += 1;
                rest = after;
            }
        }
        self.has_words |= rest.iter().any(|byte| !byte.is_ascii_whitespace());
    }

    /// True if the body contains a word. Call this at the end of the body.
    pub(crate) fn has_words(&self) -> bool {
        self.has_words || self.is_signature_cut()
    }

    /// True if only a part of the signature was matched. The part then counts as a word.
    fn is_signature_cut(&self) -> bool {
        (1..SIGNATURE.len()).contains(&usize::from(self.signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_start_of_a_content_type_is_parsed() {
        let with = |bytes: usize| format!("text/event-stream;{}", " ".repeat(bytes)).into_bytes();
        assert_eq!(Framing::of_content_type(&with(100_000)), Some(Framing::Sse));
        let spaced = |bytes: usize| format!("{}text/event-stream", " ".repeat(bytes)).into_bytes();
        assert_eq!(Framing::of_content_type(&spaced(CONTENT_TYPE_BYTES - 17)), Some(Framing::Sse));
        assert_eq!(Framing::of_content_type(&spaced(CONTENT_TYPE_BYTES - 16)), None);
        let form = |parameters: usize| format!("multipart/form-data{}; boundary=b", "; a=b".repeat(parameters));
        assert!(Multipart::of_content_type(form(100).as_bytes()).is_some());
        assert!(Multipart::of_content_type(form(10_000).as_bytes()).is_none());
    }

    #[test]
    fn words_are_detected_at_every_split() {
        for (body, has_words) in [
            ("", false),
            ("\n \r\n", false),
            ("Hello.", true),
            ("\nWEBVTT", true),
            ("WEB", true),
            ("WEBER", true),
            ("WEBVTT\n\n", false),
            ("WEBVTT\n\n00:00.000 --> 00:01.000\nHello.\n", true),
            ("1\n00:00:00,000 --> 00:00:01,000\nHello.\n", true),
        ] {
            for place in 0..=body.len() {
                let mut text = PlainText::default();
                let (first, second) = body.split_at(place);
                text.feed(first.as_bytes());
                text.feed(second.as_bytes());
                assert_eq!(text.has_words(), has_words, "{body:?} split at {place}");
            }
        }
    }
}
