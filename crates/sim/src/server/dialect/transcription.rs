//! Audio transcription and translation as vLLM 0.33.0 streams them (from `speech_to_text/serving.py`): a long recording
//! is split, and each part has its own finish event, in one stream.

use crate::server::api::Api;
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

/// Tokens per part of the audio.
const PART_TOKENS: u64 = 16;

/// One transcription.
#[derive(Debug)]
pub(crate) struct Transcription {
    context: Context,
}

impl Transcription {
    pub(crate) fn new(context: Context) -> Transcription {
        Transcription { context }
    }

    fn chunk(&self, out: &mut Chunks, choices: &str, usage: Option<u64>) {
        let Context { job, identity, .. } = &self.context;
        let (prefix, object) = match job.api {
            Api::Translation => ("trsl", "translation.chunk"),
            _ => ("trsc", "transcription.chunk"),
        };
        let (id, created, model, prompt) = (&identity.id, identity.created, json_text(&job.model), job.prompt_tokens);
        let usage = usage.map_or(String::new(), |generated| {
            let total = prompt + generated;
            format!(r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{generated}}}"#)
        });
        out.chunk(|event| {
            put!(
                event,
                "data: {{\"id\":\"{prefix}-{id}\",\"object\":\"{object}\",\"created\":{created},\"model\":{model},\
                 \"choices\":[{choices}]{usage}}}\n\n"
            );
        });
    }
}

impl Dialect for Transcription {
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        let before = piece.generated - piece.tokens;
        let part_ends = piece.generated / PART_TOKENS > before / PART_TOKENS;
        let finish = match piece.finish {
            Some(Finish::Length) => r#","finish_reason":"length","stop_reason":null"#,
            Some(_) => r#","finish_reason":"stop","stop_reason":null"#,
            None if part_ends => r#","finish_reason":"stop","stop_reason":null"#,
            None => "",
        };
        let choice = format!(r#"{{"delta":{{"content":{}}}{finish}}}"#, json_text(&piece.text));
        self.chunk(out, &choice, self.context.job.continuous_usage.then_some(piece.generated));
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        if self.context.job.include_usage {
            self.chunk(out, "", Some(summary.generated));
        }
        if marked {
            done(out);
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        died(out);
        AfterError::Ends
    }

    /// Usage is the length of the audio: no token counts.
    fn whole(&mut self, choices: &[Choice], _: &Summary) -> Whole {
        let text = json_text(choices.first().map_or("", |choice| choice.text.as_str()));
        let seconds = self.context.job.inputs;
        format!(r#"{{"text":{text},"usage":{{"type":"duration","seconds":{seconds}}}}}"#).into()
    }
}
