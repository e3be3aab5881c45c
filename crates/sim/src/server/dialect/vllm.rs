//! Chat and completions as vLLM 0.32.0 (Python front end) writes them: JSON without spaces, one event per HTTP chunk.

use crate::server::api::Api;
use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::DEAD;
use crate::server::dialect::Dialect;
use crate::server::dialect::Metrics;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::dialect::Whole;
use crate::server::dialect::done;
use crate::server::dialect::json;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::dialect::vllm_whole;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;
use crate::server::job::Job;

/// Chat or completions.
#[derive(Debug)]
pub(crate) struct OpenAi {
    context: Context,
    /// `data: {"id":...,"choices":[`, the same in every event.
    prefix: Vec<u8>,
}

impl OpenAi {
    pub(crate) fn new(mut context: Context) -> OpenAi {
        let (name, object) = match context.job.api {
            Api::Chat => ("chatcmpl", "chat.completion.chunk"),
            _ => ("cmpl", "text_completion"),
        };
        context.identity.id = format!("{name}-{}", context.identity.id);
        let (id, model) = (json_text(&context.identity.id), json_text(&context.job.model));
        let created = context.identity.created;
        let mut prefix = Vec::new();
        put!(&mut prefix, r#"data: {{"id":{id},"object":"{object}","created":{created},"model":{model},"choices":["#);
        OpenAi { context, prefix }
    }

    /// The event that opens a choice; only chat has one.
    fn role(&self, event: &mut Vec<u8>, choice: u32) {
        event.extend_from_slice(&self.prefix);
        put!(
            event,
            r#"{{"index":{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]"#
        );
        continuous_usage(event, &self.context.job, 0);
        event.extend_from_slice(b",\"prompt_token_ids\":");
        prompt_token_ids(event, &self.context.job, true);
        event.extend_from_slice(b",\"prompt_text\":null}\n\n");
    }

    fn piece(&self, event: &mut Vec<u8>, piece: &Piece) {
        event.extend_from_slice(&self.prefix);
        let job = &self.context.job;
        let finish = match piece.finish {
            None => "null",
            Some(Finish::Length) => "\"length\"",
            Some(Finish::Stop | Finish::Fault) => "\"stop\"",
        };
        match job.api {
            Api::Chat => {
                put!(event, r#"{{"index":{},"delta":{{"content":"#, piece.choice);
                json(event, &piece.text);
                put!(event, r#"}},"logprobs":null,"finish_reason":{finish}"#);
                if piece.finish.is_some() {
                    event.extend_from_slice(b",\"stop_reason\":null");
                }
            }
            _ => {
                put!(event, r#"{{"index":{},"text":"#, piece.choice);
                json(event, &piece.text);
                put!(event, r#","logprobs":null,"finish_reason":{finish},"stop_reason":null,"prompt_token_ids":"#);
                prompt_token_ids(event, job, piece.generated == piece.tokens);
            }
        }
        event.extend_from_slice(b",\"token_ids\":");
        match job.return_token_ids {
            true => json(event, &piece.ids),
            false => event.extend_from_slice(b"null"),
        }
        event.extend_from_slice(b"}]");
        continuous_usage(event, job, piece.generated);
        if piece.finish.is_some() && !job.include_usage {
            put!(event, r#","system_fingerprint":"{}""#, self.context.identity.fingerprint);
        }
        event.extend_from_slice(b"}\n\n");
    }

    /// The last event before `[DONE]`, if usage was requested.
    fn usage(&self, event: &mut Vec<u8>, summary: &Summary) {
        event.extend_from_slice(&self.prefix);
        let (job, generated) = (&self.context.job, summary.generated);
        let (prompt, cached) = (job.prompt_tokens, job.cached_tokens);
        let total = prompt + generated;
        put!(event, r#"],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{generated}"#);
        if self.context.cached_details {
            put!(event, r#","prompt_tokens_details":{{"cached_tokens":{cached}"#);
            event.extend_from_slice(if job.api == Api::Chat { br#","created_cache_tokens":0}"# } else { b"}" });
        }
        put!(event, r#"}},"system_fingerprint":"{}""#, self.context.identity.fingerprint);
        if let Some(metrics) = Metrics::of(&self.context, summary) {
            event.extend_from_slice(b",\"metrics\":");
            json(event, &metrics);
        }
        event.extend_from_slice(b"}\n\n");
    }
}

fn continuous_usage(event: &mut Vec<u8>, job: &Job, generated: u64) {
    if !job.continuous_usage {
        return;
    }
    let prompt = job.prompt_tokens;
    let total = prompt + generated;
    put!(event, r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{generated}"#);
    if job.api == Api::Chat {
        event.extend_from_slice(b",\"completion_tokens_details\":null");
    }
    event.push(b'}');
}

/// The prompt has no real ids: its positions are used.
fn prompt_token_ids(event: &mut Vec<u8>, job: &Job, first: bool) {
    if job.return_token_ids && first {
        json(event, &(0..job.prompt_tokens).collect::<Vec<u64>>());
    } else {
        event.extend_from_slice(b"null");
    }
}

impl Dialect for OpenAi {
    fn begin(&mut self, out: &mut Chunks, _: &Times) {
        if self.context.job.api == Api::Chat {
            for choice in 0..self.context.job.choices {
                out.chunk(|event| self.role(event, choice));
            }
        }
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        out.chunk(|event| self.piece(event, piece));
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        if self.context.job.include_usage {
            out.chunk(|event| self.usage(event, summary));
        }
        if marked {
            done(out);
        }
    }

    /// With spaces: vLLM writes this one with another serializer (recording `engine-death-chat-stream`).
    fn error(&mut self, out: &mut Chunks) -> AfterError {
        out.chunk(|event| {
            put!(
                event,
                "data: {{\"error\": {{\"message\": \"{DEAD}\", \"type\": \"InternalServerError\", \"param\": null, \
                 \"code\": 500}}}}\n\n"
            );
        });
        done(out);
        AfterError::Ends
    }

    fn comment(&self) -> Option<&'static [u8]> {
        Some(b": keep-alive\n\n")
    }

    fn repeats(&self) -> bool {
        !self.context.job.continuous_usage && !self.context.job.return_token_ids
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        vllm_whole::completion(&self.context, choices, Metrics::of(&self.context, summary)).into()
    }
}
