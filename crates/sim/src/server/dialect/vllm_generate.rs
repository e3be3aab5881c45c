//! vLLM's `/inference/v1/generate`, tokens in and tokens out (0.33.0, from `vllm/entrypoints/serve/disagg`): ids in
//! every event, so that counts are exact without usage.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Whole;
use crate::server::dialect::died;
use crate::server::dialect::done;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One generation, of one or several sequences.
#[derive(Debug)]
pub(crate) struct Generate {
    context: Context,
}

impl Generate {
    pub(crate) fn new(context: Context) -> Generate {
        Generate { context }
    }

    fn object(&self, choices: &str, usage: &str) -> String {
        let id = &self.context.identity.id;
        format!(
            r#"{{"request_id":"generate-tokens-{id}","choices":[{choices}],"output_mode":"tokens","usage":{usage}}}"#
        )
    }

    fn usage(&self, generated: u64) -> String {
        let prompt = self.context.job.prompt_tokens;
        let total = prompt + generated;
        format!(r#"{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{generated}}}"#)
    }
}

fn choice(index: u32, finish: Option<Finish>, ids: &[u32]) -> String {
    let finish = json_text(&finish.map(|finish| if finish == Finish::Length { "length" } else { "stop" }));
    let ids = json_text(ids);
    format!(r#"{{"index":{index},"logprobs":null,"finish_reason":{finish},"stop_reason":null,"token_ids":{ids}}}"#)
}

impl Dialect for Generate {
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        let object = self.object(&choice(piece.choice, piece.finish, &piece.ids), "null");
        out.chunk(|event| put!(event, "data: {object}\n\n"));
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        if self.context.job.include_usage {
            let object = self.object("", &self.usage(summary.generated));
            out.chunk(|event| put!(event, "data: {object}\n\n"));
        }
        if marked {
            done(out);
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        died(out);
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"request_id\":\n\n"));
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        let each = (0..).zip(choices).map(|(index, one)| choice(index, one.finish, &one.ids));
        let choices: Vec<String> = each.collect();
        self.object(&choices.join(","), &self.usage(summary.generated)).into()
    }
}
