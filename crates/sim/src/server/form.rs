//! Parses multipart forms with a file (RFC 7578), as far as audio transcription needs it.

use crate::server::job::Body;
use crate::server::job::Refusal;
use crate::server::job::StreamOptions;
use crate::server::job::bad_request;
use crate::server::prompt::Prompt;

/// Bytes per second of audio: 16 kHz, 16 bits, mono.
const SECOND_BYTES: usize = 32_000;

/// Tokens in Whisper's prompt: start, language, task, no timestamps.
const PROMPT_TOKENS: u64 = 4;

/// Reads the fields that the server uses.
pub(crate) fn read(body: &[u8], content_type: &str) -> Result<Body, Refusal> {
    let boundary = content_type.split(';').find_map(|part| part.trim().strip_prefix("boundary="));
    let Some(boundary) = boundary.map(|boundary| boundary.trim_matches('"')) else {
        return Err(bad_request(None, "the body is not a form: Content-Type has no boundary".to_owned()));
    };
    let mut asked = Body::default();
    let mut options = StreamOptions::default();
    for part in parts(body, boundary) {
        let Some(at) = memchr::memmem::find(part, b"\r\n\r\n") else { continue };
        let (head, value) = part.split_at(at);
        let value = value.get(4..).unwrap_or_default();
        let head = String::from_utf8_lossy(head);
        let name = head.split("name=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let text = || String::from_utf8_lossy(value).into_owned();
        let yes = || matches!(text().to_ascii_lowercase().as_str(), "true" | "1");
        match name {
            "file" => {
                asked.input = Some(audio(value.len()));
            }
            "model" => asked.model = Some(text()),
            "stream" => asked.stream = Some(yes()),
            "stream_include_usage" => options.include_usage = Some(yes()),
            "stream_continuous_usage_stats" => options.continuous_usage_stats = yes(),
            "max_completion_tokens" => asked.max_completion_tokens = text().parse().ok(),
            _ => {}
        }
    }
    asked.stream_options = Some(options);
    Ok(asked)
}

/// The prompt size for this many bytes of audio.
pub(crate) fn audio(bytes: usize) -> Prompt {
    Prompt::audio(PROMPT_TOKENS, bytes.div_ceil(SECOND_BYTES).max(1) as u64)
}

/// The parts between the boundaries, each without the line end before the next boundary.
fn parts<'a>(body: &'a [u8], boundary: &str) -> Vec<&'a [u8]> {
    let mark = format!("--{boundary}");
    let starts: Vec<usize> = memchr::memmem::find_iter(body, mark.as_bytes()).collect();
    let ends = starts.iter().skip(1);
    starts.iter().zip(ends).filter_map(|(start, end)| body.get(start + mark.len() + 2..end.saturating_sub(2))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_fields_and_file_length_are_read() {
        let mut body =
            b"--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--X\r\nContent-Disposition: \
            form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n"
                .to_vec();
        body.resize(body.len() + 2 * SECOND_BYTES, 0);
        body.extend_from_slice(b"\r\n--X\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\nTrue\r\n--X--\r\n");
        let asked = read(&body, "multipart/form-data; boundary=X").unwrap();
        assert_eq!((asked.model.as_deref(), asked.stream), (Some("tiny"), Some(true)));
        let input = asked.input.unwrap();
        assert_eq!((input.tokens(), input.prompts()), (PROMPT_TOKENS, 2));
        assert_eq!(read(&body, "application/json").unwrap_err().status, 400);
    }
}
