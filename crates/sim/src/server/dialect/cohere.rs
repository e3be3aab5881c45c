//! Cohere's v2 chat as vLLM 0.33.0 serves it (`/cohere/v2/chat`): typed events without an `event:` line, usage in the
//! last one, followed by `[DONE]`.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::DEAD;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::dialect::Whole;
use crate::server::dialect::done;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One response.
#[derive(Debug)]
pub(crate) struct Chat {
    context: Context,
}

impl Chat {
    pub(crate) fn new(context: Context) -> Chat {
        Chat { context }
    }

    fn usage(&self, generated: u64) -> String {
        let input = self.context.job.prompt_tokens;
        let tokens = format!(r#"{{"input_tokens":{input},"output_tokens":{generated}}}"#);
        format!(r#"{{"billed_units":{tokens},"tokens":{tokens}}}"#)
    }
}

fn event(out: &mut Chunks, members: &str) {
    out.chunk(|event| put!(event, "data: {{\"type\":{members}}}\n\n"));
}

fn reason(finish: Finish) -> &'static str {
    if finish == Finish::Length { "MAX_TOKENS" } else { "COMPLETE" }
}

impl Dialect for Chat {
    fn begin(&mut self, out: &mut Chunks, _: &Times) {
        let id = &self.context.identity.id;
        let message = r#"{"message":{"role":"assistant","content":[],"tool_plan":"","tool_calls":[],"citations":[]}}"#;
        event(out, &format!(r#""message-start","id":"{id}","delta":{message}"#));
        event(out, r#""content-start","index":0,"delta":{"message":{"content":{"type":"text","text":""}}}"#);
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        if !piece.text.is_empty() {
            let text = json_text(&piece.text);
            event(out, &format!(r#""content-delta","index":0,"delta":{{"message":{{"content":{{"text":{text}}}}}}}"#));
        }
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        event(out, r#""content-end","index":0"#);
        if marked {
            let (reason, usage) = (reason(summary.finish), self.usage(summary.generated));
            event(out, &format!(r#""message-end","delta":{{"finish_reason":"{reason}","usage":{usage}}}"#));
            done(out);
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        event(out, &format!(r#""message-end","delta":{{"finish_reason":"ERROR","error":"{DEAD}"}}"#));
        done(out);
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"type\":\"content-\n\n"));
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        let text = json_text(choices.first().map_or("", |choice| choice.text.as_str()));
        let (id, reason) = (&self.context.identity.id, reason(summary.finish));
        let usage = self.usage(summary.generated);
        format!(
            r#"{{"id":"{id}","finish_reason":"{reason}","message":{{"role":"assistant","content":[{{"type":"text","text":{text}}}]}},"usage":{usage}}}"#
        )
        .into()
    }
}
