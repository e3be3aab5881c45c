//! llama.cpp's native `/completion` and `/infill` (recordings `native-completion-*` of llama-server 0.5.0): cumulative
//! counts in every event, timings in the last one, no `[DONE]`.

use std::time::Duration;

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Whole;
use crate::server::dialect::json_text;
use crate::server::dialect::ms;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One completion.
#[derive(Debug)]
pub(crate) struct Completion {
    context: Context,
}

impl Completion {
    pub(crate) fn new(context: Context) -> Completion {
        Completion { context }
    }

    /// The last event, which is also the whole non-streamed response.
    fn last(&self, text: &str, summary: &Summary) -> String {
        let job = &self.context.job;
        let (text, model) = (json_text(text), json_text(&job.model));
        let (predicted, evaluated, limit) = (summary.generated, job.prompt_tokens, job.max_tokens);
        let stop = if summary.finish == Finish::Length { "limit" } else { "eos" };
        let (cached, computed) = (job.cached_tokens, job.prompt_tokens - job.cached_tokens);
        let timings = format!(
            r#"{{"cache_n":{cached},{},{}}}"#,
            timing("prompt", computed, summary.times.prefill),
            timing("predicted", predicted, summary.times.decode)
        );
        format!(
            r#"{{"index":0,"content":{text},"tokens":[],"id_slot":0,"stop":true,"model":{model},"tokens_predicted":{predicted},"tokens_evaluated":{evaluated},"generation_settings":{{{SAMPLING},"max_tokens":{limit},"n_predict":{limit},"n_keep":0,"n_discard":0,"ignore_eos":{},"stream":{},{SETTINGS}}},"prompt":"","has_new_line":false,"truncated":false,"stop_type":"{stop}","stopping_word":"","tokens_cached":{},"timings":{timings}}}"#,
            job.ignore_eos,
            job.stream,
            evaluated + predicted - 1
        )
    }
}

/// Default sampling settings, as repeated in the last event.
const SAMPLING: &str = r#""seed":4294967295,"temperature":0.0,"dynatemp_range":0.0,"dynatemp_exponent":1.0,"top_k":40,"top_p":0.949999988079071,"min_p":0.05000000074505806,"top_n_sigma":-1.0,"xtc_probability":0.0,"xtc_threshold":0.10000000149011612,"typical_p":1.0,"repeat_last_n":64,"repeat_penalty":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"dry_multiplier":0.0,"dry_base":1.75,"dry_allowed_length":2,"dry_penalty_last_n":64,"dry_sequence_breakers":["\n",":","\"","*"],"mirostat":0,"mirostat_tau":5.0,"mirostat_eta":0.10000000149011612,"adaptive_target":-1.0,"adaptive_decay":0.8999999761581421,"stop":[]"#;
const SETTINGS: &str = r#""logit_bias":[],"n_probs":0,"min_keep":0,"grammar":"","grammar_lazy":false,"grammar_triggers":[],"preserved_tokens":[],"chat_format":"Content-only","reasoning_format":"deepseek","reasoning_in_content":false,"generation_prompt":"","samplers":["penalties","dry","top_n_sigma","top_k","typ_p","top_p","min_p","xtc","temperature"],"speculative.types":"none","timings_per_token":false,"post_sampling_probs":false,"backend_sampling":false,"lora":[]"#;

/// Four values of one phase.
fn timing(phase: &str, tokens: u64, time: Duration) -> String {
    let ms = ms(time);
    let (each, rate) = (ms / tokens.max(1) as f64, if ms > 0.0 { tokens as f64 / ms * 1e3 } else { 0.0 });
    format!(r#""{phase}_n":{tokens},"{phase}_ms":{ms:?},"{phase}_per_token_ms":{each:?},"{phase}_per_second":{rate:?}"#)
}

impl Dialect for Completion {
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        let evaluated = self.context.job.prompt_tokens;
        let before = piece.generated - piece.tokens;
        for (number, (id, text)) in (before + 1..).zip(piece.each()) {
            // The end-of-text token has no separate event.
            if text.is_empty() {
                continue;
            }
            let text = json_text(text);
            out.chunk(|event| {
                put!(
                    event,
                    "data: {{\"index\":0,\"content\":{text},\"tokens\":[{id}],\"stop\":false,\"id_slot\":-1,\
                     \"tokens_predicted\":{number},\"tokens_evaluated\":{evaluated}}}\n\n"
                );
            });
        }
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        if marked {
            out.chunk(|event| put!(event, "data: {}\n\n", self.last("", summary)));
        }
    }

    /// The stream ends without its last event.
    fn error(&mut self, out: &mut Chunks) -> AfterError {
        let error = r#"{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}"#;
        out.chunk(|event| put!(event, "data: {error}\n\n"));
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"index\":0,\"content\n\n"));
    }

    fn comment(&self) -> Option<&'static [u8]> {
        Some(b":\n\n")
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        self.last(choices.first().map_or("", |choice| choice.text.as_str()), summary).into()
    }
}
