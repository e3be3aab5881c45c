//! Anthropic Messages as vLLM 0.32.0 writes them (recordings `messages-*`): usage in the first and in the
//! second-to-last event, where the input tokens exclude cached ones; no `[DONE]`.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::DEAD;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::dialect::Whole;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;
use crate::server::job::Job;

/// One message.
#[derive(Debug)]
pub(crate) struct Messages {
    context: Context,
}

impl Messages {
    pub(crate) fn new(context: Context) -> Messages {
        Messages { context }
    }

    fn event(&self, out: &mut Chunks, kind: &str, members: &str) {
        out.chunk(|event| put!(event, "event: {kind}\ndata: {{\"type\":\"{kind}\"{members}}}\n\n"));
    }
}

/// The final usage; cached tokens are reported separately.
fn usage(job: &Job, generated: u64) -> String {
    let (input, cached) = (job.prompt_tokens - job.cached_tokens, job.cached_tokens);
    let cached = match cached {
        0 => String::new(),
        _ => format!(r#","cache_read_input_tokens":{cached},"cache_creation_input_tokens":0"#),
    };
    format!(r#"{{"input_tokens":{input},"output_tokens":{generated}{cached}}}"#)
}

fn stop_reason(finish: Finish) -> &'static str {
    if finish == Finish::Length { "max_tokens" } else { "end_turn" }
}

impl Dialect for Messages {
    fn begin(&mut self, out: &mut Chunks, _: &Times) {
        let Context { job, identity, .. } = &self.context;
        let (id, model, input) = (&identity.id, json_text(&job.model), job.prompt_tokens);
        let message = format!(
            r#","message":{{"id":"chatcmpl-{id}","type":"message","role":"assistant","content":[],"model":{model},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{input},"output_tokens":0}}}}"#
        );
        self.event(out, "message_start", &message);
        self.event(out, "content_block_start", r#","content_block":{"type":"text","text":""},"index":0"#);
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        if !piece.text.is_empty() {
            let text = json_text(&piece.text);
            let delta = format!(r#","delta":{{"type":"text_delta","text":{text}}},"index":0"#);
            self.event(out, "content_block_delta", &delta);
        }
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        let (reason, usage) = (stop_reason(summary.finish), usage(&self.context.job, summary.generated));
        self.event(out, "content_block_stop", r#","index":0"#);
        let delta = format!(r#","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{usage}"#);
        self.event(out, "message_delta", &delta);
        if marked {
            self.event(out, "message_stop", "");
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        self.event(out, "error", &format!(r#","error":{{"type":"api_error","message":"{DEAD}"}}"#));
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"event: content_block_delta\ndata: {\"type\":\n\n"));
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        let Context { job, identity, .. } = &self.context;
        let text = json_text(choices.first().map_or("", |choice| choice.text.as_str()));
        let (id, model, reason) = (&identity.id, json_text(&job.model), stop_reason(summary.finish));
        let usage = usage(job, summary.generated);
        format!(
            r#"{{"id":"chatcmpl-{id}","type":"message","role":"assistant","content":[{{"type":"text","text":{text}}}],"model":{model},"stop_reason":"{reason}","usage":{usage}}}"#
        )
        .into()
    }
}
