//! Counts the tokens of responses without a token count, from their text and the model's vocabulary (`tokenizer.json`).
//!
//! Disabled unless a vocabulary is set. The data path passes a record and its text to a low-priority thread, which
//! counts and forwards the record with the count or, after any failure, without it. Failures are counted by reason.
//!
//! The count of the text is an estimate of the sampled tokens. The end-of-text token, the markers around reasoning and
//! special tokens are sampled but not part of the text; removed stop strings, and white space removed by a reasoning
//! parser, are missing; and a model may sample the same text as different tokens than its tokenizer produces. Prompts
//! are not counted: the server applies a chat template to them that is unknown here.

mod counting;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use counting::Counting;
pub use vocabulary::{Error, Tokenize, Vocabularies};

/// Vocabularies by model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `tokenizer.json` of every model without an entry in `models`; `None`: their responses are not counted.
    pub path: Option<PathBuf>,
    /// `tokenizer.json` by the model's name in requests and responses.
    pub models: BTreeMap<String, PathBuf>,
    /// Maximum number of responses waiting to be counted.
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
