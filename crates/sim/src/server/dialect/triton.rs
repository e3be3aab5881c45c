//! Triton's `generate` and `generate_stream` with TensorRT-LLM's ensemble (2.73, from `src/http_server.cc` and
//! `qa/L0_http/generate_endpoint_test.py`): flattened output tensors, no counts, no end mark.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::Dialect;
use crate::server::dialect::Summary;
use crate::server::dialect::Whole;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One inference.
#[derive(Debug)]
pub(crate) struct Generate {
    context: Context,
}

impl Generate {
    pub(crate) fn new(context: Context) -> Generate {
        Generate { context }
    }

    fn response(&self, text: &str) -> String {
        let (model, text) = (json_text(&self.context.job.model), json_text(text));
        format!(
            r#"{{"batch_index":0,"context_logits":0.0,"cum_log_probs":0.0,"generation_logits":0.0,"model_name":{model},"model_version":"1","output_log_probs":0.0,"sequence_end":false,"sequence_id":0,"sequence_index":0,"text_output":{text}}}"#
        )
    }
}

impl Dialect for Generate {
    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        out.chunk(|event| put!(event, "data: {}\n\n", self.response(&piece.text)));
    }

    /// Only the transfer coding marks the end.
    fn end(&mut self, _: &mut Chunks, _: &Summary, _: bool) {}

    fn error(&mut self, out: &mut Chunks) -> AfterError {
        out.chunk(|event| put!(event, "data: {{\"error\":\"Executor failed: out of memory\"}}\n\n"));
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"data: {\"model_name\":\"\n\n"));
    }

    fn whole(&mut self, choices: &[Choice], _: &Summary) -> Whole {
        self.response(choices.first().map_or("", |choice| choice.text.as_str())).into()
    }
}
