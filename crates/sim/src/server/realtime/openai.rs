//! Text responses of OpenAI's realtime API.

use crate::server::dialect::DEAD;
use crate::server::dialect::json_text;
use crate::server::engine::Finish;
use crate::server::generation::Piece;
use crate::server::realtime::End;
use crate::server::realtime::Usage;
use crate::server::realtime::Voice;
use crate::server::realtime::message::Message;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    id: String,
    model: String,
    events: u64,
    /// The id of the response in progress.
    response: String,
    text: String,
}

impl Session {
    pub(super) fn new(id: String, model: String) -> Session {
        Session { id, model, events: 0, response: String::new(), text: String::new() }
    }

    /// A server message with its own id.
    fn event(&mut self, kind: &str, members: &str) -> String {
        self.events += 1;
        format!(r#"{{"type":"{kind}","event_id":"event_{}_{}",{members}}}"#, self.id, self.events)
    }

    fn session(&self) -> String {
        format!(
            r#""session":{{"id":"sess_{}","object":"realtime.session","type":"realtime","model":{},"output_modalities":["text"]}}"#,
            self.id,
            json_text(&self.model)
        )
    }

    fn item(&self, status: &str, content: &str) -> String {
        format!(
            r#"{{"id":"item_{}","object":"realtime.item","type":"message","status":"{status}","role":"assistant","content":[{content}]}}"#,
            self.response
        )
    }

    fn part(&self) -> String {
        format!(r#"{{"type":"output_text","text":{}}}"#, json_text(&self.text))
    }

    /// The members that identify the part and item of an event.
    fn place(&self) -> String {
        format!(r#""response_id":"resp_{0}","item_id":"item_{0}","output_index":0,"content_index":0"#, self.response)
    }

    fn response(&self, status: &str, details: &str, output: &str, usage: &str) -> String {
        format!(
            r#""response":{{"object":"realtime.response","id":"resp_{}","status":"{status}","status_details":{details},"output":[{output}],"conversation_id":"conv_{}","output_modalities":["text"],"max_output_tokens":"inf","usage":{usage},"metadata":null}}"#,
            self.response, self.id
        )
    }
}

impl Voice for Session {
    fn greeting(&mut self) -> String {
        let session = self.session();
        self.event("session.created", &session)
    }

    fn reply(&mut self, message: &Message) -> Option<String> {
        match message.kind.as_str() {
            "session.update" => {
                let session = self.session();
                Some(self.event("session.updated", &session))
            }
            "input_audio_buffer.commit" => {
                let item = format!(r#""previous_item_id":null,"item_id":"item_audio_{}""#, self.events);
                Some(self.event("input_audio_buffer.committed", &item))
            }
            "conversation.item.create" => {
                let item = message.item.as_ref().map_or_else(|| "null".to_owned(), ToString::to_string);
                Some(self.event("conversation.item.added", &format!(r#""previous_item_id":null,"item":{item}"#)))
            }
            _ => None,
        }
    }

    fn error(&mut self, code: &str, text: &str) -> String {
        let text = json_text(text);
        let error =
            format!(r#""error":{{"type":"invalid_request_error","code":"{code}","message":{text},"param":null}}"#);
        self.event("error", &error)
    }

    fn begin(&mut self, id: u64) -> Vec<String> {
        self.response = format!("{id:016x}");
        self.text.clear();
        let response = self.response("in_progress", "null", "", "null");
        let item = format!(
            r#""response_id":"resp_{}","output_index":0,"item":{}"#,
            self.response,
            self.item("in_progress", "")
        );
        let part = format!(r#"{},"part":{}"#, self.place(), self.part());
        vec![
            self.event("response.created", &response),
            self.event("response.output_item.added", &item),
            self.event("response.content_part.added", &part),
        ]
    }

    fn tokens(&mut self, piece: &Piece) -> Option<String> {
        if piece.text.is_empty() {
            return None;
        }
        self.text.push_str(&piece.text);
        let delta = format!(r#"{},"delta":{}"#, self.place(), json_text(&piece.text));
        Some(self.event("response.output_text.delta", &delta))
    }

    fn end(&mut self, end: End, usage: Usage) -> Vec<String> {
        let (status, item, details) = match end {
            End::Whole(Finish::Length) => {
                ("incomplete", "incomplete", r#"{"type":"incomplete","reason":"max_output_tokens"}"#.to_owned())
            }
            End::Whole(_) => ("completed", "completed", "null".to_owned()),
            End::Cancelled => {
                ("cancelled", "incomplete", r#"{"type":"cancelled","reason":"client_cancelled"}"#.to_owned())
            }
            End::Failed => {
                let error = format!(r#"{{"type":"server_error","code":"server_error","message":"{DEAD}"}}"#);
                ("failed", "incomplete", format!(r#"{{"type":"failed","error":{error}}}"#))
            }
        };
        let (place, part) = (self.place(), self.part());
        let item = self.item(item, &part);
        let Usage { input, cached, output } = usage;
        let total = input + output;
        let usage = format!(
            r#"{{"total_tokens":{total},"input_tokens":{input},"output_tokens":{output},"input_token_details":{{"text_tokens":{input},"audio_tokens":0,"image_tokens":0,"cached_tokens":{cached}}},"output_token_details":{{"text_tokens":{output},"audio_tokens":0}}}}"#
        );
        let response = self.response(status, &details, &item, &usage);
        let text = json_text(&self.text);
        let output_item = format!(r#""response_id":"resp_{}","output_index":0,"item":{item}"#, self.response);
        vec![
            self.event("response.output_text.done", &format!(r#"{place},"text":{text}"#)),
            self.event("response.content_part.done", &format!(r#"{place},"part":{part}"#)),
            self.event("response.output_item.done", &output_item),
            self.event("response.done", &response),
        ]
    }

    fn broken(&self) -> &'static str {
        r#"{"type":"response.output_text.delta","delta":"#
    }
}
