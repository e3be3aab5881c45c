//! OpenAI Responses as vLLM 0.32.0 writes them (recordings `responses-*`): two events immediately, before any token;
//! every event numbered; the whole response repeated in the last four; no `[DONE]`.

use crate::server::dialect::AfterError;
use crate::server::dialect::Choice;
use crate::server::dialect::Context;
use crate::server::dialect::DEAD;
use crate::server::dialect::Dialect;
use crate::server::dialect::Metrics;
use crate::server::dialect::Summary;
use crate::server::dialect::Times;
use crate::server::dialect::Whole;
use crate::server::dialect::json_text;
use crate::server::dialect::put;
use crate::server::engine::Finish;
use crate::server::front::Chunks;
use crate::server::generation::Piece;

/// One response.
#[derive(Debug)]
pub(crate) struct Responses {
    context: Context,
    /// The complete text so far: the last events repeat it.
    text: String,
    events: u64,
}

/// State of a response.
enum State<'a> {
    Begun,
    Done(&'a Summary),
    Failed,
}

impl Responses {
    pub(crate) fn new(context: Context) -> Responses {
        Responses { context, text: String::new(), events: 0 }
    }

    /// One event: its type is in the line before the data and is also the last member; its number precedes the type.
    fn event(&mut self, out: &mut Chunks, kind: &str, members: &str) {
        self.event_with(out, kind, members, "");
    }

    /// An event with a member between number and type: members are in alphabetical order.
    fn event_with(&mut self, out: &mut Chunks, kind: &str, members: &str, last: &str) {
        let number = self.events;
        self.events += 1;
        out.chunk(|event| {
            put!(
                event,
                "event: {kind}\ndata: {{{members},\"sequence_number\":{number}{last},\"type\":\"{kind}\"}}\n\n"
            );
        });
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.context.identity.id)
    }

    /// A part of a message; the first one has an empty list of probabilities, the others none.
    fn part(text: &str, logprobs: &str) -> String {
        format!(r#"{{"annotations":[],"text":{},"type":"output_text","logprobs":{logprobs}}}"#, json_text(text))
    }

    fn item(&self, content: &str, status: &str) -> String {
        format!(
            r#"{{"id":"{}","content":[{content}],"role":"assistant","status":"{status}","type":"message","phase":null}}"#,
            self.item_id()
        )
    }

    /// The object with the whole response, which three of a stream's events contain.
    fn response(&self, state: &State<'_>) -> String {
        let Context { job, identity, .. } = &self.context;
        let status = match state {
            State::Begun => "in_progress",
            State::Done(summary) => status(summary.finish),
            State::Failed => "failed",
        };
        let (mut output, mut usage, mut metrics) = (String::new(), "null".to_owned(), String::new());
        if let State::Done(summary) = state {
            output = self.item(&Self::part(&self.text, "null"), status);
            let (input, generated, cached) = (job.prompt_tokens, summary.generated, job.cached_tokens);
            let total = input + generated;
            usage = format!(
                r#"{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}},"output_tokens":{generated},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":{total}}}"#
            );
            if let Some(told) = Metrics::of(&self.context, summary) {
                metrics = format!(r#","metrics":{}"#, json_text(&told));
            }
        }
        let incomplete = match status {
            "incomplete" => r#"{"reason":"max_output_tokens"}"#,
            _ => "null",
        };
        // vLLM has no such member; the other engines that report a failure put it where OpenAI does.
        let error = match state {
            State::Failed => format!(r#","error":{{"code":"server_error","message":"{DEAD}"}}"#),
            _ => String::new(),
        };
        let (id, created, model, limit) = (&identity.id, identity.created, json_text(&job.model), job.max_tokens);
        format!(
            r#"{{"id":"resp_{id}","created_at":{created}{error},"incomplete_details":{incomplete},"instructions":null,"metadata":null,"model":{model},"object":"response","output":[{output}],"parallel_tool_calls":true,"temperature":0.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":{limit},"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null{metrics},"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#
        )
    }
}

fn status(finish: Finish) -> &'static str {
    if finish == Finish::Length { "incomplete" } else { "completed" }
}

impl Dialect for Responses {
    fn open(&mut self, out: &mut Chunks) {
        let response = format!(r#""response":{}"#, self.response(&State::Begun));
        self.event(out, "response.created", &response);
        self.event(out, "response.in_progress", &response);
    }

    fn begin(&mut self, out: &mut Chunks, _: &Times) {
        let id = self.item_id();
        let item = format!(
            r#""item":{{"id":"{id}","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null}},"output_index":0"#
        );
        self.event(out, "response.output_item.added", &item);
        let part = Self::part("", "[]");
        let part = format!(r#""content_index":0,"item_id":"{id}","output_index":0,"part":{part}"#);
        self.event(out, "response.content_part.added", &part);
    }

    fn tokens(&mut self, out: &mut Chunks, piece: &Piece) {
        if piece.text.is_empty() {
            return;
        }
        self.text.push_str(&piece.text);
        let delta = format!(
            r#""content_index":0,"delta":{},"item_id":"{}","logprobs":[],"output_index":0"#,
            json_text(&piece.text),
            self.item_id()
        );
        self.event(out, "response.output_text.delta", &delta);
    }

    fn end(&mut self, out: &mut Chunks, summary: &Summary, marked: bool) {
        let (id, text, part) = (self.item_id(), json_text(&self.text), Self::part(&self.text, "null"));
        let whole = format!(r#""content_index":0,"item_id":"{id}","logprobs":[],"output_index":0"#);
        self.event_with(out, "response.output_text.done", &whole, &format!(r#","text":{text}"#));
        let whole = format!(r#""content_index":0,"item_id":"{id}","output_index":0,"part":{part}"#);
        self.event(out, "response.content_part.done", &whole);
        let item = self.item(&part, status(summary.finish));
        self.event(out, "response.output_item.done", &format!(r#""item":{item},"output_index":0"#));
        if marked {
            let response = format!(r#""response":{}"#, self.response(&State::Done(summary)));
            self.event(out, &format!("response.{}", status(summary.finish)), &response);
        }
    }

    /// vLLM closes the connection instead (recording `engine-death-responses-stream`); the fault `cut` simulates that.
    /// This is the error of OpenAI, SGLang and Ollama.
    fn error(&mut self, out: &mut Chunks) -> AfterError {
        let response = format!(r#""response":{}"#, self.response(&State::Failed));
        self.event(out, "response.failed", &response);
        AfterError::Ends
    }

    fn broken(&mut self, out: &mut Chunks) {
        out.chunk(|event| event.extend_from_slice(b"event: response.output_text.delta\ndata: {\"content_index\":\n\n"));
    }

    fn whole(&mut self, choices: &[Choice], summary: &Summary) -> Whole {
        self.text = choices.first().map(|choice| choice.text.clone()).unwrap_or_default();
        self.response(&State::Done(summary)).into()
    }
}
