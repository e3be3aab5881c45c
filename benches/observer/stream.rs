//! A stream for the bench: its opening reads, and its token events, one per read.

use std::fs;
use std::path::Path;

use tokometer::replay::Recording;

/// A recording (`ENGINE/CASE`) or a request written from an engine's source, and a text that occurs once in each token
/// event.
pub(crate) const CASES: [(&str, &str); 20] = [
    ("vllm-0.32.0/chat-stream-usage", r#""delta":"#),
    ("vllm-0.32.0/chat-stream-continuous-usage", r#""delta":"#),
    ("vllm-0.32.0-rustfe/chat-stream-usage", r#""delta":"#),
    ("sglang-0.5.23/chat-stream-usage", r#""delta":"#),
    ("llamacpp-0.5.0-dev/chat-stream-usage", r#""delta":"#),
    ("vllm-0.32.0/completions-stream-usage", r#""text":"#),
    ("vllm-0.32.0/responses-stream", "event: response.output_text.delta"),
    ("llamacpp-0.5.0-dev/responses-stream", "event: response.output_text.delta"),
    ("vllm-0.32.0/messages-stream", "event: content_block_delta"),
    ("llamacpp-0.5.0-dev/messages-stream", "event: content_block_delta"),
    ("sglang-0.5.23/native-generate-stream", r#""meta_info":"#),
    ("llamacpp-0.5.0-dev/native-completion-stream", r#""stop":false"#),
    ("ollama-0.17.4/api-chat-stream", r#""done":false"#),
    ("ollama-0.17.4/api-generate-stream", r#""done":false"#),
    ("tgi-3.3.6/generate-stream", r#""generated_text":null"#),
    ("triton-2.73/generate-stream", r#""text_output":"#),
    ("vllm-0.33.0/inference-generate-stream", r#""token_ids":"#),
    ("vllm-0.33.0/cohere-chat-stream", "content-delta"),
    ("vllm-0.33.0/transcription-stream-two-pieces", r#""delta":"#),
    // Every event contains the whole response so far, so this measures the cost of a long response.
    ("sglang-0.5.23/parsers-native-generate-interval3", r#""meta_info":"#),
];

/// Minimum token events per pass, so that the cost of opening the stream is negligible.
const EVENTS: usize = 2000;

/// A request, and its response up to the last token.
pub(crate) struct Stream {
    pub(crate) request: Vec<u8>,
    /// The response headers, and everything up to the first token.
    pub(crate) opening: Vec<Vec<u8>>,
    pub(crate) events: Vec<Vec<u8>>,
}

impl Stream {
    /// The stream of a case.
    pub(crate) fn of_case(case: &str, token: &str) -> Stream {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let recorded = fixtures.join(format!("captures/{case}.jsonl"));
        if recorded.exists() {
            Stream::recorded(&Recording::read(&recorded).expect("a recording"), token)
        } else {
            Stream::written(&fixtures.join(format!("written/{case}.http")), token)
        }
    }

    /// The stream of a recording. Its token events are the reads that contain `token` exactly once.
    fn recorded(recording: &Recording, token: &str) -> Stream {
        let reads = recording.reads.iter().map(|(_, bytes)| bytes.clone()).collect();
        Stream::of(recording.request.clone(), reads, token)
    }

    /// The stream of a request and response written by hand (`tests/fixtures/written/README.md`).
    fn written(path: &Path, token: &str) -> Stream {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, rest) = text.split_once(">>>\n").expect("a request");
        let mut sections = rest.split("<<< ");
        let (head, body) = sections.next().and_then(|request| request.split_once("\n\n")).expect("headers");
        let body = body.trim_end();
        let request = format!("{}\r\ncontent-length: {}\r\n\r\n{body}", head.replace('\n', "\r\n"), body.len());
        let mut reads = Vec::new();
        for section in sections {
            let (_, bytes) = section.split_once('\n').expect("a time");
            let events = match bytes.strip_prefix("HTTP/1.1") {
                Some(_) => {
                    let (head, events) = bytes.split_once("\n\n").expect("headers");
                    reads.push(format!("{}\r\n\r\n", head.replace('\n', "\r\n")).into_bytes());
                    events
                }
                None => bytes,
            };
            reads.extend(events.split_inclusive("\n\n").filter(|event| !event.trim().is_empty()).map(chunk));
        }
        Stream::of(request.into_bytes(), reads, token)
    }

    fn of(request: Vec<u8>, reads: Vec<Vec<u8>>, token: &str) -> Stream {
        let tokens = |read: &[u8]| String::from_utf8_lossy(read).matches(token).count();
        let first = reads.iter().position(|read| tokens(read) > 0).expect("a token");
        // The first match may be only a role, so the opening also includes the next read if the stream is long enough.
        let opened = if reads.len() > 12 { first + 2 } else { first + 1 };
        let (opening, rest) = reads.split_at(opened);
        let is_token = |read: &&Vec<u8>| tokens(read) == 1 && !read.windows(6).any(|bytes| bytes == b"[DONE]");
        let mut events: Vec<Vec<u8>> = rest.iter().filter(is_token).cloned().collect();
        // Drop the last two events, which may be the finish reason and the usage instead of tokens.
        events.truncate(events.len().saturating_sub(2).max(1));
        let is_running = ["completion_tokens\":", "tokens_predicted\":"]
            .iter()
            .any(|count| events.iter().all(|event| String::from_utf8_lossy(event).contains(count)));
        assert!(!events.is_empty(), "no event with {token}");
        if !is_running {
            events = events.iter().cycle().take(EVENTS.max(events.len())).cloned().collect();
        }
        Stream { request, opening: opening.to_vec(), events }
    }

    /// The same response over HTTP/2 with prior knowledge (RFC 9113): one DATA frame per chunk.
    pub(crate) fn over_http2(&self) -> Stream {
        let (_, body) = split(&self.request);
        let request = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(SETTINGS, 0, 0, &[]),
            frame(
                HEADERS,
                END_HEADERS,
                1,
                &[
                    fields(&[(":method", "POST"), (":scheme", "http"), (":path", "/v1/chat/completions")]),
                    fields(&[("content-type", "application/json")]),
                ]
                .concat(),
            ),
            frame(DATA, END_STREAM, 1, body),
        ];
        let head = fields(&[(":status", "200"), ("content-type", "text/event-stream"), ("server", "uvicorn")]);
        let mut opening = vec![frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, &head)];
        opening.extend(self.opening.iter().flat_map(|read| payloads(read)));
        let events = self.events.iter().flat_map(|read| payloads(read)).collect();
        Stream { request: request.concat(), opening, events }
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Literal fields without indexing, with plain strings (RFC 7541, section 6.2.2).
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], string(name), string(value)].concat()).collect()
}

/// One DATA frame per chunk of the read; none if the read does not start with a chunk.
fn payloads(read: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = read;
    let mut frames = Vec::new();
    while let Some(end) = rest.windows(2).position(|bytes| bytes == b"\r\n")
        && let Some(size) = std::str::from_utf8(&rest[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok())
        && let Some(payload) = rest.get(end + 2..end + 2 + size)
    {
        frames.push(frame(DATA, 0, 1, payload));
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    frames
}

fn split(message: &[u8]) -> (&[u8], &[u8]) {
    let end = message.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("headers") + 4;
    message.split_at(end)
}

fn chunk(event: &str) -> Vec<u8> {
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}
