//! Rendering of responses from recordings: text files in `templates/`, one section per part of a response.
//!
//! A file contains several recordings, each of which starts with `=== name`, followed by fields (`key: value`) and
//! sections (`[name]`). Empty lines separate the events of a section; an event that renders to nothing is not sent. A
//! recording inherits missing fields and sections from the recording named in its field `like`.
//!
//! Fields of an API (`yes` sets those without a value here):
//!
//! - `paths`: request paths; `*` matches anything.
//! - `engine`: the imitated engine; absent if the configured engine serves the API.
//! - `when`: a key of the body that selects the API among those at the same path.
//! - `prompt`, `limits`, `default`: see [`job`].
//! - `chat`: the prompt is a conversation; `several`: a list is several prompts; `form`: the body is a multipart form.
//! - `single`: there is only one choice; `generates: no`: the API only processes the prompt.
//! - `immediate`: the response does not wait for the time to first token.
//! - `loads`: an empty prompt only loads the model.
//! - `stream`: `always` or `never`, if the body does not select it.
//! - `media`: `lines` or `messages`, if the events are not server-sent events.
//! - `repeats`: equal tokens render to equal events.
//! - `headers`: when the headers of a stream are sent.

mod front;
mod job;
mod template;
mod values;

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::server::generation::{Finish, Job, Piece};
use crate::server::settings::{Imitation, Settings};
use template::Template;

pub(crate) use front::{Chunks, Front};
pub(crate) use job::{Prompt, Refusal, audio, bad_request, form};
pub(crate) use values::{Scope, unix_time};

/// The recordings. If several share a path, the first one is the default.
const FILES: &[&str] = &[
    include_str!("../../../templates/servers.txt"),
    include_str!("../../../templates/chat.txt"),
    include_str!("../../../templates/responses.txt"),
    include_str!("../../../templates/messages.txt"),
    include_str!("../../../templates/sglang.txt"),
    include_str!("../../../templates/llama_cpp.txt"),
    include_str!("../../../templates/tgi.txt"),
    include_str!("../../../templates/ollama.txt"),
    include_str!("../../../templates/triton.txt"),
    include_str!("../../../templates/vllm.txt"),
    include_str!("../../../templates/audio.txt"),
    include_str!("../../../templates/pooling.txt"),
];

static DIALECTS: LazyLock<Vec<Dialect>> =
    LazyLock::new(|| parse(FILES).expect("a unit test parses the built-in templates"));

/// An API of an engine, or the headers and pages of its server.
#[derive(Debug)]
pub(crate) struct Dialect {
    name: &'static str,
    fields: HashMap<&'static str, &'static str>,
    sections: HashMap<&'static str, Vec<Template>>,
    /// Each event contains the whole text so far.
    cumulative: bool,
}

/// The text of a recording.
#[derive(Debug, Default)]
struct Source {
    fields: HashMap<&'static str, &'static str>,
    sections: HashMap<&'static str, &'static str>,
}

fn parse(files: &[&'static str]) -> Result<Vec<Dialect>, String> {
    let texts = files.iter().flat_map(|file| file.split("=== ").skip(1)).filter_map(|text| text.split_once('\n'));
    let sources: Vec<(&str, Source)> = texts.map(|(name, text)| (name, source(text))).collect();
    let source = |name: &str| sources.iter().find(|(known, _)| *known == name).map(|(_, source)| source);
    let dialect = |(name, own): &(&'static str, Source)| {
        let like = own.fields.get("like").and_then(|like| source(like));
        let section = |home: &str, name: &str| match home {
            "" => own.sections.get(name).or_else(|| like?.sections.get(name)).copied(),
            other => source(other)?.sections.get(name).copied(),
        };
        let mut texts = like.map(|like| like.sections.clone()).unwrap_or_default();
        texts.extend(&own.sections);
        let mut sections = HashMap::new();
        for (name, text) in &texts {
            let events = text.split("\n\n").map(|event| Template::parse(event, &section));
            sections.insert(*name, events.collect::<Result<Vec<Template>, String>>()?);
        }
        let mut fields = like.map(|like| like.fields.clone()).unwrap_or_default();
        fields.extend(&own.fields);
        Ok(Dialect { name, fields, sections, cumulative: texts.values().any(|text| text.contains("<all")) })
    };
    sources.iter().map(dialect).collect()
}

/// Splits a recording into fields and sections; comments start with `# `.
fn source(text: &'static str) -> Source {
    let mut source = Source::default();
    let (fields, sections) = text.split_at(text.find("\n[").unwrap_or(text.len()));
    source
        .fields
        .extend(fields.lines().filter(|line| !line.starts_with("# ")).filter_map(|line| line.split_once(": ")));
    for section in sections.split("\n[").skip(1) {
        if let Some((name, body)) = section.split_once("]\n") {
            let end = body.find("\n\n# ").unwrap_or(body.len());
            source.sections.insert(name, body.get(..end).unwrap_or(body).trim_end_matches('\n'));
        }
    }
    source
}

impl Dialect {
    /// The recording with this name.
    pub(crate) fn named(name: &str) -> &'static Dialect {
        let found = DIALECTS.iter().find(|dialect| dialect.name == name);
        found.expect("only the names of built-in recordings are asked for")
    }

    /// The APIs at a path.
    pub(crate) fn at(path: &str) -> Vec<&'static Dialect> {
        let matches = |pattern: &str| match pattern.split_once('*') {
            Some((start, end)) => path.starts_with(start) && path.ends_with(end),
            None => path == pattern,
        };
        DIALECTS
            .iter()
            .filter(|dialect| dialect.field("paths").is_some_and(|all| all.split(' ').any(matches)))
            .collect()
    }

    /// Selects one of the APIs at a path: by the body, then by the configured engine, then the first.
    pub(crate) fn select(all: &[&'static Dialect], body: &Value, engine: Imitation) -> Option<&'static Dialect> {
        let selected_by_body = |dialect: &&Dialect| {
            dialect.field("when").is_some_and(|key| body.get(key).is_some_and(|value| !value.is_null()))
        };
        let configured = |dialect: &&Dialect| dialect.field("engine") == Some(&engine.to_string());
        let found = all.iter().rev().copied().find(selected_by_body).or_else(|| all.iter().copied().find(configured));
        found.or(all.first().copied())
    }

    /// The engine that is imitated in the response.
    pub(crate) fn engine(&self, configured: Imitation) -> Imitation {
        self.field("engine").and_then(|engine| engine.parse().ok()).unwrap_or(configured)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static str> {
        self.fields.get(name).copied()
    }

    pub(crate) fn is(&self, field: &str) -> bool {
        self.field(field) == Some("yes")
    }

    /// Whether the API generates tokens instead of only processing a prompt.
    pub(crate) fn generates(&self) -> bool {
        self.field("generates") != Some("no")
    }

    pub(crate) fn has(&self, section: &str) -> bool {
        self.sections.contains_key(section)
    }

    fn events(&self, section: &str) -> &[Template] {
        self.sections.get(section).map(Vec::as_slice).unwrap_or_default()
    }

    /// Renders a section with a single event.
    pub(crate) fn render(&self, section: &str, scope: &Scope<'_>) -> String {
        let mut out = Vec::new();
        self.events(section).iter().for_each(|template| template.render(scope, &mut out));
        text(&out)
    }
}

/// Properties of a request that are known from the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    pub(crate) job: Job,
    /// Sixteen hexadecimal digits, or the client's request id.
    pub(crate) id: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
    /// vLLM's configuration fingerprint.
    pub(crate) fingerprint: String,
    /// `--enable-prompt-tokens-details` of vLLM.
    pub(crate) cached_details: bool,
    /// `--enable-per-request-metrics` of vLLM, `--enable-metrics` of SGLang.
    pub(crate) metrics: bool,
}

impl Context {
    pub(crate) fn new(job: Job, id: String, settings: &Settings) -> Context {
        Context {
            job,
            id,
            created: unix_time().as_secs(),
            fingerprint: format!("vllm-0.32.0-{:08x}", settings.seed as u32),
            cached_details: settings.prompt_tokens_details,
            metrics: settings.per_request_metrics,
        }
    }
}

/// Durations of the phases of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) queue: Duration,
    /// From scheduling to the first token.
    pub(crate) prefill: Duration,
    /// From the first token to the latest token.
    pub(crate) decode: Duration,
}

impl Times {
    pub(crate) fn total(&self) -> Duration {
        self.queue + self.prefill + self.decode
    }
}

/// Result of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// Tokens over all sequences.
    pub(crate) generated: u64,
    /// `stop`, `length`, `cancelled` or `failed`.
    pub(crate) state: &'static str,
    pub(crate) times: Times,
}

/// The output of one choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) finish: Option<Finish>,
}

/// Rendered text; templates and values are UTF-8.
pub(crate) fn text(rendered: &[u8]) -> String {
    String::from_utf8_lossy(rendered).into_owned()
}

/// Receives rendered events.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(&[u8]);

/// Plays a recording for one request.
#[derive(Debug)]
pub(crate) struct Player {
    dialect: &'static Dialect,
    pub(crate) context: Context,
    choices: Vec<Choice>,
    /// The last token, for engines with an event per token.
    token: (u32, String),
    /// Events so far.
    pub(crate) events: u64,
    response_id: u64,
    event: Vec<u8>,
}

impl Player {
    pub(crate) fn new(dialect: &'static Dialect, context: Context) -> Player {
        let choices = vec![Choice::default(); context.job.choices as usize];
        Player { dialect, context, choices, token: (0, String::new()), events: 0, response_id: 0, event: Vec::new() }
    }

    /// Starts another response of the same session.
    pub(crate) fn restart(&mut self, job: Job, response_id: u64) {
        let model = std::mem::take(&mut self.context.job.model);
        self.choices = vec![Choice::default(); job.choices as usize];
        (self.context.job, self.response_id) = (Job { model, ..job }, response_id);
    }

    /// Renders the events of a section; `alter` sets additional values for them.
    pub(crate) fn play<'a>(&'a mut self, section: &str, emit: Emit<'_>, alter: impl FnOnce(Scope<'a>) -> Scope<'a>) {
        let end = match self.dialect.field("media") {
            Some("messages") => "",
            Some("lines") => "\n",
            _ => "\n\n",
        };
        let first = self.choices.first();
        let scope = Scope { context: &self.context, choices: &self.choices, ..Scope::default() };
        let (token_id, response_id) = (self.token.0, self.response_id);
        let scope = Scope { token: &self.token.1, token_id, response_id, ..scope };
        let all = first.map_or(scope, |first| Scope { all: &first.text, all_ids: &first.ids, ..scope });
        let mut scope = alter(all);
        for template in self.dialect.events(section) {
            scope.number = self.events;
            self.event.clear();
            template.render(&scope, &mut self.event);
            if !self.event.is_empty() {
                // A truncated event does not count.
                self.events += u64::from(section != "broken");
                self.event.extend_from_slice(end.as_bytes());
                emit(&self.event);
            }
        }
    }

    /// The events of a section as messages.
    pub(crate) fn messages<'a>(&'a mut self, section: &str, alter: impl FnOnce(Scope<'a>) -> Scope<'a>) -> Vec<String> {
        let mut messages = Vec::new();
        self.play(section, &mut |message| messages.push(text(message)), alter);
        messages
    }

    /// Renders the events before the first token, which are in the same write as the token.
    pub(crate) fn begin(&mut self, emit: Emit<'_>) {
        for index in 0..u64::from(self.context.job.choices) {
            self.play("begin", emit, |scope| Scope { index, ..scope });
        }
    }

    /// Renders the tokens of one sequence in one step.
    pub(crate) fn tokens(&mut self, piece: &Piece, times: Times, emit: Emit<'_>) {
        if self.dialect.cumulative {
            self.keep(piece);
        }
        let choice = piece.choice as usize;
        if let Some(choice) = self.choices.get_mut(choice) {
            choice.finish = piece.finish;
        }
        let Piece { finish, tokens, generated, .. } = *piece;
        if !self.dialect.has("token") {
            return self.play("tokens", emit, |scope| {
                let all = scope.choices.get(choice).map_or(scope, |choice| scope.with_output(choice));
                let (text, ids) = (piece.text.as_str(), piece.ids.as_slice());
                Scope { index: u64::from(piece.choice), text, ids, finish, tokens, generated, times, ..all }
            });
        }
        for (number, (id, text)) in (generated - tokens + 1..).zip(piece.each()) {
            self.token = (id, text.to_owned());
            let last = finish.is_some() && number == generated;
            self.play("token", emit, |scope| Scope { text, generated: number, last, times, ..scope });
        }
    }

    /// Appends the output of a step to its choice, for non-streamed responses and cumulative events.
    pub(crate) fn keep(&mut self, piece: &Piece) {
        if let Some(choice) = self.choices.get_mut(piece.choice as usize) {
            choice.text.push_str(&piece.text);
            choice.ids.extend_from_slice(&piece.ids);
            choice.finish = piece.finish;
        }
    }

    /// Renders the events after the last token. `marked`: with the end mark, such as `[DONE]`.
    pub(crate) fn end(&mut self, summary: &Summary, marked: bool, emit: Emit<'_>) {
        let Summary { generated, state, times } = *summary;
        let last = self.choices.len().saturating_sub(1);
        for index in 0..=last {
            self.play("finish", emit, |scope| {
                let finish = scope.choices.get(index).and_then(|choice| choice.finish);
                Scope { index: index as u64, finish, last: index == last, generated, times, ..scope }
            });
        }
        self.play("end", emit, |scope| Scope { generated, state, times, marked, ..scope });
    }

    /// Whether pieces with the same text render to identical bytes.
    pub(crate) fn repeats(&self) -> bool {
        self.dialect.is("repeats") && !self.context.job.continuous_usage && !self.context.job.return_token_ids
    }

    /// A non-streamed response: header lines specific to this API, and the body.
    pub(crate) fn whole(&self, summary: &Summary) -> (String, String) {
        let Summary { generated, state, times } = *summary;
        let (context, choices) = (&self.context, self.choices.as_slice());
        let scope = Scope { context, choices, generated, state, times, ..Scope::default() };
        let scope = self.choices.first().map_or(scope, |choice| scope.with_output(choice));
        let headers = self.dialect.render("headers", &Scope { length: scope.text.len(), ..scope });
        (headers, self.dialect.render("whole", &scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_recordings_parse() {
        assert!(parse(FILES).unwrap().len() > 30);
        for (_, engine) in Imitation::NAMES {
            assert!(Dialect::named(&format!("server_{engine}")).has("plain"), "{engine}");
        }
    }

    #[test]
    fn body_selects_the_engine_of_a_shared_path() {
        let api = |body: &str, engine| {
            let body: Value = serde_json::from_str(body).unwrap();
            Dialect::select(&Dialect::at("/generate"), &body, engine).unwrap().name
        };
        assert_eq!(api(r#"{"inputs":"x"}"#, Imitation::Vllm), "tgi");
        assert_eq!(api(r#"{"prompt":"x"}"#, Imitation::Vllm), "lmdeploy");
        assert_eq!(api(r#"{"text":"x"}"#, Imitation::Vllm), "sglang");
        assert_eq!(api(r#"{"input_ids":[1]}"#, Imitation::LmDeploy), "lmdeploy");
        let triton = Dialect::at("/v2/models/m/versions/1/generate_stream");
        assert_eq!(triton.iter().map(|dialect| dialect.name).collect::<Vec<_>>(), ["triton_stream"]);
        assert!(Dialect::at("/v2/models/m").is_empty());
    }
}
