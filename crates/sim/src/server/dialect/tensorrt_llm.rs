//! Chat as TensorRT-LLM's `trtllm-serve` writes it (from `tensorrt_llm/serve/postprocess_handlers.py` of 2025 and
//! 2026). Its peculiarities: a space after the first event's data, a new id in every event, an event also for tokens
//! without text, and a broken connection instead of an error when the engine dies.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::dialect::Whole;
use crate::server::dialect::done;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::dialect::vllm_whole;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One chat completion.
#[derive(Debug)]
pub(crate) struct Chat {
    context: Context,
    events: u64,
}

impl Chat {
    pub(crate) fn new(mut context: Context) -> Chat {
        context.identity.id = format!("chatcmpl-{}", context.identity.id);
        Chat { context, events: 0 }
    }

    fn chunk(&mut self, out: &mut Chunks, choices: &str, more: &str, blank: &str) {
        let Context { job, identity, .. } = &self.context;
        let id = json_text(&format!("{}{:x}", identity.id, self.events));
        let (model, created) = (json_text(&job.model), identity.created);
        self.events += 1;
        out.chunk(|event| {
            put!(
                event,
                "data: {{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\"model\":{model},\
                 \"choices\":[{choices}]{more}}}{blank}\n\n"
            );
        });
    }

    fn usage(&self, generated: u64) -> String {
        let (prompt, cached) = (self.context.job.prompt_tokens, self.context.job.cached_tokens);
        let total = prompt + generated;
        format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{generated},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
        )
    }

    fn continuous_usage(&self, generated: u64) -> String {
        if self.context.job.continuous_usage { self.usage(generated) } else { String::new() }
    }
}

impl Dialect for Chat {
    fn begin(&mut self, out: &mut Chunks, _: &Times) {
        for choice in 0..self.context.job.choices {
            let role = format!(r#"{{"index":{choice},"delta":{{"role":"assistant"}}}}"#);
            let usage = self.continuous_usage(0);
            self.chunk(out, &role, &usage, " ");
        }
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        let finish = match piece.finish {
            None => "",
            Some(Finish::Length) => r#","finish_reason":"length""#,
            Some(_) => r#","finish_reason":"stop""#,
        };
        let (index, text) = (piece.choice, json_text(&piece.text));
        let choice = format!(
            r#"{{"index":{index},"delta":{{"content":{text},"reasoning_content":""}}{finish},"avg_decoded_tokens_per_iter":1.0}}"#
        );
        let usage = self.continuous_usage(piece.generated);
        self.chunk(out, &choice, &usage, "");
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        if self.context.job.include_usage {
            let usage = self.usage(summary.generated);
            self.chunk(out, "", &usage, "");
        }
        if marked {
            done(out);
        }
    }

    fn error(&mut self, _: &mut Chunks) -> AfterError {
        AfterError::Breaks
    }

    fn whole(&mut self, choices: &[Choice], _: &Summary) -> Whole {
        vllm_whole::completion(&self.context, choices, None).into()
    }
}
