//! Transcription as sent by vLLM's realtime endpoint: every engine step is a delta, even without text.

use crate::server::dialect::DEAD;
use crate::server::dialect::json_text;
use crate::server::front::unix_time;
use crate::server::generation::Piece;
use crate::server::realtime::End;
use crate::server::realtime::Usage;
use crate::server::realtime::Voice;
use crate::server::realtime::message::Message;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    id: String,
    text: String,
}

impl Session {
    pub(super) fn new(id: String) -> Session {
        Session { id, text: String::new() }
    }
}

impl Voice for Session {
    fn greeting(&mut self) -> String {
        format!(r#"{{"type":"session.created","id":"sess-{}","created":{}}}"#, self.id, unix_time().as_secs())
    }

    fn reply(&mut self, _: &Message) -> Option<String> {
        None
    }

    fn error(&mut self, code: &str, text: &str) -> String {
        format!(r#"{{"type":"error","error":{},"code":"{code}"}}"#, json_text(text))
    }

    fn begin(&mut self, _: u64) -> Vec<String> {
        self.text.clear();
        Vec::new()
    }

    fn tokens(&mut self, piece: &Piece) -> Option<String> {
        self.text.push_str(&piece.text);
        Some(format!(r#"{{"type":"transcription.delta","delta":{}}}"#, json_text(&piece.text)))
    }

    fn end(&mut self, end: End, usage: Usage) -> Vec<String> {
        if end == End::Failed {
            return vec![self.error("processing_error", DEAD)];
        }
        let Usage { input, output, .. } = usage;
        let total = input + output;
        vec![format!(
            r#"{{"type":"transcription.done","text":{},"usage":{{"prompt_tokens":{input},"total_tokens":{total},"completion_tokens":{output},"prompt_tokens_details":null}}}}"#,
            json_text(&self.text)
        )]
    }

    fn broken(&self) -> &'static str {
        r#"{"type":"transcription.delta","delta":"#
    }
}
