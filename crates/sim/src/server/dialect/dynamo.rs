//! Chat as Dynamo 1.6.1 writes it (from `dynamo-llm`'s `protocols/openai/chat_completions`): the role in the first
//! event with text, null members included, a separate finish event, and `nvext.timing` on request.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::DEAD;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Whole;
use crate::server::dialect::done;
use crate::server::dialect::json_text;
use crate::server::dialect::ms;
use crate::server::dialect::put;
use crate::server::dialect::vllm_whole;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One chat completion.
#[derive(Debug)]
pub(crate) struct Chat {
    context: Context,
    /// How each sequence ended: reported after all text.
    finishes: Vec<(u32, &'static str)>,
}

impl Chat {
    pub(crate) fn new(mut context: Context) -> Chat {
        context.identity.id = format!("chatcmpl-{}", context.identity.id);
        Chat { context, finishes: Vec::new() }
    }

    fn chunk(&self, out: &mut Chunks, choices: &str, usage: &str, nvext: &str) {
        let identity = &self.context.identity;
        let (id, model, created) = (json_text(&identity.id), json_text(&self.context.job.model), identity.created);
        out.chunk(|event| {
            put!(
                event,
                "data: {{\"id\":{id},\"choices\":[{choices}],\"created\":{created},\"model\":{model},\
                 \"service_tier\":null,\"system_fingerprint\":null,\"object\":\"chat.completion.chunk\",\
                 \"usage\":{usage}{nvext}}}\n\n"
            );
        });
    }

    fn choice(index: u32, content: Option<&str>, role: Option<&str>, finish: Option<&str>) -> String {
        let (content, role, finish) = (json_text(&content), json_text(&role), json_text(&finish));
        format!(
            r#"{{"index":{index},"delta":{{"content":{content},"function_call":null,"tool_calls":null,"role":{role},"refusal":null,"reasoning_content":null}},"finish_reason":{finish},"logprobs":null}}"#
        )
    }

    /// The queue time is reported as the prefill wait.
    fn timing(&self, summary: &Summary) -> String {
        let (received, times) = (self.context.identity.created * 1000, summary.times);
        match self.context.job.details {
            true => format!(
                r#","nvext":{{"timing":{{"request_received_ms":{received},"prefill_wait_time_ms":{:?},"prefill_time_ms":{:?},"ttft_ms":{:?},"total_time_ms":{:?}}}}}"#,
                ms(times.queue),
                ms(times.prefill),
                ms(times.queue + times.prefill),
                ms(times.total())
            ),
            false => String::new(),
        }
    }
}

impl Dialect for Chat {
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        if !piece.text.is_empty() {
            let role = (piece.generated == piece.tokens).then_some("assistant");
            self.chunk(out, &Self::choice(piece.choice, Some(&piece.text), role, None), "null", "");
        }
        if let Some(finish) = piece.finish {
            self.finishes.push((piece.choice, if finish == Finish::Length { "length" } else { "stop" }));
        }
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        let usage = self.context.job.include_usage;
        let last = self.finishes.len().saturating_sub(1);
        for (at, (index, finish)) in self.finishes.iter().enumerate() {
            let nvext = if at == last && !usage { self.timing(summary) } else { String::new() };
            self.chunk(out, &Self::choice(*index, None, None, Some(finish)), "null", &nvext);
        }
        if usage {
            let (prompt, generated) = (self.context.job.prompt_tokens, summary.generated);
            let (total, cached) = (prompt + generated, self.context.job.cached_tokens);
            let usage = format!(
                r#"{{"prompt_tokens":{prompt},"completion_tokens":{generated},"total_tokens":{total},"prompt_tokens_details":{{"audio_tokens":null,"cached_tokens":{cached}}}}}"#
            );
            self.chunk(out, "", &usage, &self.timing(summary));
        }
        if marked {
            done(out);
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        out.chunk(|event| {
            put!(
                event,
                "data: {{\"error\":{{\"message\":\"{DEAD}\",\"type\":\"Internal Server Error\",\"code\":500}}}}\n\n"
            );
        });
        done(out);
        AfterError::Ends
    }

    fn comment(&self) -> Option<&'static [u8]> {
        Some(b":\n\n")
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        let body = vllm_whole::completion(&self.context, choices, None);
        let end = body.len() - 1;
        let body = body.get(..end).unwrap_or_default();
        format!("{body}{}}}", self.timing(summary)).into()
    }
}
