//! What a person may set about counting by text.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Which vocabulary counts the answers of which model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `tokenizer.json` of every model that has none of its own; `None`: their answers are not counted.
    pub path: Option<PathBuf>,
    /// `tokenizer.json` by the model's name in requests and answers.
    pub models: BTreeMap<String, PathBuf>,
    /// Most answers that wait to be counted.
    pub queue_answers: usize,
}

impl Settings {
    /// True when some vocabulary is set.
    pub fn is_on(&self) -> bool {
        self.path.is_some() || !self.models.is_empty()
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { path: None, models: BTreeMap::new(), queue_answers: 256 }
    }
}
