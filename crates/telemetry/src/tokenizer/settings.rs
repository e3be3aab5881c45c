//! Settings of token counting from text.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Vocabularies by model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `tokenizer.json` of every model without an entry in `models`; `None`: their responses are not counted.
    pub path: Option<PathBuf>,
    /// `tokenizer.json` by the model's name in requests and responses.
    pub models: BTreeMap<String, PathBuf>,
    /// Maximum number of responses waiting to be counted.
    pub queue_answers: usize,
}

impl Settings {
    /// True if a vocabulary is set.
    pub fn is_on(&self) -> bool {
        self.path.is_some() || !self.models.is_empty()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { path: None, models: BTreeMap::new(), queue_answers: 256 }
    }
}
