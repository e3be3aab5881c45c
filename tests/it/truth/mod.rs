//! Replays real recordings through observe and measure, and compares with the engines' own counters and a naive parser.

mod counts;
mod document;
mod forced;
mod naive;
mod outcomes;
mod queue;
mod splits;
#[cfg(feature = "tokenizer")]
mod texts;
mod times;
mod written;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokometer::replay::{Recording, Replayed, replay};
use tokometer_observe::measure::Record;
use tokometer_observe::observer::Settings;

#[cfg(feature = "tokenizer")]
pub(crate) use texts::vocabulary;
use written::written;

/// Directory of the recordings.
pub(crate) fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures")
}

/// APIs that generate tokens, determined by their paths without using `tokometer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    /// The native API of SGLang and LMDeploy.
    Generate,
    /// llama.cpp's native API, including `/infill`.
    LlamaCompletion,
    /// Ollama's two native APIs, and SGLang's copy of them.
    Ollama,
    TgiStream,
    Triton,
    /// vLLM's native API, whose input and output are token ids.
    VllmGenerate,
    Transcription,
    Cohere,
}

impl Api {
    fn of(path: &str) -> Option<Api> {
        match path {
            "/v1/chat/completions" => Some(Api::Chat),
            "/v1/completions" => Some(Api::Completions),
            "/v1/responses" => Some(Api::Responses),
            "/v1/messages" => Some(Api::Messages),
            "/generate" => Some(Api::Generate),
            "/completion" | "/infill" => Some(Api::LlamaCompletion),
            "/api/chat" | "/api/generate" => Some(Api::Ollama),
            "/generate_stream" => Some(Api::TgiStream),
            "/inference/v1/generate" => Some(Api::VllmGenerate),
            "/v1/audio/transcriptions" => Some(Api::Transcription),
            "/cohere/v2/chat" => Some(Api::Cohere),
            triton if triton.starts_with("/v2/models/") => Some(Api::Triton),
            _ => None,
        }
    }
}

/// A recording with its metadata.
struct Case {
    engine: String,
    name: String,
    /// `None` if the API generates no tokens.
    api: Option<Api>,
    meta: Value,
    recording: Recording,
}

impl Case {
    fn read(path: &Path) -> Case {
        let meta = fs::read_to_string(path.with_extension("meta.json")).expect("meta is readable");
        let meta: Value = serde_json::from_str(&meta).expect("meta is JSON");
        let text = |key: &str| meta[key].as_str().unwrap_or_default().to_owned();
        let recording = Recording::read(path).expect("the recording is valid");
        Case::new(text("engine"), text("case"), meta, recording)
    }

    fn new(engine: String, name: String, meta: Value, recording: Recording) -> Case {
        let request = &meta["request"];
        let api = request["path"].as_str().filter(|_| request["method"] == "POST").and_then(Api::of);
        Case { engine, name, api, meta, recording }
    }

    /// Identifies the case in messages: `engine case`.
    fn title(&self) -> String {
        format!("{} {}", self.engine, self.name)
    }

    /// True for fixtures written by hand from the engine's source. These fixtures declare their outcome.
    fn is_written(&self) -> bool {
        !self.meta["outcome"].is_null()
    }

    /// A string field of the request.
    fn text(&self, key: &str) -> &str {
        self.meta["request"][key].as_str().unwrap_or_default()
    }

    /// The status code in the first line of the response.
    fn status(&self) -> Option<u16> {
        self.meta["response_head"].as_str()?.split(' ').nth(1)?.parse().ok()
    }

    /// True if the recorder saw the end marker of the stream or the whole body.
    fn complete(&self) -> bool {
        self.meta["complete"] == true
    }

    /// Replays the case and returns its record; `None` if no byte of a response arrived.
    fn record(&self) -> Option<Record> {
        let replayed = run(&self.recording);
        assert!(replayed.detached.is_empty(), "{}: detached {:?}", self.title(), replayed.detached);
        assert!(replayed.records.len() <= 1, "{}: more than one record", self.title());
        replayed.records.into_iter().next()
    }
}

/// Every recording and every hand-written fixture.
fn all() -> Vec<Case> {
    let paths = Recording::find(&captures()).expect("the recordings exist");
    let mut cases: Vec<Case> = paths.iter().map(|path| Case::read(path)).collect();
    assert!(cases.len() > 250, "only {} recordings found", cases.len());
    cases.extend(written());
    cases
}

/// Every recording of a request that generates tokens.
fn cases() -> Vec<Case> {
    let cases: Vec<Case> = all().into_iter().filter(|case| case.api.is_some()).collect();
    assert!(cases.len() > 220, "only {} recordings found", cases.len());
    cases
}

fn run(recording: &Recording) -> Replayed {
    replay(recording, &Settings::default())
}
