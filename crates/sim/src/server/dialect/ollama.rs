//! Ollama's native `/api/chat` and `/api/generate` (recordings of 0.17.4): a JSON object per line, and durations in
//! nanoseconds in the last one, where zero values are omitted.

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
use crate::server::front::Media;
use crate::server::front::timestamp;
use crate::server::front::unix_time;
use crate::server::generation::Piece;
use crate::server::settings::Settings;

/// Time from a request's arrival until the (already loaded) model is ready.
const LOAD: Duration = Duration::from_micros(3_800);

/// One response.
#[derive(Debug)]
pub(crate) struct Generate {
    context: Context,
}

impl Generate {
    pub(crate) fn new(context: Context) -> Generate {
        Generate { context }
    }

    /// An object, with `rest` after the text.
    fn object(&self, text: &str, rest: &str) -> String {
        let job = &self.context.job;
        let (model, now, text) = (json_text(&job.model), timestamp(unix_time()), json_text(text));
        let said = match job.api {
            Api::OllamaChat => format!(r#""message":{{"role":"assistant","content":{text}}}"#),
            _ => format!(r#""response":{text}"#),
        };
        format!(r#"{{"model":{model},"created_at":"{now}",{said},{rest}}}"#)
    }

    fn last(&self, text: &str, summary: &Summary) -> String {
        let (job, times) = (&self.context.job, summary.times);
        // Loading is the first part of the time before the first token.
        let load = LOAD.min(times.prefill / 2);
        let mut rest = String::new();
        let reason = if summary.finish == Finish::Length { "length" } else { "stop" };
        rest.push_str(&format!(r#""done":true,"done_reason":"{reason}""#));
        if job.api == Api::OllamaGenerate {
            // The ids of prompt and response, for a follow-up request; those of the prompt are its positions.
            let context: Vec<u64> = (0..job.prompt_tokens + summary.generated).collect();
            rest.push_str(&format!(r#","context":{}"#, json_text(&context)));
        }
        for (name, value) in [
            ("total_duration", nanos(times.total())),
            ("load_duration", nanos(load)),
            ("prompt_eval_count", job.prompt_tokens),
            ("prompt_eval_duration", nanos(times.prefill - load)),
            ("eval_count", summary.generated),
            // From the first token to the last.
            ("eval_duration", if summary.generated > 1 { nanos(times.decode) } else { 0 }),
        ] {
            if value > 0 {
                rest.push_str(&format!(r#","{name}":{value}"#));
            }
        }
        self.object(text, &rest)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Dialect for Generate {
    fn media(&self) -> Media {
        Media::Lines
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        // The end-of-text token has no object.
        for (_, text) in piece.each().filter(|(_, text)| !text.is_empty()) {
            out.chunk(|line| put!(line, "{}\n", self.object(text, r#""done":false"#)));
        }
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        if marked {
            out.chunk(|line| put!(line, "{}\n", self.last("", summary)));
        }
    }

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        let error = r#"{"error":"an error was encountered while running the model: unexpected EOF"}"#;
        out.chunk(|line| put!(line, "{error}\n"));
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|line| line.extend_from_slice(b"{\"model\":\n"));
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        if self.context.job.empty {
            // No prompt: the request only loads the model.
            return self.object("", r#""done":true,"done_reason":"load""#).into();
        }
        self.last(choices.first().map_or("", |choice| choice.text.as_str()), summary).into()
    }
}

/// `/api/tags`: the list of models.
pub(crate) fn tags(settings: &Settings) -> String {
    let name = json_text(&format!("{}:latest", settings.model));
    format!(
        r#"{{"models":[{{"name":{name},"model":{name},"modified_at":"{}","size":5635066,"digest":"90d8dd4493998713180028971ecf5d185fc6a06954b83d6903f59cf328e39c65","details":{{"parent_model":"","format":"gguf","family":"llama","families":["llama"],"parameter_size":"1.38M","quantization_level":"unknown"}}}}]}}"#,
        timestamp(unix_time())
    )
}
