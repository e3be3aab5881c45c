//! Counts the tokens of responses without a token count, from their text and the model's vocabulary (`tokenizer.json`).
//!
//! Disabled unless a vocabulary is set. A low-priority thread receives a record and the text of its response, counts
//! the tokens and forwards the record. If that fails, the record is forwarded without a count, and the failure is
//! counted by reason.
//!
//! The token count of the text is an estimate of the number of sampled tokens. The end-of-text token, reasoning markers
//! and special tokens are sampled but not part of the text. Removed stop strings, and white space removed by a
//! reasoning parser, are missing from the text. A model may also sample other tokens for a text than its tokenizer
//! produces. Prompts are not counted, because the server's chat template is unknown.

mod counting;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use counting::Counting;
pub use vocabulary::{Error, Tokenize, Vocabularies};

/// Vocabularies by model: the block `observe.tokenizer` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// File `tokenizer.json` (Hugging Face format) for models that are not in `models`. null: the output tokens of
    /// these models are not estimated.
    pub path: Option<PathBuf>,
    /// Files `tokenizer.json` by model, as `name: path`. The name is the model name in requests or responses.
    pub models: BTreeMap<String, PathBuf>,
    /// Maximum number of responses waiting to be counted.
    #[serde(skip)]
    pub queue_responses: usize,
}

impl Settings {
    /// True if a vocabulary is set.
    pub fn is_on(&self) -> bool {
        self.path.is_some() || !self.models.is_empty()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { path: None, models: BTreeMap::new(), queue_responses: 256 }
    }
}
