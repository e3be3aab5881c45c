//! Response bodies in vLLM's format.

use std::io;
use std::io::Write as _;
use std::time::Duration;

/// Tokens per compressed stream.
pub(crate) const CODED_TOKENS: u64 = 12;

/// Words of the compressed streams, without a repeating pattern, so that they compress like real text.
const WORDS: [&str; 12] =
    ["Paris", " is", " the", " capital", " of", " France", ",", " a", " country", " in", " Western", " Europe."];

/// The content of a steady event: its number, and its send time in microseconds.
pub(crate) fn stamp(number: u64, at: Duration) -> String {
    format!("{number} {}", at.as_micros())
}

/// One event with one token.
pub(crate) fn event(model: &str, content: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"{model}\",\"choices\":\
         [{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    )
}

/// The end of a stream: a finish reason, the usage, and the mark.
pub(crate) fn end(model: &str, tokens: u64) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"{model}\",\"choices\":\
         [{{\"index\":0,\"delta\":{{}},\"logprobs\":null,\"finish_reason\":\"stop\"}}]}}\n\n\
         data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"{model}\",\"choices\":[],\
         \"usage\":{{\"prompt_tokens\":7,\"total_tokens\":{},\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n",
        tokens.saturating_add(7)
    )
}

/// A non-streamed response. Without `tokens`, it has neither choices nor usage, only the model's name.
pub(crate) fn whole(model: &str, tokens: Option<u64>) -> String {
    let Some(tokens) = tokens else {
        return format!("{{\"object\":\"chat.completion\",\"model\":\"{model}\",\"choices\":[]}}");
    };
    format!(
        "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"{model}\",\"choices\":[{{\"index\":0,\
         \"message\":{{\"role\":\"assistant\",\"content\":\"a\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":7,\
         \"total_tokens\":{},\"completion_tokens\":{tokens}}}}}",
        tokens.saturating_add(7)
    )
}

/// The model name of a compressed stream.
pub(crate) fn coded_model(coding: &str) -> String {
    format!("coded-{coding}")
}

/// A stream in this coding, flushed after each event like a real server's.
pub(crate) fn coded(coding: &str) -> io::Result<Vec<Vec<u8>>> {
    let model = coded_model(coding);
    let mut events: Vec<String> = WORDS.iter().map(|word| event(&model, word)).collect();
    events.push(end(&model, CODED_TOKENS));
    let mut pieces = Vec::new();
    macro_rules! flushed {
        ($encoder:expr, $buffer:ident => $out:expr, $finish:expr) => {{
            let mut $buffer = $encoder;
            for event in &events {
                $buffer.write_all(event.as_bytes())?;
                $buffer.flush()?;
                pieces.push(std::mem::take($out));
            }
            pieces.push($finish);
        }};
    }
    let level = flate2::Compression::default();
    match coding {
        "gzip" => {
            flushed!(flate2::write::GzEncoder::new(Vec::new(), level), encoder => encoder.get_mut(), encoder.finish()?);
        }
        "deflate" => {
            flushed!(flate2::write::ZlibEncoder::new(Vec::new(), level), encoder => encoder.get_mut(), encoder.finish()?);
        }
        "br" => {
            flushed!(brotli::CompressorWriter::new(Vec::new(), 4096, 4, 18), encoder => encoder.get_mut(), encoder.into_inner());
        }
        "zstd" => {
            flushed!(zstd::Encoder::new(Vec::new(), 3)?, encoder => encoder.get_mut(), encoder.finish()?);
        }
        other => return Err(io::Error::other(format!("unknown coding {other}"))),
    }
    Ok(pieces)
}
