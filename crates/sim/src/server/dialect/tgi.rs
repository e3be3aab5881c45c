//! TGI's native routes (3.3.6, from `router/src/lib.rs` and `server.rs`): one event per token regardless of the
//! engine's step, the whole text in the last one, details on request, no `[DONE]`; times only in the headers of
//! non-streamed responses.

use std::time::Duration;

use crate::server::api::Api;
use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Whole;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;
use crate::server::vocabulary::END_OF_TEXT;

/// One generation.
#[derive(Debug)]
pub(crate) struct Generate {
    context: Context,
    text: String,
    /// The last token: its event is held back until the stream ends.
    last: Option<(u64, String)>,
}

/// A token as JSON.
fn token(id: u32, text: &str) -> String {
    let special = id == END_OF_TEXT;
    let text = json_text(if special { "</s>" } else { text });
    format!(r#"{{"id":{id},"text":{text},"logprob":-0.5,"special":{special}}}"#)
}

fn reason(finish: Finish) -> &'static str {
    if finish == Finish::Length { "length" } else { "eos_token" }
}

impl Generate {
    pub(crate) fn new(context: Context) -> Generate {
        Generate { context, text: String::new(), last: None }
    }

    fn event(&self, out: &mut Chunks, index: u64, token: &str, text: Option<&str>, details: Option<&str>) {
        let (text, details) = (json_text(&text), details.unwrap_or("null"));
        out.chunk(|event| {
            put!(
                event,
                "data: {{\"index\":{index},\"token\":{token},\"generated_text\":{text},\"details\":{details}}}\n\n"
            );
        });
    }
}

impl Dialect for Generate {
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        self.text.push_str(&piece.text);
        let before = piece.generated - piece.tokens;
        for (index, (id, text)) in (before + 1..).zip(piece.each()) {
            let token = token(id, text);
            if piece.finish.is_some() && index == piece.generated {
                self.last = Some((index, token));
            } else {
                self.event(out, index, &token, None, None);
            }
        }
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        let Some((index, token)) = self.last.take() else { return };
        let details = format!(
            r#"{{"finish_reason":"{}","generated_tokens":{},"seed":null,"input_length":{}}}"#,
            reason(summary.finish),
            summary.generated,
            self.context.job.prompt_tokens
        );
        let details = self.context.job.details.then_some(details.as_str());
        match marked {
            true => self.event(out, index, &token, Some(&self.text), details),
            false => self.event(out, index, &token, None, None),
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        let error =
            r#"{"error":"Request failed during generation: Server error: out of memory","error_type":"generation"}"#;
        out.chunk(|event| put!(event, "data: {error}\n\n"));
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"index\":1,\"token\n\n"));
    }

    fn comment(&self) -> Option<&'static [u8]> {
        Some(b":\n\n")
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        let (job, times, generated) = (&self.context.job, summary.times, summary.generated);
        let text = choices.first().map_or("", |choice| choice.text.as_str());
        let details = match job.details {
            true => format!(
                r#","details":{{"finish_reason":"{}","generated_tokens":{generated},"seed":null,"prefill":[],"tokens":[]}}"#,
                reason(summary.finish)
            ),
            false => String::new(),
        };
        let body = format!(r#"{{"generated_text":{}{details}}}"#, json_text(text));
        let body = if job.api == Api::TgiCompat { format!("[{body}]") } else { body };
        let inference = times.prefill + times.decode;
        let headers = format!(
            "x-compute-type: cpu\r\nx-compute-time: {:?}\r\nx-compute-characters: {}\r\nx-total-time: \
             {}\r\nx-validation-time: 0\r\nx-queue-time: {}\r\nx-inference-time: {}\r\nx-time-per-token: \
             {}\r\nx-prompt-tokens: {}\r\nx-generated-tokens: {generated}\r\n",
            times.total().as_secs_f64(),
            text.len(),
            millis(times.total()),
            millis(times.queue),
            millis(inference),
            millis(inference / u32::try_from(generated.max(1)).unwrap_or(u32::MAX)),
            job.prompt_tokens,
        );
        Whole { headers, body }
    }
}

/// Whole milliseconds, as in TGI's headers.
fn millis(time: Duration) -> u128 {
    time.as_millis()
}
